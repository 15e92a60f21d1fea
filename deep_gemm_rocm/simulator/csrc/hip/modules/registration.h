#pragma once

#include <memory>

#include "../memory/transfer.h"
#include "module.h"

// The kernel that compiled host code knows by the address of its stub, loaded on first use. Fails with
// hipErrorInvalidDeviceFunction where nothing is registered for the address.
std::shared_ptr<const Function> registered_function(const void* host_function);

bool is_registered(const void* host_function);

// Copies to and from a variable that compiled host code knows by the address of its shadow. Fail with
// hipErrorInvalidSymbol where nothing is registered for the address.
CopyWork copy_to_symbol(const void* symbol, const void* source, size_t size, size_t offset);
CopyWork copy_from_symbol(void* destination, const void* symbol, size_t size, size_t offset);
