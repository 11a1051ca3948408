/* Declares the few functions of NVML that are called, as its documentation gives them: the header is not everywhere. */
#include "observe/serve/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, TEMPERATURE_GPU = 0 };

typedef struct nvml_device *nvml_device;
typedef struct nvml_utilization {
    unsigned gpu, memory; /* percent */
} nvml_utilization;
typedef struct nvml_memory {
    unsigned long long total, available, used;
} nvml_memory;

/* Each returns 0 when all went well. */
#define NVML_FUNCTIONS(X)                                                                                              \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlShutdown, (void))                                                                                            \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *, nvml_device *))                                                 \
    X(nvmlDeviceGetUtilizationRates, (nvml_device, nvml_utilization *))                                                \
    X(nvmlDeviceGetMemoryInfo, (nvml_device, nvml_memory *))                                                           \
    X(nvmlDeviceGetTemperature, (nvml_device, int, unsigned *))                                                        \
    X(nvmlDeviceGetPowerUsage, (nvml_device, unsigned *))                                                              \
    X(nvmlDeviceGetEnforcedPowerLimit, (nvml_device, unsigned *))                                                      \
    X(nvmlDeviceGetClockInfo, (nvml_device, int, unsigned *))

struct nvml {
    void *library;
#define MEMBER(name, arguments) int(*name) arguments;
    NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};

nvml *nvml_open(void)
{
    bool complete = true;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    nvml *n = library ? calloc(1, sizeof *n) : NULL;
    if (!n) {
        if (library)
            dlclose(library);
        return NULL;
    }
    n->library = library;
#define FIND(name, arguments)                                                                                          \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
        memcpy(&n->name, &symbol, sizeof symbol);                                                                      \
        complete &= symbol != NULL;                                                                                    \
    }
    NVML_FUNCTIONS(FIND)
#undef FIND
    if (complete && n->nvmlInit_v2() == 0)
        return n;
    dlclose(library);
    free(n);
    return NULL;
}

void nvml_close(nvml *n)
{
    if (!n)
        return;
    n->nvmlShutdown();
    dlclose(n->library);
    free(n);
}

gpu_state nvml_read(const nvml *n, const char *pci_bus_id)
{
    gpu_state s = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    nvml_device d;
    nvml_utilization load;
    nvml_memory memory;
    unsigned value;
    if (!n || !pci_bus_id[0] || n->nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id, &d) != 0)
        return s;
    if (n->nvmlDeviceGetUtilizationRates(d, &load) == 0)
        s.utilization = load.gpu / 100.0;
    if (n->nvmlDeviceGetMemoryInfo(d, &memory) == 0) {
        s.memory_used = (double)memory.used;
        s.memory_total = (double)memory.total;
    }
    if (n->nvmlDeviceGetTemperature(d, TEMPERATURE_GPU, &value) == 0)
        s.celsius = value;
    if (n->nvmlDeviceGetPowerUsage(d, &value) == 0)
        s.watts = value / 1e3;
    if (n->nvmlDeviceGetEnforcedPowerLimit(d, &value) == 0)
        s.watts_limit = value / 1e3;
    if (n->nvmlDeviceGetClockInfo(d, CLOCK_SM, &value) == 0)
        s.sm_hertz = value * 1e6;
    if (n->nvmlDeviceGetClockInfo(d, CLOCK_MEMORY, &value) == 0)
        s.memory_hertz = value * 1e6;
    return s;
}
#undef NVML_FUNCTIONS
