/* A stand-in for the CUDA runtime, as a card with compute capability 9.0 answers: memory is the host's, launches do nothing.
   What PyTorch's CUDA build checks on the host runs on it unchanged. The structs come from the wheels' own headers. */
#define _GNU_SOURCE
#include <driver_types.h>
#include <vector_types.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* allocations */
#define OK return cudaSuccess
#define EXPORT __attribute__((visibility("default")))
static __thread int device;
EXPORT cudaError_t cudaGetDeviceCount(int *count) { *count = 1; OK; }
EXPORT cudaError_t cudaGetDevice(int *index) { *index = device; OK; }
EXPORT cudaError_t cudaSetDevice(int index) { if (index > 0) return cudaErrorInvalidDevice; device = index; OK; }
EXPORT cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; OK; }
/* A launch that no card takes (compute capability 7.0 and later). */
static __thread cudaError_t last;
static cudaError_t launched(dim3 g, dim3 b) {
  int fits = g.x && g.y && g.z && g.x <= 2147483647u && g.y <= 65535u && g.z <= 65535u && b.x && b.y && b.z && b.z <= 64u
             && (unsigned long long)b.x * b.y * b.z <= 1024u;
  return last = fits ? cudaSuccess : cudaErrorInvalidConfiguration;
}
EXPORT cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = cudaSuccess; return e; }
EXPORT cudaError_t cudaPeekAtLastError(void) { return last; }
EXPORT cudaError_t cudaLaunchKernel(const void *k, dim3 g, dim3 b, void **a, size_t sh, cudaStream_t s) { return launched(g, b); }
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *k, void **a) { return launched(c->gridDim, c->blockDim); }
EXPORT cudaError_t cudaDeviceSynchronize(void) { OK; }
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int index) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H100 80GB HBM3");
  p->major = 9; p->minor = 0; p->totalGlobalMem = 80UL << 30; p->warpSize = 32;
  p->multiProcessorCount = 132; p->maxThreadsPerBlock = 1024; p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152; p->sharedMemPerMultiprocessor = 233472; p->sharedMemPerBlockOptin = 232448;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536; p->l2CacheSize = 50 << 20; p->maxBlocksPerMultiProcessor = 32;
  p->totalConstMem = 65536; p->textureAlignment = 512; p->unifiedAddressing = 1; p->concurrentKernels = 1;
  p->cooperativeLaunch = 1; p->asyncEngineCount = 3; p->canMapHostMemory = 1; p->managedMemory = 1;
  OK;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int index) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    default: *value = 1;
  }
  OK;
}
EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024; a->numRegs = 32; a->ptxVersion = a->binaryVersion = 90; a->maxDynamicSharedSizeBytes = 49152;
  OK;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int size, size_t bytes) { *n = 2; OK; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int size, size_t bytes, unsigned flags) { *n = 2; OK; }

/* memory */
static struct { char *at; size_t size; } blocks[1 << 16];
static int block_count;
EXPORT cudaError_t cudaMalloc(void **p, size_t size) {
  if (size > (8UL << 30)) { *p = 0; return cudaErrorMemoryAllocation; }
  if (posix_memalign(p, 512, size ? size : 1)) return cudaErrorMemoryAllocation;
  memset(*p, 0, size);
  blocks[block_count].at = *p; blocks[block_count++].size = size;
  OK;
}
EXPORT cudaError_t cudaFree(void *p) {
  for (int i = 0; p && i < block_count; i++) if (blocks[i].at == p) { blocks[i] = blocks[--block_count]; free(p); break; }
  OK;
}
EXPORT cudaError_t cudaMallocAsync(void **p, size_t size, cudaStream_t s) { return cudaMalloc(p, size); }
EXPORT cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }
EXPORT cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags) { *p = calloc(1, size ? size : 1); OK; }
EXPORT cudaError_t cudaMallocHost(void **p, size_t size) { *p = calloc(1, size ? size : 1); OK; }
EXPORT cudaError_t cudaFreeHost(void *p) { free(p); OK; }
EXPORT cudaError_t cudaMemGetInfo(size_t *free_, size_t *total) { *free_ = 70UL << 30; *total = 80UL << 30; OK; }
static void copy(void *to, const void *from, size_t size) { if (to && from) memmove(to, from, size); }
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind k) { copy(to, from, size); OK; }
EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind k, cudaStream_t s) { copy(to, from, size); OK; }
EXPORT cudaError_t cudaMemset(void *to, int value, size_t size) { memset(to, value, size); OK; }
EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t s) { memset(to, value, size); OK; }
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a); a->device = 0; a->type = cudaMemoryTypeUnregistered;
  for (int i = 0; i < block_count; i++)
    if ((char *)p >= blocks[i].at && (char *)p < blocks[i].at + blocks[i].size) { a->type = cudaMemoryTypeDevice; a->devicePointer = (void *)p; }
  OK;
}
/* streams and events */
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned f, int p) { *s = (cudaStream_t)malloc(8); OK; }
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned f) { *s = (cudaStream_t)malloc(8); OK; }
EXPORT cudaError_t cudaStreamCreate(cudaStream_t *s) { *s = (cudaStream_t)malloc(8); OK; }
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned f) { *e = (cudaEvent_t)malloc(8); OK; }
EXPORT cudaError_t cudaEventCreate(cudaEvent_t *e) { *e = (cudaEvent_t)malloc(8); OK; }
EXPORT cudaError_t cudaEventElapsedTime(float *t, cudaEvent_t a, cudaEvent_t b) { *t = 1; OK; }
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *st) { *st = cudaStreamCaptureStatusNone; OK; }
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *st, ...) { *st = cudaStreamCaptureStatusNone; OK; }
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { OK; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) { *low = 0; *high = -5; OK; }
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; OK; }
static long nothing(void) { return 0; }
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *n, void **f, unsigned v, unsigned long long fl, enum cudaDriverEntryPointQueryResult *st) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW); *f = driver ? dlsym(driver, n) : 0; if (!*f) *f = (void *)nothing; if (st) *st = cudaDriverEntryPointSuccess; OK; }
/* launches */
static __thread struct { dim3 grid, block; size_t shared; void *stream; } pending;
EXPORT unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t sh, void *st) { pending.grid = g; pending.block = b; pending.shared = sh; pending.stream = st; return 0; }
EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *sh, void *st) { *g = pending.grid; *b = pending.block; *sh = pending.shared; *(void **)st = pending.stream; OK; }
EXPORT cudaError_t __cudaGetKernel(void **k, const void *f) { *k = (void *)f; OK; }
EXPORT cudaError_t __cudaLaunchKernel(void *k, dim3 g, dim3 b, void **a, size_t sh, void *s) { return launched(g, b); }
EXPORT cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) { static char scratch[1 << 20]; *p = scratch; OK; }
/* heuristics */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *dd, void *pref, int want, void *results, int *count) { *count = 1; return 0; }
EXPORT int cublasGetMathMode(void *h, int *m) { *m = 0; return 0; }
EXPORT int cublasGetPointerMode_v2(void *h, int *m) { *m = 0; return 0; }
EXPORT size_t cudnnGetVersion(void) { return 92600; }
EXPORT size_t cublasLtGetVersion(void) { return 130401; }
EXPORT const char *cudnnGetErrorString(int s) { return "CUDNN_STATUS_SUCCESS"; }
EXPORT void cudnnGetLastErrorString(char *t, size_t n) { if (n) *t = 0; }
EXPORT const char *cusparseGetErrorString(int s) { return ""; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
EXPORT const char *cusparseGetErrorName(int s) { return ""; }
EXPORT int cudnnGetProperty(int what, int *value) { int version[3] = {9, 26, 0}; *value = version[what]; return 0; }
EXPORT int cudnnGetStream(void *h, void **s) { *s = 0; return 0; }
EXPORT const char *ncclGetErrorString(int r) { return ""; }
EXPORT int ncclGetVersion(int *v) { *v = 23000; return 0; }
