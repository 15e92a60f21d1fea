#include "device.h"

#include <climits>
#include <cstdio>
#include <cstring>

#include "../base/abi.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "../memory/memory_map.h"
#include "../streams/capture.h"

namespace {

constexpr int kHipVersion = 60300000;  // 6.3.0, the API that this runtime follows
constexpr int kPciBus = 1;
constexpr char kPciBusId[] = "0000:01:00.0";

hipDeviceArch_t architecture() {
  hipDeviceArch_t arch = {};
  arch.hasGlobalInt32Atomics = 1;
  arch.hasGlobalFloatAtomicExch = 1;
  arch.hasSharedInt32Atomics = 1;
  arch.hasSharedFloatAtomicExch = 1;
  arch.hasFloatAtomicAdd = 1;
  arch.hasGlobalInt64Atomics = 1;
  arch.hasSharedInt64Atomics = 1;
  arch.hasDoubles = 1;
  arch.hasWarpVote = 1;
  arch.hasWarpBallot = 1;
  arch.hasWarpShuffle = 1;
  arch.hasThreadFenceSystem = 1;
  arch.has3dGrid = 1;
  return arch;
}

// Fills in the properties that both layouts have under the same name.
template <class Properties>
Properties common_properties() {
  Properties p = {};
  std::strcpy(p.name, device::kName);
  std::strcpy(p.gcnArchName, device::kTarget);
  p.totalGlobalMem = device::kMemoryBytes;
  p.sharedMemPerBlock = device::kLdsBytes;
  p.maxSharedMemoryPerMultiProcessor = device::kLdsBytes;
  p.regsPerBlock = device::kRegistersPerLane * device::kWaveSize * device::kSimdsPerComputeUnit;
  p.warpSize = device::kWaveSize;
  p.memPitch = INT_MAX;
  p.maxThreadsPerBlock = device::kMaxBlockThreads;
  for (int& extent : p.maxThreadsDim) extent = device::kMaxBlockThreads;
  p.maxGridSize[0] = INT_MAX;
  p.maxGridSize[1] = 65536;
  p.maxGridSize[2] = 65536;
  p.clockRate = 2100000;
  p.memoryClockRate = 1300000;
  p.memoryBusWidth = 8192;
  p.clockInstructionRate = 100000;
  p.totalConstMem = INT_MAX;
  p.major = 9;
  p.minor = 4;
  p.multiProcessorCount = device::kComputeUnits;
  p.l2CacheSize = 4 << 20;
  p.maxThreadsPerMultiProcessor = device::kMaxWavesPerComputeUnit * device::kWaveSize;
  p.arch = architecture();
  p.concurrentKernels = 1;
  p.cooperativeLaunch = 1;
  p.pciBusID = kPciBus;
  p.canMapHostMemory = 1;
  p.ECCEnabled = 1;
  p.isLargeBar = 1;
  p.managedMemory = 1;
  p.directManagedMemAccessFromHost = 1;
  p.concurrentManagedAccess = 1;
  p.textureAlignment = 256;
  p.texturePitchAlignment = 256;
  return p;
}

hipDeviceProp_tR0600 properties_r0600() {
  auto p = common_properties<hipDeviceProp_tR0600>();
  std::memcpy(p.uuid.bytes, "simulated-MI300X", sizeof p.uuid.bytes);
  p.sharedMemPerMultiprocessor = device::kLdsBytes;
  p.sharedMemPerBlockOptin = device::kLdsBytes;
  p.regsPerMultiprocessor = p.regsPerBlock;
  p.asyncEngineCount = 8;
  p.deviceOverlap = 1;
  p.unifiedAddressing = 1;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = 1;
  p.localL1CacheSupported = 1;
  p.hostNativeAtomicSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.maxBlocksPerMultiProcessor = device::kMaxWavesPerComputeUnit;
  p.hostRegisterSupported = 1;
  p.memoryPoolsSupported = 1;
  p.surfaceAlignment = 256;
  return p;
}

hipDeviceProp_tR0000 properties_r0000() {
  auto p = common_properties<hipDeviceProp_tR0000>();
  p.gcnArch = 942;
  return p;
}

int attribute(int selector) {
  const hipDeviceProp_tR0600 p = properties_r0600();
  switch (selector) {
    case hipDeviceAttributeEccEnabled: return p.ECCEnabled;
    case hipDeviceAttributeAsyncEngineCount: return p.asyncEngineCount;
    case hipDeviceAttributeCanMapHostMemory: return p.canMapHostMemory;
    case hipDeviceAttributeCanUseHostPointerForRegisteredMem: return p.canUseHostPointerForRegisteredMem;
    case hipDeviceAttributeClockRate: return p.clockRate;
    case hipDeviceAttributeComputeMode: return p.computeMode;
    case hipDeviceAttributeComputePreemptionSupported: return p.computePreemptionSupported;
    case hipDeviceAttributeConcurrentKernels: return p.concurrentKernels;
    case hipDeviceAttributeConcurrentManagedAccess: return p.concurrentManagedAccess;
    case hipDeviceAttributeCooperativeLaunch: return p.cooperativeLaunch;
    case hipDeviceAttributeCooperativeMultiDeviceLaunch: return p.cooperativeMultiDeviceLaunch;
    case hipDeviceAttributeDeviceOverlap: return p.deviceOverlap;
    case hipDeviceAttributeDirectManagedMemAccessFromHost: return p.directManagedMemAccessFromHost;
    case hipDeviceAttributeGlobalL1CacheSupported: return p.globalL1CacheSupported;
    case hipDeviceAttributeHostNativeAtomicSupported: return p.hostNativeAtomicSupported;
    case hipDeviceAttributeIntegrated: return p.integrated;
    case hipDeviceAttributeIsMultiGpuBoard: return p.isMultiGpuBoard;
    case hipDeviceAttributeKernelExecTimeout: return p.kernelExecTimeoutEnabled;
    case hipDeviceAttributeL2CacheSize: return p.l2CacheSize;
    case hipDeviceAttributeLocalL1CacheSupported: return p.localL1CacheSupported;
    case hipDeviceAttributeComputeCapabilityMajor: return p.major;
    case hipDeviceAttributeManagedMemory: return p.managedMemory;
    case hipDeviceAttributeMaxBlocksPerMultiProcessor: return p.maxBlocksPerMultiProcessor;
    case hipDeviceAttributeMaxBlockDimX: return p.maxThreadsDim[0];
    case hipDeviceAttributeMaxBlockDimY: return p.maxThreadsDim[1];
    case hipDeviceAttributeMaxBlockDimZ: return p.maxThreadsDim[2];
    case hipDeviceAttributeMaxGridDimX: return p.maxGridSize[0];
    case hipDeviceAttributeMaxGridDimY: return p.maxGridSize[1];
    case hipDeviceAttributeMaxGridDimZ: return p.maxGridSize[2];
    case hipDeviceAttributeMaxThreadsDim: return p.maxThreadsDim[0];
    case hipDeviceAttributeMaxThreadsPerBlock: return p.maxThreadsPerBlock;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor: return p.maxThreadsPerMultiProcessor;
    case hipDeviceAttributeMaxPitch: return static_cast<int>(p.memPitch);
    case hipDeviceAttributeMemoryBusWidth: return p.memoryBusWidth;
    case hipDeviceAttributeMemoryClockRate: return p.memoryClockRate;
    case hipDeviceAttributeComputeCapabilityMinor: return p.minor;
    case hipDeviceAttributeMultiGpuBoardGroupID: return p.multiGpuBoardGroupID;
    case hipDeviceAttributeMultiprocessorCount: return p.multiProcessorCount;
    case hipDeviceAttributePageableMemoryAccess: return p.pageableMemoryAccess;
    case hipDeviceAttributePageableMemoryAccessUsesHostPageTables: return p.pageableMemoryAccessUsesHostPageTables;
    case hipDeviceAttributePciBusId: return p.pciBusID;
    case hipDeviceAttributePciDeviceId: return p.pciDeviceID;
    case hipDeviceAttributePciDomainID: return p.pciDomainID;
    case hipDeviceAttributeMaxRegistersPerBlock: return p.regsPerBlock;
    case hipDeviceAttributeMaxRegistersPerMultiprocessor: return p.regsPerMultiprocessor;
    case hipDeviceAttributeReservedSharedMemPerBlock: return static_cast<int>(p.reservedSharedMemPerBlock);
    case hipDeviceAttributeMaxSharedMemoryPerBlock: return static_cast<int>(p.sharedMemPerBlock);
    case hipDeviceAttributeSharedMemPerBlockOptin: return static_cast<int>(p.sharedMemPerBlockOptin);
    case hipDeviceAttributeSharedMemPerMultiprocessor: return static_cast<int>(p.sharedMemPerMultiprocessor);
    case hipDeviceAttributeStreamPrioritiesSupported: return p.streamPrioritiesSupported;
    case hipDeviceAttributeTccDriver: return p.tccDriver;
    case hipDeviceAttributeTotalConstantMemory: return static_cast<int>(p.totalConstMem);
    case hipDeviceAttributeTotalGlobalMem: return INT_MAX;  // the result is an int: as much of it as fits
    case hipDeviceAttributeUnifiedAddressing: return p.unifiedAddressing;
    case hipDeviceAttributeWarpSize: return p.warpSize;
    case hipDeviceAttributeMemoryPoolsSupported: return p.memoryPoolsSupported;
    case hipDeviceAttributeVirtualMemoryManagementSupported: return 0;
    case hipDeviceAttributeHostRegisterSupported: return p.hostRegisterSupported;
    case hipDeviceAttributeClockInstructionRate: return p.clockInstructionRate;
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor: return device::kLdsBytes;
    case hipDeviceAttributeIsLargeBar: return p.isLargeBar;
    case hipDeviceAttributeAsicRevision: return p.asicRevision;
    case hipDeviceAttributeCanUseStreamWaitValue: return 0;
    case hipDeviceAttributeImageSupport: return 0;
    case hipDeviceAttributePhysicalMultiProcessorCount: return p.multiProcessorCount;
    case hipDeviceAttributeFineGrainSupport: return 1;
    case hipDeviceAttributeWallClockRate: return p.clockInstructionRate;
    case hipDeviceAttributeNumberOfXccs: return device::kXcds;
  }
  fail(hipErrorInvalidValue, "device attribute %d is unknown or has no meaning for %s", selector, device::kName);
}

void copy_text(Out<char> destination, int capacity, const char* text) {
  if (capacity <= 0) fail(hipErrorInvalidValue, "the output buffer has a length of %d", capacity);
  give_text(destination, static_cast<size_t>(capacity), text, "the output buffer");
}

}  // namespace

void require_device(int number) {
  if (number != 0) fail(hipErrorInvalidDevice, "device %d does not exist: the simulator has one device, 0", number);
}

HIP_API hipError_t hipInit(unsigned flags) {
  return api(__func__, [&] {
    if (flags != 0) fail(hipErrorInvalidValue, "flags must be 0, not %u", flags);
  });
}

HIP_API hipError_t hipDriverGetVersion(Out<int> version) {
  return api_giving(__func__, version, "version", [&] { return kHipVersion; });
}

HIP_API hipError_t hipRuntimeGetVersion(Out<int> version) {
  return api_giving(__func__, version, "version", [&] { return kHipVersion; });
}

HIP_API hipError_t hipGetDeviceCount(Out<int> count) {
  return api_giving(__func__, count, "count", [&] { return 1; });
}

HIP_API hipError_t hipGetDevice(Out<int> number) {
  return api_giving(__func__, number, "device", [&] { return 0; });
}

HIP_API hipError_t hipSetDevice(int number) {
  return api(__func__, [&] { require_device(number); });
}

HIP_API hipError_t hipSetValidDevices(In<int> numbers, int count) {
  return api(__func__, [&] {
    if (count < 0 || count > 1) fail(hipErrorInvalidValue, "%d devices: the simulator has one device, 0", count);
    for (const int number : numbers.read(static_cast<size_t>(count), "the device list")) require_device(number);
  });
}

// These flags only matter to host threads that wait, which never happens here.
HIP_API hipError_t hipSetDeviceFlags(unsigned) {
  return api(__func__, [] {});
}

HIP_API hipError_t hipGetDeviceFlags(Out<unsigned> flags) {
  return api_giving(__func__, flags, "flags", [&] { return 0; });
}

HIP_API hipError_t hipDeviceGet(Out<hipDevice_t> handle, int number) {
  return api_giving(__func__, handle, "device", [&] {
    require_device(number);
    return number;
  });
}

HIP_API hipError_t hipGetDevicePropertiesR0600(Out<hipDeviceProp_tR0600> properties, int number) {
  return api_giving(__func__, properties, "properties", [&] {
    require_device(number);
    return properties_r0600();
  });
}

HIP_API hipError_t hipGetDevicePropertiesR0000(Out<hipDeviceProp_tR0000> properties, int number) {
  return api_giving(__func__, properties, "properties", [&] {
    require_device(number);
    return properties_r0000();
  });
}

// For programs built against HIP 5 and older, whose header doesn't add a suffix.
HIP_API hipError_t hipGetDeviceProperties(Out<hipDeviceProp_tR0000> properties, int number) {
  return hipGetDevicePropertiesR0000(properties, number);
}

// There is only one device to choose.
HIP_API hipError_t hipChooseDevice(Out<int> number, In<hipDeviceProp_tR0000> wishes) {
  return api_giving(__func__, number, "device", [&] {
    wishes.read("properties");
    return 0;
  });
}

HIP_API hipError_t hipChooseDeviceR0000(Out<int> number, In<hipDeviceProp_tR0000> wishes) {
  return hipChooseDevice(number, wishes);
}

HIP_API hipError_t hipChooseDeviceR0600(Out<int> number, In<hipDeviceProp_tR0600> wishes) {
  return api_giving(__func__, number, "device", [&] {
    wishes.read("properties");
    return 0;
  });
}

HIP_API hipError_t hipDeviceGetAttribute(Out<int> value, hipDeviceAttribute_t selector, int number) {
  return api_giving(__func__, value, "value", [&] {
    require_device(number);
    return attribute(selector);
  });
}

HIP_API hipError_t hipDeviceGetName(Out<char> name, int capacity, hipDevice_t number) {
  return api(__func__, [&] {
    require_device(number);
    copy_text(name, capacity, device::kName);
  });
}

HIP_API hipError_t hipDeviceGetUuid(Out<hipUUID> uuid, hipDevice_t number) {
  return api_giving(__func__, uuid, "uuid", [&] {
    require_device(number);
    return properties_r0600().uuid;
  });
}

HIP_API hipError_t hipDeviceGetPCIBusId(Out<char> text, int capacity, int number) {
  return api(__func__, [&] {
    require_device(number);
    copy_text(text, capacity, kPciBusId);
  });
}

HIP_API hipError_t hipDeviceGetByPCIBusId(Out<int> number, Text text) {
  return api_giving(__func__, number, "device", [&] {
    const std::string id = text.read("the PCI bus id");
    if (id != kPciBusId) fail(hipErrorInvalidValue, "no device at %.32s", id.c_str());
    return 0;
  });
}

HIP_API hipError_t hipDeviceComputeCapability(Out<int> major, Out<int> minor, hipDevice_t number) {
  return api(__func__, [&] {
    require(major, "major");
    require(minor, "minor");
    require_device(number);
    major.give(properties_r0600().major);
    minor.give(properties_r0600().minor);
  });
}

HIP_API hipError_t hipDeviceTotalMem(Out<size_t> bytes, hipDevice_t number) {
  return api_giving(__func__, bytes, "bytes", [&] {
    require_device(number);
    return device::kMemoryBytes;
  });
}

// Launches run to their end before they return, so there is nothing to wait for.
HIP_API hipError_t hipDeviceSynchronize() {
  return api(__func__, [] { forbid_device_wait_while_capturing(); });
}

HIP_API hipError_t hipDeviceReset() {
  return api(__func__, [] {
    forbid_device_wait_while_capturing();
    MemoryMap::instance().release_all();
  });
}

HIP_API hipError_t hipDeviceGetStreamPriorityRange(Out<int> least, Out<int> greatest) {
  return api(__func__, [&] {
    allow(least, "the least priority");
    allow(greatest, "the greatest priority");
    least.give_if_wanted(1);
    greatest.give_if_wanted(-1);
  });
}

HIP_API hipError_t hipDeviceCanAccessPeer(Out<int> can, int number, int peer) {
  return api(__func__, [&] {
    require(can, "canAccessPeer");
    require_device(number);
    require_device(peer);
    can.give(0);  // a device is not its own peer
  });
}

HIP_API hipError_t hipDeviceSetCacheConfig(int) {
  return api(__func__, [] {});  // AMD hardware ignores the hint
}

HIP_API hipError_t hipDeviceGetCacheConfig(Out<int> config) {
  return api_giving(__func__, config, "config", [&] { return 0; });
}

HIP_API hipError_t hipDeviceSetSharedMemConfig(int) {
  return api(__func__, [] {});  // AMD hardware ignores the hint
}

HIP_API hipError_t hipDeviceGetSharedMemConfig(Out<int> config) {
  return api_giving(__func__, config, "config", [&] { return 0; });
}
