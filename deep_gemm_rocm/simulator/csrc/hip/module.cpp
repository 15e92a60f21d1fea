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

#include "handles.h"
#include "offload_bundle.h"
#include "status.h"

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
  module->code = std::make_shared<CodeObject>(code_object_for_device(image));
  return modules().add(std::move(module));
}

std::vector<char> read_file(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(hipErrorFileNotFound, "%s: %s", path, std::strerror(errno));
  struct Closer {
    int file;
    ~Closer() { close(file); }
  } closer{file};
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) fail(hipErrorFileNotFound, "%s is no regular file", path);
  std::vector<char> contents(static_cast<size_t>(status.st_size));
  for (size_t done = 0; done < contents.size();) {
    const ssize_t count = read(file, contents.data() + done, contents.size() - done);
    if (count <= 0) fail(hipErrorFileNotFound, "%s: %s", path, count < 0 ? std::strerror(errno) : "it shrank");
    done += static_cast<size_t>(count);
  }
  return contents;
}

void load_data(hipModule_t* module, const void* image) {
  require(module, "the output pointer");
  *module = load(image_at(image));
}

}  // namespace

std::shared_ptr<Function> make_function(std::shared_ptr<const CodeObject> code, const std::string& kernel) {
  const KernelInfo* found = code->find_kernel(kernel);
  if (!found) {
    fail(hipErrorNotFound, "no kernel %s in the code object; it has: %s", kernel.c_str(), code->kernel_names().c_str());
  }
  return std::make_shared<Function>(Function{std::move(code), found});
}

hipFunction_t add_function(std::shared_ptr<Function> function) { return functions().add(std::move(function)); }

void remove_function(hipFunction_t handle) { functions().remove(handle); }

std::shared_ptr<const Function> function_of(hipFunction_t handle) { return functions().get(handle); }

HIP_API hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  return api(__func__, [&] {
    require(module, "the output pointer");
    require(path, "the path");
    const std::vector<char> contents = read_file(path);
    *module = load({contents.data(), contents.size()});
  });
}

HIP_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return api(__func__, [&] { load_data(module, image); });
}

// The options tune a just-in-time compiler, which machine code does not go through.
HIP_API hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, int*, void**) {
  return api(__func__, [&] { load_data(module, image); });
}

HIP_API hipError_t hipModuleLoadFatBinary(hipModule_t* module, const void* image) {
  return api(__func__, [&] { load_data(module, image); });
}

HIP_API hipError_t hipModuleGetFunctionCount(unsigned* count, hipModule_t handle) {
  return api(__func__, [&] {
    require(count, "the count");
    *count = static_cast<unsigned>(modules().get(handle)->code->kernel_count());
  });
}

HIP_API hipError_t hipModuleUnload(hipModule_t handle) {
  return api(__func__, [&] {
    const auto module = modules().remove(handle);
    std::lock_guard lock(module->mutex);
    for (const auto& [name, function] : module->functions) remove_function(function);
  });
}

HIP_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t handle, const char* name) {
  return api(__func__, [&] {
    require(function, "the output pointer");
    require(name, "the name");
    const auto module = modules().get(handle);
    std::lock_guard lock(module->mutex);
    auto known = module->functions.find(name);
    if (known == module->functions.end()) {
      known = module->functions.emplace(name, add_function(make_function(module->code, name))).first;
    }
    *function = known->second;
  });
}

HIP_API hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* size, hipModule_t handle, const char* name) {
  return api(__func__, [&] {
    require(name, "the name");
    const auto module = modules().get(handle);
    const GlobalVariable* variable = module->code->find_global(name);
    if (!variable) fail(hipErrorNotFound, "no variable %s in the module", name);
    if (address) *address = variable->address;
    if (size) *size = variable->size;
  });
}
