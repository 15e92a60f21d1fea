// A HIP runtime as a machine with three GPUs shows it, two MI300X and a gfx90a, in front of the simulator, which runs the
// kernels. It is as strict as HIP may be: work runs as late as its stream allows, a kernel finds no memory but its
// device's, and whatever belongs to another device than the thread's current one is refused.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DEVICES = 3, MOST = 4096, KERNEL_NANOSECONDS = 5000 };
enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_READY = 600, UNSUPPORTED = 900 };
enum { NON_BLOCKING = 1, RELAXED = 2 };
static const char* const archs[DEVICES] = {"gfx942:sramecc+:xnack-", "gfx942:sramecc+:xnack-", "gfx90a"};
static const size_t memory_bytes = 4ull << 30;

typedef struct { unsigned x, y, z; } dim3;
typedef struct { int device, is_pending, is_capturing, status; double clock; void* simulated; } Stream;
typedef struct { int device; Stream* stream; double time; } Event;
typedef struct { void* address; size_t size; int device; } Block;

static pthread_mutex_t mutex;
static _Thread_local int current;
static Stream defaults[DEVICES];
static Stream* streams[MOST];
static Event* events[MOST];
static Block blocks[MOST];
static void* simulator;

__attribute__((constructor)) static void open_simulator(void) {
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&mutex, &recursive);
  simulator = dlopen(SIMULATOR, RTLD_NOW | RTLD_LOCAL);
  if (!simulator) abort();
}

static void* simulated(const char* name) { return dlsym(simulator, name); }
#define SIMULATED(name, types, ...) (((int(*) types)simulated(#name))(__VA_ARGS__))

static void unlock(int* unused) { pthread_mutex_unlock(&mutex); }
#define LOCKED __attribute__((cleanup(unlock))) int locked = pthread_mutex_lock(&mutex)

static int find(void* const* all, const void* one) {
  for (int i = 0; i < MOST; ++i)
    if (all[i] == one) return i;
  return -1;
}
static void* add(void** all, size_t size) {
  return all[find(all, NULL)] = calloc(1, size);
}

static Stream* stream_of(void* handle) {
  Stream* stream = handle ? (find((void**)streams, handle) < 0 ? NULL : handle) : &defaults[current];
  if (stream && !stream->simulated) {
    stream->device = current;
    SIMULATED(hipStreamCreateWithFlags, (void**, unsigned), &stream->simulated, NON_BLOCKING);
  }
  return stream;
}

static void expose(int device, int on) {
  for (int i = 0; i < MOST; ++i) {
    if (!blocks[i].address || blocks[i].device != device) continue;
    if (on) SIMULATED(hipHostRegister, (void*, size_t, unsigned), blocks[i].address, blocks[i].size, 0);
    else SIMULATED(hipHostUnregister, (void*), blocks[i].address);
  }
}

static int launch_graph(void* executable, Stream* stream) {
  expose(stream->device, 1);
  const int status = SIMULATED(hipGraphLaunch, (void*, void*), executable, stream->simulated);
  expose(stream->device, 0);
  return status;
}

// Runs what a stream was given so far.
static int flush(Stream* stream) {
  if (stream->is_pending) {
    void *graph = NULL, *executable = NULL;
    stream->is_pending = 0;
    SIMULATED(hipStreamEndCapture, (void*, void**), stream->simulated, &graph);
    SIMULATED(hipGraphInstantiate, (void**, void*, void*, void*, size_t), &executable, graph, NULL, NULL, 0);
    const int status = launch_graph(executable, stream);
    if (status) stream->status = status;
    SIMULATED(hipGraphExecDestroy, (void*), executable);
    SIMULATED(hipGraphDestroy, (void*), graph);
  }
  const int status = stream->status;
  stream->status = 0;
  return status;
}

static int flush_all(void) {
  int status = 0;
  for (int i = 0; i < DEVICES + MOST; ++i) {
    Stream* stream = i < DEVICES ? &defaults[i] : streams[i - DEVICES];
    const int one = stream && !stream->is_capturing ? flush(stream) : 0;
    if (one) status = one;
  }
  return status;
}

// The stream for work that is given to a handle; the work is kept in a graph until it is waited for.
static int enqueue(void* handle, Stream** stream) {
  *stream = stream_of(handle);
  if (!*stream || (*stream)->device != current) return INVALID_HANDLE;
  if (!(*stream)->is_capturing && !(*stream)->is_pending) {
    (*stream)->is_pending = 1;
    return SIMULATED(hipStreamBeginCapture, (void*, int), (*stream)->simulated, RELAXED);
  }
  return 0;
}

// What a capture forbids, by the simulator's rules.
static int forbidden(void) {
  void* probe = NULL;
  const int status = SIMULATED(hipMalloc, (void**, size_t), &probe, 64);
  if (!status) SIMULATED(hipFree, (void*), probe);
  return status;
}

// ---- devices

int hipGetDeviceCount(int* count) { return *count = DEVICES, 0; }
int hipGetDevice(int* device) { return *device = current, 0; }
int hipSetDevice(int device) {
  if (device < 0 || device >= DEVICES) return INVALID_DEVICE;
  return current = device, 0;
}
int hipGetDevicePropertiesR0600(char* properties, int device) {
  const int status = SIMULATED(hipGetDevicePropertiesR0600, (void*, int), properties, 0);
  if (!status) strcpy(properties + 1160, archs[device]);
  return status;
}
int hipDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute > 10017) return 1;  // as ROCm 6, which can't tell the number of XCDs
  return SIMULATED(hipDeviceGetAttribute, (int*, int, int), value, attribute, 0);
}
int hipGetLastError(void) { return SIMULATED(hipGetLastError, (void)); }
int hipRuntimeGetVersion(int* version) { return *version = 60342131, 0; }
int hipDeviceSynchronize(void) {
  LOCKED;
  for (int i = 0; i < MOST; ++i)
    if (streams[i] && streams[i]->is_capturing) return SIMULATED(hipDeviceSynchronize, (void));
  return flush_all();
}
const char* hipGetErrorName(int status) { return ((const char* (*)(int))simulated("hipGetErrorName"))(status); }
const char* hipGetErrorString(int status) { return ((const char* (*)(int))simulated("hipGetErrorString"))(status); }

// ---- memory

int hipMalloc(void** address, size_t size) {
  LOCKED;
  const int status = forbidden();
  if (status) return status;
  if (size > memory_bytes) return OUT_OF_MEMORY;
  for (int i = 0; i < MOST; ++i) {
    if (blocks[i].address) continue;
    *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    blocks[i] = (Block){*address, size, current};
    return 0;
  }
  return OUT_OF_MEMORY;
}
int hipFree(void* address) {
  LOCKED;
  const int status = forbidden();
  if (status) return status;
  flush_all();
  for (int i = 0; i < MOST; ++i) {
    if (blocks[i].address != address) continue;
    munmap(address, blocks[i].size);
    blocks[i].address = NULL;
  }
  return 0;
}
int hipMemsetAsync(void* address, int value, size_t size, void* handle) {
  LOCKED;
  Stream* stream;
  const int status = enqueue(handle, &stream);
  if (status) return status;
  return SIMULATED(hipMemsetAsync, (void*, int, size_t, void*), address, value, size, stream->simulated);
}
int hipHostRegister(void* address, size_t size, unsigned flags) { return 801; }
int hipHostUnregister(void* address) { return 801; }

// ---- streams and events

int hipStreamCreateWithFlags(void** handle, unsigned flags) {
  LOCKED;
  *handle = add((void**)streams, sizeof(Stream));
  stream_of(*handle);
  return 0;
}
int hipStreamSynchronize(void* handle) {
  LOCKED;
  Stream* stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  return stream->is_capturing ? SIMULATED(hipStreamSynchronize, (void*), stream->simulated) : flush(stream);
}
int hipEventCreate(void** event) {
  LOCKED;
  *event = add((void**)events, sizeof(Event));
  ((Event*)*event)->device = current;
  return 0;
}
int hipEventDestroy(void* event) {
  LOCKED;
  const int i = find((void**)events, event);
  if (i < 0) return INVALID_HANDLE;
  free(event);
  events[i] = NULL;
  return 0;
}
int hipEventRecord(Event* event, void* handle) {
  LOCKED;
  Stream* stream = stream_of(handle);
  if (!stream || find((void**)events, event) < 0 || event->device != stream->device) return INVALID_HANDLE;
  event->stream = stream;
  event->time = stream->clock;
  return 0;
}
int hipEventQuery(Event* event) {
  LOCKED;
  return event->stream->is_pending ? NOT_READY : 0;
}
int hipEventSynchronize(Event* event) {
  LOCKED;
  return event->stream->is_capturing ? UNSUPPORTED : flush(event->stream);
}
int hipEventElapsedTime(float* milliseconds, Event* start, Event* stop) {
  if (!start->stream || !stop->stream) return INVALID_HANDLE;
  *milliseconds = (float)((stop->time - start->time) * 1e-6);
  return 0;
}
int hipStreamWaitEvent(void* handle, Event* event, unsigned flags) {
  LOCKED;
  if (!stream_of(handle)) return INVALID_HANDLE;
  return event->stream && !event->stream->is_capturing ? flush(event->stream) : 0;
}

// ---- graphs

int hipThreadExchangeStreamCaptureMode(int* mode) {
  return SIMULATED(hipThreadExchangeStreamCaptureMode, (int*), mode);
}
int hipStreamBeginCapture(void* handle, int mode) {
  LOCKED;
  Stream* stream = stream_of(handle);
  if (!handle || !stream) return UNSUPPORTED;
  flush(stream);
  stream->is_capturing = 1;
  return SIMULATED(hipStreamBeginCapture, (void*, int), stream->simulated, mode);
}
int hipStreamEndCapture(void* handle, void** graph) {
  LOCKED;
  Stream* stream = stream_of(handle);
  stream->is_capturing = 0;
  return SIMULATED(hipStreamEndCapture, (void*, void**), stream->simulated, graph);
}
int hipStreamIsCapturing(void* handle, int* status) {
  LOCKED;
  Stream* stream = stream_of(handle);
  *status = 0;
  return stream->is_capturing ? SIMULATED(hipStreamIsCapturing, (void*, int*), stream->simulated, status) : 0;
}
int hipGraphInstantiate(void** executable, void* graph, void* node, void* log, size_t size) {
  return SIMULATED(hipGraphInstantiate, (void**, void*, void*, void*, size_t), executable, graph, node, log, size);
}
int hipGraphLaunch(void* executable, void* handle) {
  LOCKED;
  Stream* stream = stream_of(handle);
  if (!stream || stream->device != current) return INVALID_HANDLE;
  const int status = flush(stream);
  return status ? status : launch_graph(executable, stream);
}
int hipGraphDestroy(void* graph) { return SIMULATED(hipGraphDestroy, (void*), graph); }
int hipGraphExecDestroy(void* executable) { return SIMULATED(hipGraphExecDestroy, (void*), executable); }

// ---- what kernels' libraries call

void** __hipRegisterFatBinary(const void* wrapper) {
  return ((void** (*)(const void*))simulated("__hipRegisterFatBinary"))(wrapper);
}
void __hipUnregisterFatBinary(void** binary) { ((void (*)(void**))simulated("__hipUnregisterFatBinary"))(binary); }
void __hipRegisterFunction(void** binary, const void* host, char* device, const char* name, int limit, void* a, void* b,
                           void* c, void* d, int* size) {
  ((void (*)(void**, const void*, char*, const char*, int, void*, void*, void*, void*, int*))simulated(
      "__hipRegisterFunction"))(binary, host, device, name, limit, a, b, c, d, size);
}
int __hipPushCallConfiguration(dim3 grid, dim3 block, size_t lds, void* stream) { return 999; }
int __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* lds, void** stream) { return 999; }
int hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t lds, void* handle) {
  LOCKED;
  Stream* stream;
  const int status = enqueue(handle, &stream);
  if (status) return status;
  if (strncmp(archs[current], "gfx942", 6) != 0) return NO_BINARY;
  stream->clock += KERNEL_NANOSECONDS;
  return SIMULATED(hipLaunchKernel, (const void*, dim3, dim3, void**, size_t, void*), kernel, grid, block, arguments, lds,
                   stream->simulated);
}
