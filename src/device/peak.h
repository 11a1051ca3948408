/* What a device could do at most: the maker's figure where the device is known by name, and rates measured on the spot.
 * Utilisation, in progress lines and benches, is a share of these. */
#ifndef DEVICE_PEAK_H
#define DEVICE_PEAK_H

#include "device/device.h"

/* Matrix products of `dtype` in TFLOP/s as the maker states them, dense, without tf32. 0: not known, as of every CPU.
 */
double peak_tflops(const device *d, fsdp_dtype dtype);

/* TFLOP/s of one large product of random numbers on `s`, the best of a few; takes about a quarter of a second and,
 * while it runs, three matrices of memory. */
fsdp_status peak_measure_products(device *d, stream *s, fsdp_dtype dtype, double *tflops);

/* GB/s of a large copy within the device's memory, bytes read and bytes written counted. */
fsdp_status peak_measure_copy(device *d, stream *s, double *gigabytes);

#endif
