/* Results of `fsdp bench`, each as a table or as one line of JSON on standard output. */
#ifndef CLI_BENCH_PRINT_H
#define CLI_BENCH_PRINT_H

#include <fsdp/bench.h>

void bench_print_step(const char *workload, const fsdp_bench_result *r, bool json);
void bench_print_kernels(const fsdp_bench_kernels *r, bool json);
void bench_print_profiled(const char *path, const fsdp_bench_profiled *r, bool json);
void bench_print_collectives(const fsdp_bench_collectives *r, bool json);

#endif
