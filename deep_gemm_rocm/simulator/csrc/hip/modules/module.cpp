// Modules: code objects that the program loads itself.
#include "module.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../base/handles.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "offload_bundle.h"

struct Module {
  std::shared_ptr<const CodeObject> code;
  std::mutex mutex;
  std::unordered_map<std::string, hipFunction_t> functions;  // handed out so far
};

namespace {

// Never destroyed: static destructors of the host program may still call HIP.
Handles<Module>& modules() {
  static auto& handles = *new Handles<Module>("a module");
  return handles;
}

Handles<Function>& functions() {
  static auto& handles = *new Handles<Function>("a kernel function");
  return handles;
}

hipModule_t load(Bytes image) {
  auto module = std::make_shared<Module>();
  auto code = std::make_shared<CodeObject>(code_object_for_device(image));
  code->place_managed_variables();
  module->code = std::move(code);
  return modules().add(std::move(module));
}

std::vector<char> read_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(hipErrorFileNotFound, "%s: %s", path.c_str(), std::strerror(errno));
  struct Closer {
    int file;
    ~Closer() { close(file); }
  } closer{file};
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail(hipErrorFileNotFound, "%s is no regular file", path.c_str());
  }
  std::vector<char> contents(static_cast<size_t>(status.st_size));
  for (size_t done = 0; done < contents.size();) {
    const ssize_t count = read(file, contents.data() + done, contents.size() - done);
    if (count <= 0) fail(hipErrorFileNotFound, "%s: %s", path.c_str(), count < 0 ? std::strerror(errno) : "it shrank");
    done += static_cast<size_t>(count);
  }
  return contents;
}

void load_data(Out<hipModule_t> module, const void* image) {
  require(module, "the output pointer");
  module.give(load(image_at(image)));
}

}  // namespace

std::shared_ptr<Function> make_function(std::shared_ptr<const CodeObject> code, const std::string& kernel) {
  const KernelInfo* found = code->find_kernel(kernel);
  if (!found) {
    fail(hipErrorNotFound, "no kernel %.200s in the code object; it has: %s", kernel.c_str(),
         code->some_kernel_names().c_str());
  }
  return std::make_shared<Function>(Function{std::move(code), found});
}

hipFunction_t add_function(std::shared_ptr<Function> function) { return functions().add(std::move(function)); }

void remove_function(hipFunction_t handle) { functions().remove(handle); }

std::shared_ptr<const Function> function_of(hipFunction_t handle) { return functions().get(handle); }

HIP_API hipError_t hipModuleLoad(Out<hipModule_t> module, Text path) {
  return api_giving(__func__, module, "the output pointer", [&] {
    const std::vector<char> contents = read_file(path.read("the path"));
    return load({contents.data(), contents.size()});
  });
}

HIP_API hipError_t hipModuleLoadData(Out<hipModule_t> module, const void* image) {
  return api(__func__, [&] { load_data(module, image); });
}

// The options tune a just-in-time compiler, which machine code does not go through.
HIP_API hipError_t hipModuleLoadDataEx(Out<hipModule_t> module, const void* image, unsigned, const void*, const void*) {
  return api(__func__, [&] { load_data(module, image); });
}

HIP_API hipError_t hipModuleLoadFatBinary(Out<hipModule_t> module, const void* image) {
  return api(__func__, [&] { load_data(module, image); });
}

HIP_API hipError_t hipModuleGetFunctionCount(Out<unsigned> count, hipModule_t handle) {
  return api_giving(__func__, count, "the count", [&] {
    return static_cast<unsigned>(modules().get(handle)->code->kernel_count());
  });
}

HIP_API hipError_t hipModuleUnload(hipModule_t handle) {
  return api(__func__, [&] {
    const auto module = modules().remove(handle);
    std::lock_guard lock(module->mutex);
    for (const auto& [name, function] : module->functions) remove_function(function);
  });
}

HIP_API hipError_t hipModuleGetFunction(Out<hipFunction_t> function, hipModule_t handle, Text name) {
  return api_giving(__func__, function, "the output pointer", [&] {
    const std::string kernel = name.read("the name");
    const auto module = modules().get(handle);
    std::lock_guard lock(module->mutex);
    auto known = module->functions.find(kernel);
    if (known == module->functions.end()) {
      known = module->functions.emplace(kernel, add_function(make_function(module->code, kernel))).first;
    }
    return known->second;
  });
}

HIP_API hipError_t hipModuleGetGlobal(Out<hipDeviceptr_t> address, Out<size_t> size, hipModule_t handle, Text name) {
  return api(__func__, [&] {
    allow(address, "the output pointer");
    allow(size, "the output pointer for the size");
    const std::string wanted = name.read("the name");
    const auto module = modules().get(handle);
    const GlobalVariable* variable = module->code->find_global(wanted);
    if (!variable) fail(hipErrorNotFound, "no variable %s in the module", wanted.c_str());
    address.give_if_wanted(variable->address);
    size.give_if_wanted(variable->size);
  });
}
