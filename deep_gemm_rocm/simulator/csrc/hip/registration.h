#pragma once

#include <memory>

#include "module.h"

// The kernel that compiled host code knows by the address of its stub, loaded on first use. Fails with
// hipErrorInvalidDeviceFunction where nothing is registered for the address.
std::shared_ptr<const Function> registered_function(const void* host_function);
