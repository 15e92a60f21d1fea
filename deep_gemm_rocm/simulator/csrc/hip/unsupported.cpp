// HIP calls that the simulated device doesn't support. They exist so that programs link and bindings load, and fail
// with a message that names the call. The names are those of HIP 6's libamdhip64, and of later ones that AMD's Python
// bindings look up.
#include "base/abi.h"
#include "base/status.h"

// clang-format off
#define UNSUPPORTED_CALLS(X)                                                                                          \
  X(hipArray3DCreate) X(hipArray3DGetDescriptor) X(hipArrayCreate) X(hipArrayDestroy) X(hipArrayGetDescriptor)        \
  X(hipArrayGetInfo) X(hipBindTexture) X(hipBindTexture2D) X(hipBindTextureToArray) X(hipBindTextureToMipmappedArray) \
  X(hipConfigureCall) X(hipCreateSurfaceObject) X(hipCreateTextureObject) X(hipCtxDisablePeerAccess)                  \
  X(hipCtxEnablePeerAccess) X(hipCtxGetApiVersion) X(hipCtxGetCacheConfig) X(hipCtxGetSharedMemConfig)                \
  X(hipCtxSetCacheConfig) X(hipCtxSetSharedMemConfig) X(hipDestroyExternalMemory) X(hipDestroyExternalSemaphore)      \
  X(hipDestroySurfaceObject) X(hipDestroyTextureObject) X(hipDevResourceGenerateDesc) X(hipDevSmResourceSplit)        \
  X(hipDevSmResourceSplitByCount) X(hipDeviceDisablePeerAccess) X(hipDeviceEnablePeerAccess)                          \
  X(hipDeviceGetDevResource) X(hipDeviceGetExecutionCtx) X(hipDeviceGetGraphMemAttribute) X(hipDeviceGetP2PAttribute) \
  X(hipDeviceGetTexture1DLinearMaxWidth) X(hipDeviceGraphMemTrim) X(hipDevicePrimaryCtxReset)                         \
  X(hipDevicePrimaryCtxSetFlags) X(hipDeviceSetGraphMemAttribute) X(hipDrvGraphAddMemFreeNode)                        \
  X(hipDrvGraphAddMemcpyNode) X(hipDrvGraphExecMemcpyNodeSetParams) X(hipDrvGraphMemcpyNodeGetParams)                 \
  X(hipDrvGraphMemcpyNodeSetParams) X(hipDrvMemDiscardAndPrefetchBatchAsync) X(hipDrvMemDiscardBatchAsync)            \
  X(hipDrvMemcpy3D) X(hipDrvMemcpy3DAsync) X(hipExecutionCtxDestroy) X(hipExecutionCtxGetDevResource)                 \
  X(hipExecutionCtxGetDevice) X(hipExecutionCtxGetId) X(hipExecutionCtxRecordEvent) X(hipExecutionCtxStreamCreate)    \
  X(hipExecutionCtxSynchronize) X(hipExecutionCtxWaitEvent) X(hipExtDisableLogging) X(hipExtEnableLogging)            \
  X(hipExtGetLinkTypeAndHopCount) X(hipExtLaunchMultiKernelMultiDevice) X(hipExtSetLoggingParams)                     \
  X(hipExtStreamCreateWithCUMask) X(hipExtStreamGetCUMask) X(hipExternalMemoryGetMappedBuffer)                        \
  X(hipExternalMemoryGetMappedMipmappedArray) X(hipFreeArray) X(hipFreeMipmappedArray) X(hipGLGetDevices)             \
  X(hipGetChannelDesc) X(hipGetDriverEntryPoint) X(hipGetDriverEntryPoint_spt) X(hipGetMipmappedArrayLevel)           \
  X(hipGetTextureAlignmentOffset) X(hipGetTextureObjectResourceDesc) X(hipGetTextureObjectResourceViewDesc)           \
  X(hipGetTextureObjectTextureDesc) X(hipGetTextureReference) X(hipGraphAddBatchMemOpNode)                            \
  X(hipGraphAddExternalSemaphoresSignalNode) X(hipGraphAddExternalSemaphoresWaitNode) X(hipGraphAddMemAllocNode)      \
  X(hipGraphAddMemFreeNode) X(hipGraphBatchMemOpNodeGetParams) X(hipGraphBatchMemOpNodeSetParams)                     \
  X(hipGraphExecBatchMemOpNodeSetParams) X(hipGraphExecExternalSemaphoresSignalNodeSetParams)                         \
  X(hipGraphExecExternalSemaphoresWaitNodeSetParams) X(hipGraphExternalSemaphoresSignalNodeGetParams)                 \
  X(hipGraphExternalSemaphoresSignalNodeSetParams) X(hipGraphExternalSemaphoresWaitNodeGetParams)                     \
  X(hipGraphExternalSemaphoresWaitNodeSetParams) X(hipGraphKernelNodeCopyAttributes)                                  \
  X(hipGraphKernelNodeGetAttribute) X(hipGraphKernelNodeSetAttribute) X(hipGraphMemAllocNodeGetParams)                \
  X(hipGraphMemFreeNodeGetParams) X(hipGraphicsGLRegisterBuffer) X(hipGraphicsGLRegisterImage)                        \
  X(hipGraphicsMapResources) X(hipGraphicsResourceGetMappedPointer) X(hipGraphicsSubResourceGetMappedArray)           \
  X(hipGraphicsUnmapResources) X(hipGraphicsUnregisterResource) X(hipGreenCtxCreate) X(hipHccModuleLaunchKernel)      \
  X(hipImportExternalMemory) X(hipImportExternalSemaphore) X(hipIpcCloseMemHandle) X(hipIpcGetEventHandle)            \
  X(hipIpcGetMemHandle) X(hipIpcOpenEventHandle) X(hipIpcOpenMemHandle) X(hipKernelGetAttribute)                      \
  X(hipKernelGetFunction) X(hipKernelGetLibrary) X(hipKernelGetName) X(hipKernelGetParamInfo)                         \
  X(hipKernelSetAttribute) X(hipLaunchByPtr) X(hipLaunchCooperativeKernelMultiDevice) X(hipLibraryEnumerateKernels)   \
  X(hipLibraryGetGlobal) X(hipLibraryGetKernel) X(hipLibraryGetKernelCount) X(hipLibraryGetManaged)                   \
  X(hipLibraryLoadData) X(hipLibraryLoadFromFile) X(hipLibraryUnload) X(hipLinkAddData) X(hipLinkAddFile)             \
  X(hipLinkComplete) X(hipLinkCreate) X(hipLinkDestroy) X(hipMalloc3DArray) X(hipMallocArray)                         \
  X(hipMallocMipmappedArray) X(hipMemAddressFree) X(hipMemAddressReserve) X(hipMemAdvise_v2) X(hipMemCreate)          \
  X(hipMemDiscardAndPrefetchBatchAsync) X(hipMemDiscardBatchAsync) X(hipMemExportToShareableHandle)                   \
  X(hipMemGetAccess) X(hipMemGetAllocationGranularity) X(hipMemGetAllocationPropertiesFromHandle)                     \
  X(hipMemGetDefaultMemPool) X(hipMemGetHandleForAddressRange) X(hipMemGetMemPool) X(hipMemImportFromShareableHandle) \
  X(hipMemMap) X(hipMemMapArrayAsync) X(hipMemPoolExportPointer) X(hipMemPoolExportToShareableHandle)                 \
  X(hipMemPoolImportFromShareableHandle) X(hipMemPoolImportPointer) X(hipMemPrefetchAsync_v2)                         \
  X(hipMemPrefetchBatchAsync) X(hipMemRangeGetAttribute) X(hipMemRangeGetAttributes) X(hipMemRelease)                 \
  X(hipMemRetainAllocationHandle) X(hipMemSetAccess) X(hipMemSetMemPool) X(hipMemUnmap) X(hipMemcpy2DArrayToArray)    \
  X(hipMemcpy2DFromArray) X(hipMemcpy2DFromArrayAsync) X(hipMemcpy2DFromArrayAsync_spt) X(hipMemcpy2DFromArray_spt)   \
  X(hipMemcpy2DToArray) X(hipMemcpy2DToArrayAsync) X(hipMemcpy2DToArrayAsync_spt) X(hipMemcpy2DToArray_spt)           \
  X(hipMemcpy3DBatchAsync) X(hipMemcpy3DPeer) X(hipMemcpy3DPeerAsync) X(hipMemcpyAtoA) X(hipMemcpyAtoD)               \
  X(hipMemcpyAtoH) X(hipMemcpyAtoHAsync) X(hipMemcpyBatchAsync) X(hipMemcpyDtoA) X(hipMemcpyFromArray)                \
  X(hipMemcpyFromArray_spt) X(hipMemcpyHtoA) X(hipMemcpyHtoAAsync) X(hipMemcpyToArray) X(hipMipmappedArrayCreate)     \
  X(hipMipmappedArrayDestroy) X(hipMipmappedArrayGetLevel) X(hipMipmappedArrayGetMemoryRequirements)                  \
  X(hipModuleGetTexRef) X(hipModuleLaunchCooperativeKernelMultiDevice) X(hipOccupancyAvailableDynamicSMemPerBlock)    \
  X(hipOccupancyMaxActiveClusters) X(hipOccupancyMaxPotentialClusterSize) X(hipPointerSetAttribute)                   \
  X(hipProfilerStart) X(hipProfilerStop) X(hipRegisterTracerCallback) X(hipSetupArgument)                             \
  X(hipSignalExternalSemaphoresAsync) X(hipStreamAttachMemAsync) X(hipStreamBatchMemOp) X(hipStreamCopyAttributes)    \
  X(hipStreamGetAttribute) X(hipStreamGetDevResource) X(hipStreamSetAttribute) X(hipStreamWaitValue32)                \
  X(hipStreamWaitValue64) X(hipStreamWriteValue32) X(hipStreamWriteValue64) X(hipTexObjectCreate)                     \
  X(hipTexObjectDestroy) X(hipTexObjectGetResourceDesc) X(hipTexObjectGetResourceViewDesc)                            \
  X(hipTexObjectGetTextureDesc) X(hipTexRefGetAddress) X(hipTexRefGetAddressMode) X(hipTexRefGetArray)                \
  X(hipTexRefGetBorderColor) X(hipTexRefGetFilterMode) X(hipTexRefGetFlags) X(hipTexRefGetFormat)                     \
  X(hipTexRefGetMaxAnisotropy) X(hipTexRefGetMipMappedArray) X(hipTexRefGetMipmapFilterMode)                          \
  X(hipTexRefGetMipmapLevelBias) X(hipTexRefGetMipmapLevelClamp) X(hipTexRefSetAddress) X(hipTexRefSetAddress2D)      \
  X(hipTexRefSetAddressMode) X(hipTexRefSetArray) X(hipTexRefSetBorderColor) X(hipTexRefSetFilterMode)                \
  X(hipTexRefSetFlags) X(hipTexRefSetFormat) X(hipTexRefSetMaxAnisotropy) X(hipTexRefSetMipmapFilterMode)             \
  X(hipTexRefSetMipmapLevelBias) X(hipTexRefSetMipmapLevelClamp) X(hipTexRefSetMipmappedArray) X(hipUnbindTexture)    \
  X(hipWaitExternalSemaphoresAsync)
// clang-format on

// Works for any parameters, since in the x86-64 calling convention the caller cleans up the stack.
#define HIP_UNSUPPORTED(name) \
  HIP_API hipError_t name() { return set_last_error(hipErrorNotSupported, #name, "the simulated MI300X lacks it"); }
UNSUPPORTED_CALLS(HIP_UNSUPPORTED)
