// The timing model's record of a launch, as JSON.
#pragma once

#include <string>

#include "../execution/launch.h"
#include "constants.h"
#include "sampling.h"
#include "timeline.h"

namespace mi300x::timing {

std::string record_of(const Launch& launch, const Constants& constants, const Sampling& sampling, const Cost& cost,
                      const std::vector<Plan>& plans, const std::vector<const Timeline*>& timelines);

}  // namespace mi300x::timing
