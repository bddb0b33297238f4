// A libnvidia-ml.so.1 for tests of the doctor: one GPU and a driver whose CUDA is NVML_STUB_CUDA (12040 for 12.4);
// nvmlInit returns NVML_STUB_INIT.
#include <stdio.h>
#include <stdlib.h>

typedef int Return;
typedef struct { unsigned long long total, free, used; } Memory;

static int number(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
Return nvmlInitWithFlags(unsigned int flags) { (void)flags; return number("NVML_STUB_INIT", 0); }
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Return code) { return code == 18 ? "Driver/library version mismatch" : "an error"; }
Return nvmlSystemGetDriverVersion(char *text, unsigned int length) { snprintf(text, length, "550.54"); return 0; }
Return nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = number("NVML_STUB_CUDA", 12040); return 0; }
Return nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { (void)index; *device = (void *)1; return 0; }
Return nvmlDeviceGetName(void *device, char *text, unsigned int length) {
    (void)device;
    snprintf(text, length, "Stub GPU");
    return 0;
}
Return nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    (void)device;
    *memory = (Memory){.total = 16000000000ULL, .free = 12000000000ULL, .used = 4000000000ULL};
    return 0;
}
