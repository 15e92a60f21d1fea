// A HIP program without device code of its own: properties, a graph built by hand, a captured one, and what nodes say of
// themselves. Its argument is a code object with kernels add(int*, int) and multiply(int*, int).
#include <cstdio>
#include <cstring>
#include <vector>

#include <hip/hip_runtime_api.h>

#define EXPECT(condition)                                        \
  do {                                                           \
    if (!(condition)) {                                          \
      std::printf("line %d: %s\n", __LINE__, #condition);        \
      return 1;                                                  \
    }                                                            \
  } while (0)
#define CHECK(call)                                                                    \
  do {                                                                                 \
    const hipError_t status = (call);                                                  \
    if (status != hipSuccess) {                                                        \
      std::printf("line %d: %s: %s\n", __LINE__, #call, hipGetErrorName(status));      \
      return 1;                                                                        \
    }                                                                                  \
  } while (0)

namespace {

constexpr size_t count = 64, bytes = count * sizeof(int), rows = 4, row_bytes = bytes / rows;

bool all_are(const std::vector<int>& values, int expected) {
  for (const int value : values)
    if (value != expected) return false;
  return true;
}

}  // namespace

int main(int, char** arguments) {
  hipDeviceProp_t properties;
  CHECK(hipGetDeviceProperties(&properties, 0));
  EXPECT(std::strcmp(properties.gcnArchName, "gfx942:sramecc+:xnack-") == 0);
  EXPECT(properties.multiProcessorCount == 304 && properties.warpSize == 64);
  EXPECT(properties.sharedMemPerBlock == 64 << 10 && properties.maxThreadsPerBlock == 1024);

  hipModule_t module;
  hipFunction_t add, multiply;
  CHECK(hipModuleLoad(&module, arguments[1]));
  CHECK(hipModuleGetFunction(&add, module, "add"));
  CHECK(hipModuleGetFunction(&multiply, module, "multiply"));
  int* device;
  CHECK(hipMalloc(reinterpret_cast<void**>(&device), bytes));
  std::vector<int> host(count);
  hipStream_t stream;
  CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));

  // By hand: 3, + 4, * 10, to the host.
  hipGraph_t graph;
  hipGraphNode_t fill_node, add_node, multiply_node, copy_node;
  CHECK(hipGraphCreate(&graph, 0));
  hipMemsetParams fill{};
  fill.dst = device;
  fill.elementSize = sizeof(int);
  fill.width = count;
  fill.height = 1;
  fill.pitch = bytes;
  fill.value = 3;
  CHECK(hipGraphAddMemsetNode(&fill_node, graph, nullptr, 0, &fill));
  int value = 4;
  void* kernel_arguments[] = {&device, &value};
  hipKernelNodeParams kernel{};
  kernel.func = add;
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(count);
  kernel.kernelParams = kernel_arguments;
  CHECK(hipGraphAddKernelNode(&add_node, graph, &fill_node, 1, &kernel));
  value = 10;
  kernel.func = multiply;
  CHECK(hipGraphAddKernelNode(&multiply_node, graph, &add_node, 1, &kernel));
  CHECK(hipGraphAddMemcpyNode1D(&copy_node, graph, &multiply_node, 1, host.data(), device, bytes, hipMemcpyDeviceToHost));
  hipGraphExec_t executable;
  CHECK(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
  CHECK(hipGraphLaunch(executable, stream));
  CHECK(hipStreamSynchronize(stream));
  EXPECT(all_are(host, 70));

  // Captured: 5, * 10, to the host.
  CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  CHECK(hipMemsetD32Async(device, 5, count, stream));
  CHECK(hipModuleLaunchKernel(multiply, 1, 1, 1, count, 1, 1, 0, stream, kernel_arguments, nullptr));
  hipMemcpy3DParms copy{};
  copy.srcPtr = make_hipPitchedPtr(device, row_bytes, row_bytes, rows / 2);
  copy.dstPtr = make_hipPitchedPtr(host.data(), row_bytes, row_bytes, rows / 2);
  copy.extent = make_hipExtent(row_bytes, rows / 2, 2);
  copy.kind = hipMemcpyDeviceToHost;
  CHECK(hipMemcpy3DAsync(&copy, stream));
  hipGraph_t captured;
  hipGraphExec_t captured_executable;
  CHECK(hipStreamEndCapture(stream, &captured));
  CHECK(hipGraphInstantiateWithFlags(&captured_executable, captured, 0));
  CHECK(hipGraphLaunch(captured_executable, stream));
  CHECK(hipStreamSynchronize(stream));
  EXPECT(all_are(host, 50));

  size_t node_count = 0;
  CHECK(hipGraphGetNodes(captured, nullptr, &node_count));
  EXPECT(node_count == 3);
  std::vector<hipGraphNode_t> nodes(node_count);
  CHECK(hipGraphGetNodes(captured, nodes.data(), &node_count));
  hipMemsetParams found_fill;
  CHECK(hipGraphMemsetNodeGetParams(nodes[0], &found_fill));
  EXPECT(found_fill.dst == device && found_fill.value == 5);
  EXPECT(found_fill.width == count && found_fill.elementSize == sizeof(int));
  hipKernelNodeParams found_kernel;
  CHECK(hipGraphKernelNodeGetParams(nodes[1], &found_kernel));
  EXPECT(found_kernel.func == multiply && found_kernel.blockDim.x == count && found_kernel.gridDim.x == 1);
  EXPECT(*static_cast<int*>(found_kernel.kernelParams[1]) == 10);
  hipMemcpy3DParms found_copy;
  CHECK(hipGraphMemcpyNodeGetParams(nodes[2], &found_copy));
  EXPECT(found_copy.srcPtr.ptr == device && found_copy.srcPtr.pitch == row_bytes && found_copy.srcPtr.ysize == rows / 2);
  EXPECT(found_copy.dstPtr.ptr == host.data() && found_copy.extent.height == rows / 2 && found_copy.extent.depth == 2);

  CHECK(hipGraphExecDestroy(executable));
  CHECK(hipGraphExecDestroy(captured_executable));
  CHECK(hipGraphDestroy(graph));
  CHECK(hipGraphDestroy(captured));
  CHECK(hipStreamDestroy(stream));
  CHECK(hipFree(device));
  CHECK(hipModuleUnload(module));
  std::puts("fine");
}
