/* A stand-in for the CUDA runtime, for programs that nvcc compiled with `-cudart none`.
 *
 * Device memory is memory of the host, and so are the variables of modules: copies are `memcpy`, and the emulator maps
 * every allocation at its own address.
 * Launches and tensor maps go to functions that warploom connects. Everything is finished when a call returns, so
 * streams and events order nothing. A launch that failed makes every later call fail, as on a GPU.
 */
#define _DEFAULT_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*launch_function)(const char *kernel, const uint32_t *shape, uint64_t shared, void **arguments);
typedef int (*tiled_function)(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                              int swizzle, int promotion, int fill);
typedef int (*im2col_function)(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                               const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                               uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                               int fill);
typedef void (*memory_function)(void *address, uint64_t bytes); /* 0 bytes: it was freed */
typedef void *(*variable_function)(const char *name);             /* the memory of a variable of a module, or NULL */
typedef void (*exit_function)(int status);

/* The hardware, as queries see it. */
typedef struct {
  int major, minor, sms, threads_per_sm, shared_per_block, shared_per_sm, registers_per_sm;
} hardware_t;

static launch_function on_launch;
static tiled_function on_tiled;
static im2col_function on_im2col;
static memory_function on_memory;
static variable_function on_variable;
static exit_function on_end;
static hardware_t hardware;
static cudaError_t last = cudaSuccess, broken = cudaSuccess;

static void at_exit(int status, void *unused) {
  if (on_end)
    on_end(status);
}

/* A program that gives up after a failed call often throws: the error of its launch is reported all the same. */
static void at_abort(int number) {
  signal(number, SIG_DFL);
  if (on_end)
    on_end(128 + number);
}

void warploom_connect(launch_function launch, tiled_function tiled, im2col_function im2col, memory_function memory,
                      variable_function variable, exit_function ending, const int *numbers) {
  static int registered;
  on_launch = launch;
  on_tiled = tiled;
  on_im2col = im2col;
  on_memory = memory;
  on_variable = variable;
  on_end = ending;
  last = broken = cudaSuccess;
  if (numbers)
    memcpy(&hardware, numbers, sizeof hardware);
  if (!registered && ending)
    on_exit(at_exit, NULL);
  signal(SIGABRT, ending ? at_abort : SIG_DFL);
  registered = 1;
}

static cudaError_t said(cudaError_t status) {
  if (status == cudaSuccess)
    status = broken;
  if (status != cudaSuccess)
    last = status;
  return status;
}

#define OK said(cudaSuccess)

/* Kernels: a handle is the record of a kernel, and its first word the name. */
typedef struct kernel {
  const char *name;
  const void *host;
  struct kernel *next;
} kernel_t;

static kernel_t *kernels;

void **__cudaRegisterFatBinary(void *binary) {
  static void *handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 0; }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid,
                            void *bid, void *block, void *grid, int *warp) {
  kernel_t *made = malloc(sizeof *made);
  made->name = name;
  made->host = host;
  made->next = kernels;
  kernels = made;
}

static kernel_t *kernel_of(const void *host) {
  for (kernel_t *each = kernels; each; each = each->next)
    if (each->host == host || each == host)
      return each;
  return NULL;
}

/* Variables of modules, which keep their values from one launch to the next. */
typedef struct variable {
  const char *name;
  const void *host;
  size_t size;
  struct variable *next;
} variable_t;

static variable_t *variables;

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant,
                       int global) {
  variable_t *made = malloc(sizeof *made);
  made->name = name;
  made->host = host;
  made->size = size;
  made->next = variables;
  variables = made;
}
void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext, size_t size,
                                   int constant, int global) {
  __cudaRegisterVar(handle, (char *)host, device, name, ext, size, constant, global);
  *host = on_variable ? on_variable(name) : NULL;
}

/* The bytes of a variable from an offset on. */
static cudaError_t find_variable(const void *symbol, size_t offset, size_t bytes, char **found) {
  for (variable_t *each = variables; each; each = each->next)
    if (each->host == symbol) {
      char *start = on_variable ? on_variable(each->name) : NULL;
      if (!start)
        return said(cudaErrorInvalidSymbol);
      if (offset > each->size || bytes > each->size - offset)
        return said(cudaErrorInvalidValue);
      *found = start + offset;
      return OK;
    }
  return said(cudaErrorInvalidSymbol);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = (cudaKernel_t)kernel_of(host);
  return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) { return said(__cudaGetKernel(kernel, host)); }

static cudaError_t start(const void *function, dim3 grid, dim3 block, dim3 cluster, int dependent, void **arguments,
                         size_t shared) {
  kernel_t *kernel = kernel_of(function);
  uint32_t shape[10] = {grid.x,  grid.y,    grid.z,    block.x,   block.y,
                        block.z, cluster.x, cluster.y, cluster.z, dependent};
  if (broken)
    return OK;
  if (!kernel)
    return said(cudaErrorInvalidDeviceFunction);
  for (int at = 0; at < 6; at++) /* of the grid and the block */
    if (!shape[at])
      return said(cudaErrorInvalidConfiguration);
  fflush(NULL); /* the program's lines come before those of the kernel */
  if (!on_launch)
    return said(cudaErrorNotReady);
  if (on_launch(kernel->name, shape, shared, arguments))
    broken = cudaErrorLaunchFailure;
  return OK;
}

static const dim3 ONE = {1, 1, 1};

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
  return start(function, grid, block, ONE, 0, arguments, shared);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  return start(kernel, grid, block, ONE, 0, arguments, shared);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    cudaStream_t stream) {
  return start(kernel, grid, block, ONE, 0, arguments, shared);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
  return start(function, grid, block, ONE, 0, arguments, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  dim3 cluster = ONE;
  int dependent = 0;
  for (unsigned at = 0; at < config->numAttrs; ++at)
    if (config->attrs[at].id == cudaLaunchAttributeClusterDimension) {
      cluster.x = config->attrs[at].val.clusterDim.x;
      cluster.y = config->attrs[at].val.clusterDim.y;
      cluster.z = config->attrs[at].val.clusterDim.z;
    } else if (config->attrs[at].id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      dependent = config->attrs[at].val.programmaticStreamSerializationAllowed;
    }
  return start(function, config->gridDim, config->blockDim, cluster, dependent, arguments, config->dynamicSmemBytes);
}

/* `kernel<<<…>>>` pushes its configuration, and the stub of the kernel pops it. */
static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} pushed[8];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (depth == 8)
    return 1;
  pushed[depth].grid = grid;
  pushed[depth].block = block;
  pushed[depth].shared = shared;
  pushed[depth++].stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!depth)
    return cudaErrorMissingConfiguration;
  *grid = pushed[--depth].grid;
  *block = pushed[depth].block;
  *shared = pushed[depth].shared;
  *(void **)stream = pushed[depth].stream;
  return cudaSuccess;
}

/* Memory. Fresh memory holds 0xff bytes: NaN as a float, and no address. */
static cudaError_t allocate(void **pointer, size_t bytes) {
  size_t whole = (bytes + 511) / 512 * 512;
  *pointer = NULL;
  if (broken || !bytes)
    return OK;
  *pointer = aligned_alloc(512, whole);
  if (!*pointer)
    return said(cudaErrorMemoryAllocation);
  memset(*pointer, 0xff, whole);
  if (on_memory)
    on_memory(*pointer, bytes);
  return OK;
}
static cudaError_t release(void *pointer) {
  if (pointer && on_memory)
    on_memory(pointer, 0);
  free(pointer);
  return OK;
}
static cudaError_t copy(void *to, const void *from, size_t bytes) {
  if (!broken && bytes)
    memmove(to, from, bytes);
  return OK;
}
static cudaError_t fill(void *pointer, int value, size_t bytes) {
  if (!broken && bytes)
    memset(pointer, value, bytes);
  return OK;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) { return allocate(pointer, bytes); }
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) { return allocate(pointer, bytes); }
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) { return allocate(pointer, bytes); }
cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(pointer, *pitch * height);
}
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
  if (on_memory)
    on_memory(pointer, bytes);
  return OK;
}
cudaError_t cudaHostUnregister(void *pointer) {
  if (on_memory)
    on_memory(pointer, 0);
  return OK;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  *device = host;
  return OK;
}
cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return allocate(pointer, bytes);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  static int only;
  *pool = (cudaMemPool_t)&only;
  return OK;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) { return OK; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { return OK; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) { return OK; }
cudaError_t cudaFree(void *pointer) { return release(pointer); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return release(pointer); }
cudaError_t cudaFreeHost(void *pointer) { return release(pointer); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  return copy(to, from, bytes);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, bytes);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
  for (size_t row = 0; row < height; ++row)
    copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return OK;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
  char *to;
  cudaError_t status = find_variable(symbol, offset, bytes, &to);
  return status ? status : copy(to, from, bytes);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  char *from;
  cudaError_t status = find_variable(symbol, offset, bytes, &from);
  return status ? status : copy(to, from, bytes);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  return find_variable(symbol, 0, 0, (char **)address);
}
cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
  for (variable_t *each = variables; each; each = each->next)
    if (each->host == symbol) {
      *size = each->size;
      return OK;
    }
  return said(cudaErrorInvalidSymbol);
}
cudaError_t cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row)
    fill((char *)pointer + row * pitch, value, width);
  return OK;
}
cudaError_t cudaMemset(void *pointer, int value, size_t bytes) { return fill(pointer, value, bytes); }
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
  return fill(pointer, value, bytes);
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  *available = *total = (size_t)1 << 37;
  return OK;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation place, unsigned flags,
                                 cudaStream_t stream) {
  return OK;
}
cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice,
                          struct cudaMemLocation place) {
  return OK;
}
#else
cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, int device, cudaStream_t stream) { return OK; }
cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, enum cudaMemoryAdvise advice, int device) { return OK; }
#endif
cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *pointer, size_t bytes, unsigned flags) { return OK; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeDevice;
  attributes->devicePointer = (void *)pointer;
  return OK;
}

/* Streams and events. */
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  *stream = (cudaStream_t)malloc(1);
  return OK;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  free(stream);
  return OK;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return OK; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return OK; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return OK; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
  function(stream, broken, data);
  return OK;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  if (!broken)
    function(data);
  return OK;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  *flags = 0;
  return OK;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = 0;
  return OK;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = *greatest = 0;
  return OK;
}
cudaError_t cudaProfilerStart(void) { return OK; }
cudaError_t cudaProfilerStop(void) { return OK; }
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
  *device = 0;
  return OK;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return OK;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = (cudaEvent_t)calloc(1, sizeof(struct timespec));
  return OK;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return OK;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
  return OK;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return OK; }
cudaError_t cudaEventQuery(cudaEvent_t event) { return OK; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t second) {
  struct timespec *from = (struct timespec *)first, *to = (struct timespec *)second;
  *milliseconds = (to->tv_sec - from->tv_sec) * 1e3f + (to->tv_nsec - from->tv_nsec) * 1e-6f;
  return OK;
}
cudaError_t cudaDeviceSynchronize(void) { return OK; }
cudaError_t cudaDeviceReset(void) { return OK; }

/* Queries. */
cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return OK;
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return OK;
}
cudaError_t cudaSetDevice(int device) { return said(device ? cudaErrorInvalidDevice : cudaSuccess); }
cudaError_t cudaSetDeviceFlags(unsigned flags) { return OK; }
cudaError_t cudaGetDeviceFlags(unsigned *flags) {
  *flags = 0;
  return OK;
}
cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *wanted) { return cudaGetDevice(device); }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = 0;
  return OK;
}
cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) { return OK; }
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
  *value = limit == cudaLimitStackSize ? 1 << 10 : limit == cudaLimitPrintfFifoSize ? 1 << 20 : 8 << 20;
  return OK;
}
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID attribute,
                                   const cudaLaunchAttributeValue *value) {
  return OK;
}
cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) { return OK; }
cudaError_t cudaCtxResetPersistingL2Cache(void) { return OK; }
cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config) { return OK; }
cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return OK;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return OK;
}
cudaError_t cudaGetLastError(void) {
  cudaError_t status = last;
  last = broken;
  return status;
}
cudaError_t cudaPeekAtLastError(void) { return last; }

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
  case cudaSuccess:
    return "cudaSuccess";
  case cudaErrorInvalidValue:
    return "cudaErrorInvalidValue";
  case cudaErrorMemoryAllocation:
    return "cudaErrorMemoryAllocation";
  case cudaErrorInvalidDeviceFunction:
    return "cudaErrorInvalidDeviceFunction";
  case cudaErrorLaunchFailure:
    return "cudaErrorLaunchFailure";
  default:
    return "cudaError";
  }
}
const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess:
    return "no error";
  case cudaErrorLaunchFailure:
    return "the launch failed on the emulator; warploom reported why";
  default:
    return cudaGetErrorName(error);
  }
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  *value = 0;
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount:
    *value = hardware.sms;
    break;
  case cudaDevAttrComputeCapabilityMajor:
    *value = hardware.major;
    break;
  case cudaDevAttrComputeCapabilityMinor:
    *value = hardware.minor;
    break;
  case cudaDevAttrMaxThreadsPerBlock:
    *value = 1024;
    break;
  case cudaDevAttrMaxThreadsPerMultiProcessor:
    *value = hardware.threads_per_sm;
    break;
  case cudaDevAttrMaxBlocksPerMultiprocessor:
    *value = 32;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlock:
    *value = 48 << 10;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = hardware.shared_per_block;
    break;
  case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
    *value = hardware.shared_per_sm;
    break;
  case cudaDevAttrMaxRegistersPerBlock:
  case cudaDevAttrMaxRegistersPerMultiprocessor:
    *value = hardware.registers_per_sm;
    break;
  case cudaDevAttrReservedSharedMemoryPerBlock:
    *value = 1 << 10;
    break;
  case cudaDevAttrWarpSize:
    *value = 32;
    break;
  case cudaDevAttrMaxGridDimX:
    *value = 0x7fffffff;
    break;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ:
    *value = 65535;
    break;
  case cudaDevAttrMaxBlockDimX:
  case cudaDevAttrMaxBlockDimY:
    *value = 1024;
    break;
  case cudaDevAttrMaxBlockDimZ:
    *value = 64;
    break;
  case cudaDevAttrCooperativeLaunch:
  case cudaDevAttrUnifiedAddressing:
  case cudaDevAttrManagedMemory:
  case cudaDevAttrConcurrentManagedAccess:
  case cudaDevAttrCanMapHostMemory:
  case cudaDevAttrCanUseHostPointerForRegisteredMem:
  case cudaDevAttrConcurrentKernels:
  case cudaDevAttrAsyncEngineCount:
  case cudaDevAttrMemoryPoolsSupported:
    *value = 1;
    break;
  default:
    break;
  }
  return OK;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "warploom emulator of sm_%d%d", hardware.major, hardware.minor);
  properties->totalGlobalMem = (size_t)1 << 37;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = hardware.shared_per_block;
  properties->sharedMemPerMultiprocessor = hardware.shared_per_sm;
  properties->reservedSharedMemPerBlock = 1 << 10;
  properties->regsPerBlock = properties->regsPerMultiprocessor = hardware.registers_per_sm;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = hardware.major;
  properties->minor = hardware.minor;
  properties->multiProcessorCount = hardware.sms;
  properties->maxThreadsPerMultiProcessor = hardware.threads_per_sm;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->memoryBusWidth = 1;
  properties->unifiedAddressing = properties->managedMemory = properties->cooperativeLaunch = 1;
  properties->clusterLaunch = properties->canMapHostMemory = properties->canUseHostPointerForRegisteredMem = 1;
  properties->concurrentKernels = properties->asyncEngineCount = properties->concurrentManagedAccess = 1;
  return OK;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > hardware.shared_per_block)
    return said(cudaErrorInvalidValue);
  return OK;
}
cudaError_t cudaFuncSetCacheConfig(const void *function, enum cudaFuncCache config) { return OK; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->maxDynamicSharedSizeBytes = hardware.shared_per_block;
  attributes->ptxVersion = attributes->binaryVersion = 10 * hardware.major + hardware.minor;
  attributes->numRegs = 32;
  return OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared, unsigned flags) {
  *blocks = 1;
  return OK;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config) {
  unsigned ctas = 1;
  for (unsigned at = 0; at < config->numAttrs; ++at)
    if (config->attrs[at].id == cudaLaunchAttributeClusterDimension)
      ctas = config->attrs[at].val.clusterDim.x * config->attrs[at].val.clusterDim.y *
             config->attrs[at].val.clusterDim.z;
  *clusters = hardware.sms / (ctas ? ctas : 1);
  return OK;
}

/* The driver: programs take its functions by name or link to them. */
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill oob) {
  if (!on_tiled || on_tiled(map, type, rank, address, (const uint64_t *)extents, (const uint64_t *)strides, box, steps,
                            interleave, swizzle, promotion, oob))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *extents, const cuuint64_t *strides, const int *lower,
                                 const int *upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill oob) {
  if (!on_im2col || on_im2col(map, type, rank, address, (const uint64_t *)extents, (const uint64_t *)strides, lower,
                              upper, channels, pixels, steps, interleave, swizzle, promotion, oob))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
  memcpy(map, &address, sizeof address); /* a map begins with its address */
  return CUDA_SUCCESS;
}
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = error ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_SUCCESS";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error ? "invalid argument" : "no error";
  return CUDA_SUCCESS;
}

static void *driver_function(const char *name) {
  if (!strcmp(name, "cuTensorMapEncodeTiled"))
    return (void *)cuTensorMapEncodeTiled;
  if (!strcmp(name, "cuTensorMapEncodeIm2col"))
    return (void *)cuTensorMapEncodeIm2col;
  if (!strcmp(name, "cuTensorMapReplaceAddress"))
    return (void *)cuTensorMapReplaceAddress;
  if (!strcmp(name, "cuGetErrorName"))
    return (void *)cuGetErrorName;
  if (!strcmp(name, "cuGetErrorString"))
    return (void *)cuGetErrorString;
  return NULL;
}

static cudaError_t find(const char *name, void **function, enum cudaDriverEntryPointQueryResult *result) {
  *function = driver_function(name);
  if (result)
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? OK : said(cudaErrorSymbolNotFound);
}
#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
  return find(name, function, result);
}
#endif
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  return find(name, function, result);
}
#endif
