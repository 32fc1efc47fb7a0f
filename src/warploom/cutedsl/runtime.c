/* A stand-in for the library of CUDA functions that host code compiled by CuTe DSL calls.
 *
 * Launches, tensor maps and queries go to functions that warploom connects; functions without an effect that a program
 * could see return success; the others report their name and return "not supported".
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_READY = 600, NOT_SUPPORTED = 801 };

typedef int (*launch_function)(const char *kernel, const void *configuration, void **arguments);
typedef int (*tiled_function)(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                              int swizzle, int promotion, int fill);
typedef int (*im2col_function)(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                               const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                               uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                               int fill);
typedef int (*attribute_function)(int attribute);
typedef void (*unsupported_function)(const char *name);

static launch_function on_launch;
static tiled_function on_tiled;
static im2col_function on_im2col;
static attribute_function on_attribute;
static unsupported_function on_unsupported;

void warploom_connect(launch_function launch, tiled_function tiled, im2col_function im2col,
                      attribute_function attribute, unsupported_function unsupported) {
  on_launch = launch;
  on_tiled = tiled;
  on_im2col = im2col;
  on_attribute = attribute;
  on_unsupported = unsupported;
}

/* A kernel's handle is its name: the emulator finds the PTX by it. */
static int load(void **library) {
  *library = (void *)1;
  return SUCCESS;
}

static int kernel_of(void **kernel, const char *name) {
  *kernel = strdup(name);
  return *kernel ? SUCCESS : NOT_READY;
}

int _cudaLibraryLoadData(void **library) { return load(library); }
int _cuLibraryLoadData(void **library) { return load(library); }
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) { return kernel_of(kernel, name); }
int _cuLibraryGetKernel(void **kernel, void *library, const char *name) { return kernel_of(kernel, name); }

int _cudaLaunchKernelEx(const void *configuration, const void *kernel, void **arguments) {
  return on_launch ? on_launch((const char *)kernel, configuration, arguments) : NOT_READY;
}

int _cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                            int swizzle, int promotion, int fill) {
  return on_tiled
             ? on_tiled(map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill)
             : NOT_READY;
}

int _cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                             const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                             uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                             int fill) {
  return on_im2col ? on_im2col(map, type, rank, address, extents, strides, lower, upper, channels, pixels, steps,
                               interleave, swizzle, promotion, fill)
                   : NOT_READY;
}

static int first_of(int *value) {
  *value = 0;
  return SUCCESS;
}

int _cudaGetDeviceCount(int *count) {
  *count = 1;
  return SUCCESS;
}
int _cudaGetDevice(int *device) { return first_of(device); }
int _cuDeviceGet(int *device) { return first_of(device); }
int _cudaDeviceGetAttribute(int *value, int attribute) {
  *value = on_attribute ? on_attribute(attribute) : 0;
  return SUCCESS;
}
int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks) {
  *blocks = 1;
  return SUCCESS;
}
int _cuKernelGetAttribute(int *value) { /* the one that is asked for is the largest block */
  *value = 1024;
  return SUCCESS;
}

void cuda_dialect_assert_success(int status) { (void)status; }
void CuteDSLRT_TVMFFISetRaisedCudaError(void) {}
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(void) {}

#define WITHOUT_EFFECT(name) int name(void) { return SUCCESS; }
WITHOUT_EFFECT(_cudaDeviceSynchronize)
WITHOUT_EFFECT(_cudaEventCreate)
WITHOUT_EFFECT(_cudaEventDestroy)
WITHOUT_EFFECT(_cudaEventRecord)
WITHOUT_EFFECT(_cudaFuncSetAttribute)
WITHOUT_EFFECT(_cudaKernelSetAttributeForDevice)
WITHOUT_EFFECT(_cudaLibraryUnload)
WITHOUT_EFFECT(_cudaSetDevice)
WITHOUT_EFFECT(_cudaStreamCreate)
WITHOUT_EFFECT(_cudaStreamDestroy)
WITHOUT_EFFECT(_cudaStreamSynchronize)
WITHOUT_EFFECT(_cuLibraryUnload)

#define UNSUPPORTED(name)                                                                                              \
  int name(void) {                                                                                                     \
    if (on_unsupported)                                                                                                \
      on_unsupported(#name);                                                                                           \
    return NOT_SUPPORTED;                                                                                              \
  }
UNSUPPORTED(_cudaEventElapsedTime)
UNSUPPORTED(_cudaFree)
UNSUPPORTED(_cudaFreeAsync)
UNSUPPORTED(_cudaGetDeviceProperties)
UNSUPPORTED(_cudaLaunchKernel)
UNSUPPORTED(_cudaLibraryGetGlobal)
UNSUPPORTED(_cudaLibraryGetKernelCount)
UNSUPPORTED(_cudaLibraryGetManaged)
UNSUPPORTED(_cudaLibraryGetUnifiedFunction)
UNSUPPORTED(_cudaLibraryLoadFromFile)
UNSUPPORTED(_cudaMalloc)
UNSUPPORTED(_cudaMallocAsync)
UNSUPPORTED(_cudaMemcpy)
UNSUPPORTED(_cudaMemcpyAsync)
UNSUPPORTED(_cudaMemset)
UNSUPPORTED(_cudaMemsetAsync)
UNSUPPORTED(_cuLibraryGetGlobal)
UNSUPPORTED(_cuLibraryGetKernelCount)
UNSUPPORTED(_cuLibraryGetManaged)
UNSUPPORTED(_cuLibraryGetModule)
UNSUPPORTED(_cuLibraryGetUnifiedFunction)
UNSUPPORTED(_cuLibraryLoadFromFile)
