#pragma once

#include "../hip_fp16.h"
