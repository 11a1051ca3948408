/* What the driver says of a GPU: load, memory, temperature, power, clocks. NVML is opened when it is needed; where
 * there is none, or it does not know a number, that number is NaN. */
#ifndef OBSERVE_SERVE_NVML_H
#define OBSERVE_SERVE_NVML_H

typedef struct gpu_state {
    double utilization;               /* 0 to 1: share of the driver's last period in which a kernel ran */
    double memory_used, memory_total; /* bytes, of all processes */
    double celsius, watts, watts_limit;
    double sm_hertz, memory_hertz;
} gpu_state;

typedef struct nvml nvml;

nvml *nvml_open(void);    /* NULL: there is none */
void nvml_close(nvml *n); /* NULL is legal */
/* `pci_bus_id`: "0000:19:00.0". Takes up to milliseconds: not for the thread that trains. */
gpu_state nvml_read(const nvml *n, const char *pci_bus_id);

#endif
