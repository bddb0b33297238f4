// A libnvidia-ml.so.1 for tests: two GPUs, with the numbers, types and error codes of nvml.h.
//
// What it does is chosen by variables, from outside: NVML_STUB_INIT is what nvmlInit returns, NVML_STUB_ECC how many
// uncorrected memory errors there were, stub_lost is the index of a
// GPU that has fallen off the bus, stub_unsupported makes all sensors but memory and temperature answer "not supported",
// stub_no_handle is the index of a GPU of which there is no handle. nvmlDeviceGetEnforcedPowerLimit is missing on
// purpose: an old driver does not know every function.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15 };

typedef int Return;
typedef struct { int index; } *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { Device device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } Event;

int stub_lost = -1, stub_no_handle = -1, stub_unsupported = 0, stub_xids = 0, stub_users = 0, stub_sets = 0;
static struct { int index; } devices[2] = {{0}, {1}};

static Return sensor(Device device) {
    if (stub_users < 1) return UNINITIALIZED;
    if (device->index == stub_lost) return GPU_IS_LOST;
    return SUCCESS;
}
#define ASK(device) do { Return problem = sensor(device); if (problem) return problem; } while (0)
#define ASK_MODERN(device) do { ASK(device); if (stub_unsupported) return NOT_SUPPORTED; } while (0)

Return nvmlInitWithFlags(unsigned int flags) {
    const char *wanted = getenv("NVML_STUB_INIT");
    (void)flags;
    if (wanted && atoi(wanted)) return atoi(wanted);
    stub_users++;
    return SUCCESS;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { if (stub_users < 1) return UNINITIALIZED; stub_users--; return SUCCESS; }
const char *nvmlErrorString(Return code) { return code == 9 ? "Driver Not Loaded" : "an error"; }
Return nvmlDeviceGetCount_v2(unsigned int *count) { if (stub_users < 1) return UNINITIALIZED; *count = 2; return SUCCESS; }
Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device *device) {
    if (index > 1) return INVALID_ARGUMENT;
    if ((int)index == stub_no_handle) return GPU_IS_LOST;
    *device = (Device)&devices[index];
    return SUCCESS;
}
Return nvmlDeviceGetUUID(Device device, char *text, unsigned int length) {
    ASK(device);
    snprintf(text, length, "GPU-%d", device->index);
    return SUCCESS;
}
Return nvmlDeviceGetName(Device device, char *text, unsigned int length) {
    ASK(device);
    snprintf(text, length, "Stub GPU");
    return SUCCESS;
}
Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    ASK(device);
    *memory = (Memory){.total = 17179869184ULL, .free = 12884901888ULL, .used = 4294967296ULL};
    return SUCCESS;
}
Return nvmlDeviceGetTemperature(Device device, int which, unsigned int *celsius) {
    ASK(device);
    if (which != 0) return INVALID_ARGUMENT;
    *celsius = 71 + device->index;
    return SUCCESS;
}
Return nvmlDeviceGetUtilizationRates(Device device, Utilization *rates) {
    ASK_MODERN(device);
    *rates = (Utilization){.gpu = 93, .memory = 41};
    return SUCCESS;
}
Return nvmlDeviceGetPowerUsage(Device device, unsigned int *milliwatts) {
    ASK_MODERN(device);
    *milliwatts = 218375;
    return SUCCESS;
}
Return nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules) {
    ASK_MODERN(device);
    *millijoules = 9876543210ULL;  // more than 32 bits
    return SUCCESS;
}
Return nvmlDeviceGetClockInfo(Device device, int which, unsigned int *megahertz) {
    ASK_MODERN(device);
    *megahertz = which == 1 ? 1410 : which == 2 ? 5001 : 1;  // NVML_CLOCK_SM, NVML_CLOCK_MEM
    return SUCCESS;
}
Return nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long *count) {
    ASK_MODERN(device);
    const char *uncorrected = getenv("NVML_STUB_ECC");
    *count = kind == 1 && counter == 0 ? (uncorrected ? atoi(uncorrected) : 2) : 1000;  // since the driver was loaded
    return SUCCESS;
}
Return nvmlDeviceGetPcieThroughput(Device device, int counter, unsigned int *kilobytes) {
    ASK_MODERN(device);
    *kilobytes = counter == 0 ? 2500 : 750;  // NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES
    return SUCCESS;
}
Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *reasons) {
    ASK_MODERN(device);
    *reasons = 0x4 | 0x40;
    return SUCCESS;
}
Return nvmlEventSetCreate(void **set) { stub_sets++; *set = malloc(1); return SUCCESS; }
Return nvmlEventSetFree(void *set) { stub_sets--; free(set); return SUCCESS; }
Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *set) {
    (void)set;
    ASK_MODERN(device);
    return types == 8 ? SUCCESS : INVALID_ARGUMENT;  // nvmlEventTypeXidCriticalError
}
Return nvmlEventSetWait_v2(void *set, Event *event, unsigned int milliseconds) {
    (void)set;
    (void)milliseconds;
    if (stub_xids < 1) return TIMEOUT;
    stub_xids--;
    *event = (Event){.device = (Device)&devices[0], .type = 8, .data = 79};
    return SUCCESS;
}
