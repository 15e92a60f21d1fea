#pragma once

#include "hip_bf16.h"
