// The calls of the HIP API that the simulated device does not have. Each exists, so that programs link and bindings
// load, and says which it was. The names are those of HIP 6's libamdhip64, and of later ones that AMD's Python bindings
// look up.
#include "abi.h"
#include "status.h"

// clang-format off
#define UNSUPPORTED_CALLS(X)                                                                                    \
  X(hipArray3DCreate) X(hipArray3DGetDescriptor) X(hipArrayCreate) X(hipArrayDestroy) X(hipArrayGetDescriptor)  \
  X(hipArrayGetInfo) X(hipBindTexture) X(hipBindTexture2D) X(hipBindTextureToArray)                             \
  X(hipBindTextureToMipmappedArray) X(hipConfigureCall) X(hipCreateSurfaceObject) X(hipCreateTextureObject)     \
  X(hipCtxDisablePeerAccess) X(hipCtxEnablePeerAccess) X(hipCtxGetApiVersion) X(hipCtxGetCacheConfig)           \
  X(hipCtxGetSharedMemConfig) X(hipCtxSetCacheConfig) X(hipCtxSetSharedMemConfig) X(hipDestroyExternalMemory)   \
  X(hipDestroyExternalSemaphore) X(hipDestroySurfaceObject) X(hipDestroyTextureObject)                          \
  X(hipDevResourceGenerateDesc) X(hipDevSmResourceSplit) X(hipDevSmResourceSplitByCount)                        \
  X(hipDeviceDisablePeerAccess) X(hipDeviceEnablePeerAccess) X(hipDeviceGetDefaultMemPool)                      \
  X(hipDeviceGetDevResource) X(hipDeviceGetExecutionCtx) X(hipDeviceGetGraphMemAttribute)                       \
  X(hipDeviceGetMemPool) X(hipDeviceGetP2PAttribute) X(hipDeviceGetTexture1DLinearMaxWidth)                     \
  X(hipDeviceGraphMemTrim) X(hipDevicePrimaryCtxReset) X(hipDevicePrimaryCtxSetFlags)                           \
  X(hipDeviceSetGraphMemAttribute) X(hipDeviceSetMemPool) X(hipDrvGraphAddMemFreeNode)                          \
  X(hipDrvGraphAddMemcpyNode) X(hipDrvGraphAddMemsetNode) X(hipDrvGraphExecMemcpyNodeSetParams)                 \
  X(hipDrvGraphExecMemsetNodeSetParams) X(hipDrvGraphMemcpyNodeGetParams) X(hipDrvGraphMemcpyNodeSetParams)     \
  X(hipDrvLaunchKernelEx) X(hipDrvMemDiscardAndPrefetchBatchAsync) X(hipDrvMemDiscardBatchAsync)                \
  X(hipDrvMemcpy3D) X(hipDrvMemcpy3DAsync) X(hipDrvPointerGetAttributes) X(hipEventRecordWithFlags)             \
  X(hipExecutionCtxDestroy) X(hipExecutionCtxGetDevResource) X(hipExecutionCtxGetDevice)                        \
  X(hipExecutionCtxGetId) X(hipExecutionCtxRecordEvent) X(hipExecutionCtxStreamCreate)                          \
  X(hipExecutionCtxSynchronize) X(hipExecutionCtxWaitEvent) X(hipExtDisableLogging) X(hipExtEnableLogging)      \
  X(hipExtGetLinkTypeAndHopCount) X(hipExtLaunchMultiKernelMultiDevice) X(hipExtSetLoggingParams)               \
  X(hipExtStreamCreateWithCUMask) X(hipExtStreamGetCUMask) X(hipExternalMemoryGetMappedBuffer)                  \
  X(hipExternalMemoryGetMappedMipmappedArray) X(hipFreeArray) X(hipFreeMipmappedArray) X(hipGLGetDevices)       \
  X(hipGetChannelDesc) X(hipGetDriverEntryPoint) X(hipGetDriverEntryPoint_spt) X(hipGetMipmappedArrayLevel)     \
  X(hipGetProcAddress) X(hipGetProcAddress_spt) X(hipGetTextureAlignmentOffset)                                 \
  X(hipGetTextureObjectResourceDesc) X(hipGetTextureObjectResourceViewDesc) X(hipGetTextureObjectTextureDesc)   \
  X(hipGetTextureReference) X(hipGraphAddBatchMemOpNode) X(hipGraphAddChildGraphNode)                           \
  X(hipGraphAddDependencies) X(hipGraphAddEmptyNode) X(hipGraphAddEventRecordNode) X(hipGraphAddEventWaitNode)  \
  X(hipGraphAddExternalSemaphoresSignalNode) X(hipGraphAddExternalSemaphoresWaitNode) X(hipGraphAddHostNode)    \
  X(hipGraphAddKernelNode) X(hipGraphAddMemAllocNode) X(hipGraphAddMemFreeNode) X(hipGraphAddMemcpyNode)        \
  X(hipGraphAddMemcpyNode1D) X(hipGraphAddMemcpyNodeFromSymbol) X(hipGraphAddMemcpyNodeToSymbol)                \
  X(hipGraphAddMemsetNode) X(hipGraphAddNode) X(hipGraphBatchMemOpNodeGetParams)                                \
  X(hipGraphBatchMemOpNodeSetParams) X(hipGraphChildGraphNodeGetGraph) X(hipGraphClone) X(hipGraphCreate)       \
  X(hipGraphDebugDotPrint) X(hipGraphDestroy) X(hipGraphDestroyNode) X(hipGraphEventRecordNodeGetEvent)         \
  X(hipGraphEventRecordNodeSetEvent) X(hipGraphEventWaitNodeGetEvent) X(hipGraphEventWaitNodeSetEvent)          \
  X(hipGraphExecBatchMemOpNodeSetParams) X(hipGraphExecChildGraphNodeSetParams) X(hipGraphExecDestroy)          \
  X(hipGraphExecEventRecordNodeSetEvent) X(hipGraphExecEventWaitNodeSetEvent)                                   \
  X(hipGraphExecExternalSemaphoresSignalNodeSetParams) X(hipGraphExecExternalSemaphoresWaitNodeSetParams)       \
  X(hipGraphExecGetFlags) X(hipGraphExecHostNodeSetParams) X(hipGraphExecKernelNodeSetParams)                   \
  X(hipGraphExecMemcpyNodeSetParams) X(hipGraphExecMemcpyNodeSetParams1D)                                       \
  X(hipGraphExecMemcpyNodeSetParamsFromSymbol) X(hipGraphExecMemcpyNodeSetParamsToSymbol)                       \
  X(hipGraphExecMemsetNodeSetParams) X(hipGraphExecNodeSetParams) X(hipGraphExecUpdate)                         \
  X(hipGraphExternalSemaphoresSignalNodeGetParams) X(hipGraphExternalSemaphoresSignalNodeSetParams)             \
  X(hipGraphExternalSemaphoresWaitNodeGetParams) X(hipGraphExternalSemaphoresWaitNodeSetParams)                 \
  X(hipGraphGetEdges) X(hipGraphGetNodes) X(hipGraphGetRootNodes) X(hipGraphHostNodeGetParams)                  \
  X(hipGraphHostNodeSetParams) X(hipGraphInstantiate) X(hipGraphInstantiateWithFlags)                           \
  X(hipGraphInstantiateWithParams) X(hipGraphKernelNodeCopyAttributes) X(hipGraphKernelNodeGetAttribute)        \
  X(hipGraphKernelNodeGetParams) X(hipGraphKernelNodeSetAttribute) X(hipGraphKernelNodeSetParams)               \
  X(hipGraphLaunch) X(hipGraphLaunch_spt) X(hipGraphMemAllocNodeGetParams) X(hipGraphMemFreeNodeGetParams)      \
  X(hipGraphMemcpyNodeGetParams) X(hipGraphMemcpyNodeSetParams) X(hipGraphMemcpyNodeSetParams1D)                \
  X(hipGraphMemcpyNodeSetParamsFromSymbol) X(hipGraphMemcpyNodeSetParamsToSymbol)                               \
  X(hipGraphMemsetNodeGetParams) X(hipGraphMemsetNodeSetParams) X(hipGraphNodeFindInClone)                      \
  X(hipGraphNodeGetDependencies) X(hipGraphNodeGetDependentNodes) X(hipGraphNodeGetEnabled)                     \
  X(hipGraphNodeGetType) X(hipGraphNodeSetEnabled) X(hipGraphNodeSetParams) X(hipGraphReleaseUserObject)        \
  X(hipGraphRemoveDependencies) X(hipGraphRetainUserObject) X(hipGraphUpload) X(hipGraphicsGLRegisterBuffer)    \
  X(hipGraphicsGLRegisterImage) X(hipGraphicsMapResources) X(hipGraphicsResourceGetMappedPointer)               \
  X(hipGraphicsSubResourceGetMappedArray) X(hipGraphicsUnmapResources) X(hipGraphicsUnregisterResource)         \
  X(hipGreenCtxCreate) X(hipHccModuleLaunchKernel) X(hipImportExternalMemory) X(hipImportExternalSemaphore)     \
  X(hipIpcCloseMemHandle) X(hipIpcGetEventHandle) X(hipIpcGetMemHandle) X(hipIpcOpenEventHandle)                \
  X(hipIpcOpenMemHandle) X(hipKernelGetAttribute) X(hipKernelGetFunction) X(hipKernelGetLibrary)                \
  X(hipKernelGetName) X(hipKernelGetParamInfo) X(hipKernelSetAttribute) X(hipLaunchByPtr)                       \
  X(hipLaunchCooperativeKernel) X(hipLaunchCooperativeKernelMultiDevice) X(hipLaunchCooperativeKernel_spt)      \
  X(hipLaunchKernelExC) X(hipLibraryEnumerateKernels) X(hipLibraryGetGlobal) X(hipLibraryGetKernel)             \
  X(hipLibraryGetKernelCount) X(hipLibraryGetManaged) X(hipLibraryLoadData) X(hipLibraryLoadFromFile)           \
  X(hipLibraryUnload) X(hipLinkAddData) X(hipLinkAddFile) X(hipLinkComplete) X(hipLinkCreate) X(hipLinkDestroy) \
  X(hipMalloc3DArray) X(hipMallocArray) X(hipMallocFromPoolAsync) X(hipMallocMipmappedArray)                    \
  X(hipMemAddressFree) X(hipMemAddressReserve) X(hipMemAdvise_v2) X(hipMemCreate)                               \
  X(hipMemDiscardAndPrefetchBatchAsync) X(hipMemDiscardBatchAsync) X(hipMemExportToShareableHandle)             \
  X(hipMemGetAccess) X(hipMemGetAllocationGranularity) X(hipMemGetAllocationPropertiesFromHandle)               \
  X(hipMemGetDefaultMemPool) X(hipMemGetHandleForAddressRange) X(hipMemGetMemPool)                              \
  X(hipMemImportFromShareableHandle) X(hipMemMap) X(hipMemMapArrayAsync) X(hipMemPoolCreate)                    \
  X(hipMemPoolDestroy) X(hipMemPoolExportPointer) X(hipMemPoolExportToShareableHandle) X(hipMemPoolGetAccess)   \
  X(hipMemPoolGetAttribute) X(hipMemPoolImportFromShareableHandle) X(hipMemPoolImportPointer)                   \
  X(hipMemPoolSetAccess) X(hipMemPoolSetAttribute) X(hipMemPoolTrimTo) X(hipMemPrefetchAsync_v2)                \
  X(hipMemPrefetchBatchAsync) X(hipMemRangeGetAttribute) X(hipMemRangeGetAttributes) X(hipMemRelease)           \
  X(hipMemRetainAllocationHandle) X(hipMemSetAccess) X(hipMemSetMemPool) X(hipMemUnmap)                         \
  X(hipMemcpy2DArrayToArray) X(hipMemcpy2DFromArray) X(hipMemcpy2DFromArrayAsync)                               \
  X(hipMemcpy2DFromArrayAsync_spt) X(hipMemcpy2DFromArray_spt) X(hipMemcpy2DToArray) X(hipMemcpy2DToArrayAsync) \
  X(hipMemcpy2DToArrayAsync_spt) X(hipMemcpy2DToArray_spt) X(hipMemcpy3DBatchAsync) X(hipMemcpy3DPeer)          \
  X(hipMemcpy3DPeerAsync) X(hipMemcpyAtoA) X(hipMemcpyAtoD) X(hipMemcpyAtoH) X(hipMemcpyAtoHAsync)              \
  X(hipMemcpyBatchAsync) X(hipMemcpyDtoA) X(hipMemcpyFromArray) X(hipMemcpyFromArray_spt) X(hipMemcpyHtoA)      \
  X(hipMemcpyHtoAAsync) X(hipMemcpyToArray) X(hipMemsetD2D16) X(hipMemsetD2D16Async) X(hipMemsetD2D32)          \
  X(hipMemsetD2D32Async) X(hipMemsetD2D8) X(hipMemsetD2D8Async) X(hipMipmappedArrayCreate)                      \
  X(hipMipmappedArrayDestroy) X(hipMipmappedArrayGetLevel) X(hipMipmappedArrayGetMemoryRequirements)            \
  X(hipModuleGetFunctionCount) X(hipModuleGetTexRef) X(hipModuleLaunchCooperativeKernel)                        \
  X(hipModuleLaunchCooperativeKernelMultiDevice) X(hipModuleLoadFatBinary)                                      \
  X(hipOccupancyAvailableDynamicSMemPerBlock) X(hipOccupancyMaxActiveClusters)                                  \
  X(hipOccupancyMaxPotentialClusterSize) X(hipPointerGetAttribute) X(hipPointerSetAttribute)                    \
  X(hipProfilerStart) X(hipProfilerStop) X(hipRegisterTracerCallback) X(hipSetupArgument)                       \
  X(hipSignalExternalSemaphoresAsync) X(hipStreamAttachMemAsync) X(hipStreamBatchMemOp)                         \
  X(hipStreamBeginCapture) X(hipStreamBeginCaptureToGraph) X(hipStreamBeginCapture_spt)                         \
  X(hipStreamCopyAttributes) X(hipStreamEndCapture) X(hipStreamEndCapture_spt) X(hipStreamGetAttribute)         \
  X(hipStreamGetCaptureInfo_v2) X(hipStreamGetCaptureInfo_v2_spt) X(hipStreamGetDevResource) X(hipStreamGetId)  \
  X(hipStreamSetAttribute) X(hipStreamUpdateCaptureDependencies) X(hipStreamWaitValue32)                        \
  X(hipStreamWaitValue64) X(hipStreamWriteValue32) X(hipStreamWriteValue64) X(hipTexObjectCreate)               \
  X(hipTexObjectDestroy) X(hipTexObjectGetResourceDesc) X(hipTexObjectGetResourceViewDesc)                      \
  X(hipTexObjectGetTextureDesc) X(hipTexRefGetAddress) X(hipTexRefGetAddressMode) X(hipTexRefGetArray)          \
  X(hipTexRefGetBorderColor) X(hipTexRefGetFilterMode) X(hipTexRefGetFlags) X(hipTexRefGetFormat)               \
  X(hipTexRefGetMaxAnisotropy) X(hipTexRefGetMipMappedArray) X(hipTexRefGetMipmapFilterMode)                    \
  X(hipTexRefGetMipmapLevelBias) X(hipTexRefGetMipmapLevelClamp) X(hipTexRefSetAddress)                         \
  X(hipTexRefSetAddress2D) X(hipTexRefSetAddressMode) X(hipTexRefSetArray) X(hipTexRefSetBorderColor)           \
  X(hipTexRefSetFilterMode) X(hipTexRefSetFlags) X(hipTexRefSetFormat) X(hipTexRefSetMaxAnisotropy)             \
  X(hipTexRefSetMipmapFilterMode) X(hipTexRefSetMipmapLevelBias) X(hipTexRefSetMipmapLevelClamp)                \
  X(hipTexRefSetMipmappedArray) X(hipThreadExchangeStreamCaptureMode) X(hipUnbindTexture)                       \
  X(hipUserObjectCreate) X(hipUserObjectRelease) X(hipUserObjectRetain) X(hipWaitExternalSemaphoresAsync)
// clang-format on

// Whatever the parameters are: in the x86-64 calling convention the caller alone takes care of them.
#define HIP_UNSUPPORTED(name) \
  HIP_API hipError_t name() { return set_last_error(hipErrorNotSupported, #name, "the simulated MI300X lacks it"); }
UNSUPPORTED_CALLS(HIP_UNSUPPORTED)
