// Kernels as HIP functions: handles, their attributes, and where they come from.
#pragma once

#include <memory>
#include <string>

#include "../base/abi.h"
#include "code_object.h"

// A kernel of a code object, which it keeps loaded.
struct Function {
  std::shared_ptr<const CodeObject> code;
  const KernelInfo* kernel;
};

// Fails with hipErrorNotFound, and names some of the kernels that there are.
std::shared_ptr<Function> make_function(std::shared_ptr<const CodeObject> code, const std::string& kernel);

// Makes the function known by its handle until remove_function.
hipFunction_t add_function(std::shared_ptr<Function> function);
void remove_function(hipFunction_t handle);
std::shared_ptr<const Function> function_of(hipFunction_t handle);
