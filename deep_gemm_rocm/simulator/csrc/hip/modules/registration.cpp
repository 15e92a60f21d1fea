// The functions that compiled host code calls. clang registers every fat binary, kernel and variable before main (or in
// dlopen), and compiles a <<<...>>> launch to a pushed configuration and hipLaunchKernel. The names and signatures are
// clang's (CGCUDANV.cpp). Code objects are loaded on first use, so that a library with invalid or foreign device code
// can still be opened.
#include "registration.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../base/host_memory.h"
#include "../base/status.h"
#include "../launch/launch.h"
#include "../memory/memory_map.h"
#include "../streams/stream.h"
#include "offload_bundle.h"

namespace {

constexpr uint32_t kFatBinaryMagic = 0x48495046;  // "HIPF"

// clang's __CudaFatBinaryWrapper.
struct FatBinaryWrapper {
  uint32_t magic;
  uint32_t version;
  const void* binary;
  void* unused;
};

// A __managed__ variable: the host reads it through *host_pointer, the device through the variable `name`.
struct ManagedVariable {
  void** host_pointer;
  const void* initial_value;
  std::string name;
  size_t size;
  void* memory;
};

struct FatBinary {
  const void* wrapper;
  std::vector<ManagedVariable> managed;
  std::shared_ptr<const CodeObject> code;  // null until first use
};

struct RegisteredFunction {
  FatBinary* binary;
  std::string name;
  std::shared_ptr<Function> function;  // null until it is used
  hipFunction_t handle = nullptr;      // null until hipGetFuncBySymbol asks for it
};

struct RegisteredVariable {
  FatBinary* binary;
  std::string name;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<FatBinary*, std::unique_ptr<FatBinary>> binaries;
  std::unordered_map<const void*, RegisteredFunction> functions;  // by the address of the host's stub
  std::unordered_map<const void*, RegisteredVariable> variables;  // by the address of the host's shadow variable
};

// Never destroyed: libraries unregister their code in static destructors.
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t dynamic_lds;
  hipStream_t stream;
};

thread_local std::optional<CallConfiguration> pushed_configuration;

FatBinary* find_binary(Registry& all, void* handle) {
  const auto found = all.binaries.find(static_cast<FatBinary*>(handle));
  if (found == all.binaries.end()) fail(hipErrorInvalidHandle, "%p is not a registered fat binary", handle);
  return found->second.get();
}

const CodeObject& loaded(FatBinary& binary) {
  if (!binary.code) {
    FatBinaryWrapper wrapper;
    read_from_host(&wrapper, binary.wrapper, sizeof wrapper, "the fat binary's wrapper");
    if (wrapper.magic != kFatBinaryMagic || wrapper.version != 1) {
      fail(hipErrorInvalidImage, "a fat binary with magic %#x and version %u, not %#x and 1", wrapper.magic,
           wrapper.version, kFatBinaryMagic);
    }
    auto code = std::make_shared<CodeObject>(code_object_for_device(image_at(wrapper.binary)));
    for (const ManagedVariable& variable : binary.managed) {
      const GlobalVariable* pointer = code->find_global(variable.name);
      if (!pointer || pointer->size != sizeof(void*)) {
        fail(hipErrorInvalidSymbol, "no pointer to the managed variable %s", variable.name.c_str());
      }
      std::memcpy(pointer->address, &variable.memory, sizeof(void*));
    }
    binary.code = std::move(code);
  }
  return *binary.code;
}

RegisteredFunction& use_function(Registry& all, const void* host_function) {
  const auto found = all.functions.find(host_function);
  if (found == all.functions.end()) {
    fail(hipErrorInvalidDeviceFunction, "%p is not the address of a registered kernel", host_function);
  }
  RegisteredFunction& registered = found->second;
  if (!registered.function) {
    loaded(*registered.binary);
    registered.function = make_function(registered.binary->code, registered.name);
  }
  return registered;
}

GlobalVariable use_variable(const void* symbol) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto found = all.variables.find(symbol);
  if (found == all.variables.end()) {
    fail(hipErrorInvalidSymbol, "%p is not the address of a registered device variable", symbol);
  }
  const GlobalVariable* variable = loaded(*found->second.binary).find_global(found->second.name);
  if (!variable) fail(hipErrorInvalidSymbol, "the code object has no variable %s", found->second.name.c_str());
  return *variable;
}

char* part_of(const GlobalVariable& variable, size_t offset, size_t size) {
  if (offset > variable.size || size > variable.size - offset) {
    fail(hipErrorInvalidValue, "%zu bytes at offset %zu of a variable of %zu", size, offset, variable.size);
  }
  return static_cast<char*>(variable.address) + offset;
}

void register_managed(FatBinary& binary, Out<void*> host_pointer, const void* initial_value, const std::string& name,
                      size_t size) {
  require(host_pointer, "the pointer to the variable");
  require_readable(initial_value, size, 1, "the initial value");
  void* memory = MemoryMap::instance().allocate(size, MemoryKind::managed);
  std::memcpy(memory, initial_value, size);
  host_pointer.give(memory);
  binary.managed.push_back({host_pointer.address(), initial_value, name, size, memory});
}

std::unique_ptr<FatBinary> unregister(FatBinary* handle) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (auto entry = all.functions.begin(); entry != all.functions.end();) {
    if (entry->second.binary != handle) {
      ++entry;
      continue;
    }
    if (entry->second.handle) remove_function(entry->second.handle);
    entry = all.functions.erase(entry);
  }
  for (auto entry = all.variables.begin(); entry != all.variables.end();) {
    entry = entry->second.binary == handle ? all.variables.erase(entry) : std::next(entry);
  }
  const auto found = all.binaries.find(handle);
  if (found == all.binaries.end()) return nullptr;
  auto binary = std::move(found->second);
  all.binaries.erase(found);
  return binary;
}

}  // namespace

std::shared_ptr<const Function> registered_function(const void* host_function) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return use_function(all, host_function).function;
}

bool is_registered(const void* host_function) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return all.functions.count(host_function) != 0;
}

CopyWork copy_to_symbol(const void* symbol, const void* source, size_t size, size_t offset) {
  return CopyWork::of_bytes(part_of(use_variable(symbol), offset, size), source, size, hipMemcpyDefault);
}

CopyWork copy_from_symbol(void* destination, const void* symbol, size_t size, size_t offset) {
  return CopyWork::of_bytes(destination, part_of(use_variable(symbol), offset, size), size, hipMemcpyDefault);
}

// ---- called by clang's module constructors and destructors

HIP_API void** __hipRegisterFatBinary(const void* wrapper) {
  FatBinary* handle = nullptr;
  api(__func__, [&] {
    auto binary = std::make_unique<FatBinary>();
    binary->wrapper = wrapper;
    handle = binary.get();
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    all.binaries.emplace(handle, std::move(binary));
  });
  return reinterpret_cast<void**>(handle);
}

HIP_API void __hipRegisterFunction(void* binary, const void* host_function, void*, Text name, int, void*, void*,
                                   void*, void*, void*) {
  api(__func__, [&] {
    const std::string kernel = name.read("the kernel's name");
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    all.functions[host_function] = {find_binary(all, binary), kernel, nullptr, nullptr};
  });
}

HIP_API void __hipRegisterVar(void* binary, void* host_variable, void*, Text name, int, size_t, int, int) {
  api(__func__, [&] {
    const std::string variable = name.read("the variable's name");
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    all.variables[host_variable] = {find_binary(all, binary), variable};
  });
}

HIP_API void __hipRegisterManagedVar(void* binary, Out<void*> host_pointer, void* initial_value, Text name,
                                     size_t size, unsigned) {
  api(__func__, [&] {
    const std::string variable = name.read("the variable's name");
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    FatBinary* const owner = find_binary(all, binary);
    register_managed(*owner, host_pointer, initial_value, variable, size);
    all.variables[host_pointer.address()] = {owner, variable};
  });
}

// The device has no texture units; a use of one is an error when it is launched, not when its library is opened.
HIP_API void __hipRegisterTexture(void*, void*, void*, void*, int, int, int) {}
HIP_API void __hipRegisterSurface(void*, void*, void*, void*, int, int) {}

HIP_API void __hipUnregisterFatBinary(void* binary) {
  api(__func__, [&] {
    // Its memory may be in use by other threads, which aren't waited for under the lock.
    const auto removed = unregister(static_cast<FatBinary*>(binary));
    if (!removed) return;
    for (const ManagedVariable& variable : removed->managed) MemoryMap::instance().release(variable.memory);
  });
}

// ---- launches

HIP_API hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t dynamic_lds, hipStream_t stream) {
  return api(__func__, [&] { pushed_configuration = CallConfiguration{grid, block, dynamic_lds, stream}; });
}

HIP_API hipError_t __hipPopCallConfiguration(Out<dim3> grid, Out<dim3> block, Out<size_t> dynamic_lds,
                                              Out<hipStream_t> stream) {
  return api(__func__, [&] {
    require(grid, "the grid");
    require(block, "the block");
    require(dynamic_lds, "the dynamic LDS");
    require(stream, "the stream");
    if (!pushed_configuration) fail(hipErrorMissingConfiguration, "no <<<...>>> configuration was pushed");
    grid.give(pushed_configuration->grid);
    block.give(pushed_configuration->block);
    dynamic_lds.give(pushed_configuration->dynamic_lds);
    stream.give(pushed_configuration->stream);
    pushed_configuration.reset();
  });
}

HIP_API hipError_t hipLaunchKernel(const void* host_function, dim3 grid, dim3 block, In<void*> arguments,
                                   size_t dynamic_lds, hipStream_t stream) {
  return api(__func__, [&] {
    const LaunchShape shape{grid, block, dynamic_lds};
    submit(stream, KernelWork::prepare(registered_function(host_function), host_function, shape, arguments, nullptr));
  });
}

HIP_API hipError_t hipExtLaunchKernel(const void* host_function, dim3 grid, dim3 block, In<void*> arguments,
                                      size_t dynamic_lds, hipStream_t stream, hipEvent_t start, hipEvent_t stop, int) {
  return api(__func__, [&] {
    record_event(start, stream);
    const LaunchShape shape{grid, block, dynamic_lds};
    submit(stream, KernelWork::prepare(registered_function(host_function), host_function, shape, arguments, nullptr));
    record_event(stop, stream);
  });
}

HIP_API hipError_t hipGetFuncBySymbol(Out<hipFunction_t> function, const void* host_function) {
  return api_giving(__func__, function, "the output pointer", [&] {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    RegisteredFunction& registered = use_function(all, host_function);
    if (!registered.handle) registered.handle = add_function(registered.function);
    return registered.handle;
  });
}

// ---- variables

HIP_API hipError_t hipGetSymbolAddress(Out<void*> address, const void* symbol) {
  return api_giving(__func__, address, "the output pointer", [&] { return use_variable(symbol).address; });
}

HIP_API hipError_t hipGetSymbolSize(Out<size_t> size, const void* symbol) {
  return api_giving(__func__, size, "the output pointer", [&] { return use_variable(symbol).size; });
}

HIP_API hipError_t hipMemcpyToSymbol(const void* symbol, const void* source, size_t size, size_t offset,
                                     hipMemcpyKind) {
  return api(__func__, [&] { submit(nullptr, copy_to_symbol(symbol, source, size, offset)); });
}

HIP_API hipError_t hipMemcpyToSymbolAsync(const void* symbol, const void* source, size_t size, size_t offset,
                                          hipMemcpyKind, hipStream_t stream) {
  return api(__func__, [&] { submit(stream, copy_to_symbol(symbol, source, size, offset)); });
}

HIP_API hipError_t hipMemcpyFromSymbol(void* destination, const void* symbol, size_t size, size_t offset,
                                       hipMemcpyKind) {
  return api(__func__, [&] { submit(nullptr, copy_from_symbol(destination, symbol, size, offset)); });
}

HIP_API hipError_t hipMemcpyFromSymbolAsync(void* destination, const void* symbol, size_t size, size_t offset,
                                            hipMemcpyKind, hipStream_t stream) {
  return api(__func__, [&] { submit(stream, copy_from_symbol(destination, symbol, size, offset)); });
}
