/* Figures for people and for programs. A rate that is not known is left out of a table and null in JSON. */
#include "bench_print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "json_line.h"

/* "key": number, or null when it is 0: not known. */
static void json_known(const char *key, double value, const char *behind)
{
    if (value > 0)
        printf("\"%s\": %.5g%s", key, value, behind);
    else
        printf("\"%s\": null%s", key, behind);
}

static void json_field(const char *key, const char *text, const char *behind)
{
    printf("\"%s\": ", key);
    json_line_print(stdout, text, strlen(text));
    fputs(behind, stdout);
}

static double share(double rate, double of)
{
    return of > 0 ? rate / of : 0;
}

/* ---- step ---- */

static void json_parts(const char *key, const fsdp_bench_part *parts, int n)
{
    printf(", \"%s\": [", key);
    for (int i = 0; i < n; i++) {
        fputs(i ? ", {" : "{", stdout);
        json_field("name", parts[i].name, ", ");
        printf("\"ms\": %.4f, \"count\": %lld}", parts[i].milliseconds, (long long)parts[i].count);
    }
    fputs("]", stdout);
}

/* JSON has no word for a loss that is not finite. */
static void json_losses(const double *losses, int n)
{
    fputs("\"loss\": [", stdout);
    for (int i = 0; i < n; i++)
        if (isfinite(losses[i]))
            printf("%s%.4f", i ? ", " : "", losses[i]);
        else
            fputs(i ? ", null" : "null", stdout);
    fputs("]", stdout);
}

static void step_json(const char *workload, const fsdp_bench_result *r)
{
    fputs("{", stdout);
    json_field("workload", workload, ", ");
    printf("\"world\": %d, \"N\": %lld, \"batch\": %lld, \"seq\": %lld, \"micro_batches\": %lld, \"ms\": %.2f, "
           "\"ms_best\": %.2f, "
           "\"tok_s\": %.0f, \"tflops\": %.5g, ",
           r->world_size, (long long)r->parameters, (long long)r->batch, (long long)r->width,
           (long long)r->micro_batches, r->milliseconds, r->fastest, r->tokens_per_second, r->tflops);
    json_field("device", r->rates.device, ", ");
    json_field("dtype", r->rates.dtype, ", ");
    json_known("peak_tflops", r->rates.peak_tflops, ", ");
    json_known("matrix_tflops", r->rates.matrix_tflops, ", ");
    json_known("utilisation", share(r->tflops, r->rates.peak_tflops), ", ");
    json_known("utilisation_of_matrix", share(r->tflops, r->rates.matrix_tflops), ", ");
    printf("\"peak_gb\": %.3f, \"comm_ms\": %.2f, \"exposed_ms\": %.2f, \"first_step_s\": %.2f, ",
           (double)r->memory_bytes / (1 << 30), r->communication_ms, r->exposed_ms, r->first_step_seconds);
    json_losses(r->first_losses, sizeof r->first_losses / sizeof *r->first_losses);
    if (r->host_update_ms > 0)
        printf(", \"host_update_ms\": %.2f, \"host_wait_ms\": %.2f, \"host_gb_s\": %.1f", r->host_update_ms,
               r->host_wait_ms, r->host_gigabytes);
    if (r->predicted_milliseconds > 0)
        printf(", \"predicted_ms\": %.4f, \"predicted_exposed_ms\": %.4f", r->predicted_milliseconds,
               r->predicted_exposed_ms);
    if (r->world_size > 1) {
        printf(", \"waits_ms\": %.3f", r->waits_ms);
        json_parts("waits", r->waits, r->n_waits);
    }
    if (r->n_classes > 0) {
        printf(", \"waited_ms\": %.4f", r->waited_milliseconds);
        json_parts("classes", r->classes, r->n_classes);
        json_parts("operations", r->operations, r->n_operations);
    }
    fputs("}\n", stdout);
}

static void table_parts(const fsdp_bench_part *parts, int n, double whole)
{
    for (int i = 0; i < n; i++)
        printf("  %-34s %10.3f ms  %5.1f %%  %6lld\n", parts[i].name, parts[i].milliseconds,
               100 * share(parts[i].milliseconds, whole), (long long)parts[i].count);
}

static void step_table(const char *workload, const fsdp_bench_result *r)
{
    const fsdp_bench_rates *rates = &r->rates;
    if (r->n_classes > 0) {
        printf("step by class of kernels, every operation waited for: %.3f ms\n", r->waited_milliseconds);
        table_parts(r->classes, r->n_classes, r->waited_milliseconds);
        printf("by operation\n");
        table_parts(r->operations, r->n_operations, r->waited_milliseconds);
    }
    if (r->micro_batches > 1)
        printf("%-10s %lld micro-batches of %lld x %lld a step on each rank\n", workload, (long long)r->micro_batches,
               (long long)r->batch, (long long)r->width);
    if (r->world_size > 1 && r->communication_ms > 0)
        printf("%-10s %8.2f ms of collectives a step, %.2f ms exposed\n", workload, r->communication_ms, r->exposed_ms);
    if (r->n_waits > 0)
        printf("%-10s %8.2f ms of a step wait for collectives, %.2f of them for %s\n", workload, r->waits_ms,
               r->waits[0].milliseconds, r->waits[0].name);
    if (r->host_update_ms > 0)
        printf("%-10s %8.2f ms of updates in host memory a step at %.1f GB/s, %.2f ms of them exposed\n", workload,
               r->host_update_ms, r->host_gigabytes, r->host_wait_ms);
    if (r->predicted_milliseconds > 0)
        printf("%-10s %8.2f ms predicted (%+.1f %%), %.2f ms of them exposed communication\n", workload,
               r->predicted_milliseconds, 100 * (share(r->predicted_milliseconds, r->milliseconds) - 1),
               r->predicted_exposed_ms);
    printf("%-10s %8.2f ms  (best %.2f)  %9.0f tokens/s  %.4g TFLOP/s a rank", workload, r->milliseconds, r->fastest,
           r->tokens_per_second, r->tflops);
    if (rates->peak_tflops > 0)
        printf(", %.1f %% of the peak of %g", 100 * share(r->tflops, rates->peak_tflops), rates->peak_tflops);
    if (rates->matrix_tflops > 0)
        printf(", %.1f %% of a measured product's %.3g", 100 * share(r->tflops, rates->matrix_tflops),
               rates->matrix_tflops);
    printf("  %7.3f GiB  first step after %.2f s\n", (double)r->memory_bytes / (1 << 30), r->first_step_seconds);
}

void bench_print_step(const char *workload, const fsdp_bench_result *r, bool json)
{
    (json ? step_json : step_table)(workload, r);
}

/* ---- kernels ---- */

static void kernels_json(const fsdp_bench_kernels *r)
{
    fputs("{", stdout);
    json_field("workload", r->workload, ", ");
    json_field("device", r->rates.device, ", ");
    json_field("dtype", r->rates.dtype, ", ");
    json_known("peak_tflops", r->rates.peak_tflops, ", ");
    json_known("matrix_tflops", r->rates.matrix_tflops, ", ");
    json_known("copy_gb_s", r->rates.copy_gigabytes, ", \"kernels\": [");
    for (int i = 0; i < r->n; i++) {
        const fsdp_bench_kernel *k = &r->rows[i];
        fputs(i ? ", {" : "{", stdout);
        json_field("name", k->name, ", ");
        json_field("shape", k->shape, ", ");
        printf("\"ms\": %.5f, ", k->milliseconds);
        json_known("tflops", k->tflops, ", ");
        json_known("of_peak", share(k->tflops, r->rates.peak_tflops), ", ");
        json_known("of_matrix", share(k->tflops, r->rates.matrix_tflops), ", ");
        json_known("gb_s", k->gigabytes, ", ");
        json_known("of_copy", share(k->gigabytes, r->rates.copy_gigabytes), "}");
    }
    fputs("]}\n", stdout);
}

static void kernels_table(const fsdp_bench_kernels *r)
{
    const fsdp_bench_rates *rates = &r->rates;
    printf("%s, %s, workload %s\n", rates->device, rates->dtype, r->workload);
    printf("a large product %.4g TFLOP/s", rates->matrix_tflops);
    if (rates->peak_tflops > 0)
        printf(" of a peak of %g", rates->peak_tflops);
    printf(", a large copy %.4g GB/s\n\n", rates->copy_gigabytes);
    printf("%-34s %-32s %10s  %s\n", "kernel", "shape", "ms", "rate");
    for (int i = 0; i < r->n; i++) {
        const fsdp_bench_kernel *k = &r->rows[i];
        printf("%-34s %-32s %10.4f  ", k->name, k->shape, k->milliseconds);
        if (k->tflops > 0) {
            printf("%9.3f TFLOP/s  %5.1f %% of product", k->tflops, 100 * share(k->tflops, rates->matrix_tflops));
            if (rates->peak_tflops > 0)
                printf("  %5.1f %% of peak", 100 * share(k->tflops, rates->peak_tflops));
        } else {
            printf("%9.1f GB/s     %5.1f %% of copy", k->gigabytes, 100 * share(k->gigabytes, rates->copy_gigabytes));
        }
        printf("\n");
    }
}

void bench_print_kernels(const fsdp_bench_kernels *r, bool json)
{
    (json ? kernels_json : kernels_table)(r);
}

void bench_print_profiled(const char *path, const fsdp_bench_profiled *r, bool json)
{
    if (json) {
        fputs("{", stdout);
        json_field("profile", path, ", ");
        printf("\"kernels\": %d, \"step_ms\": %.5f, \"predicted_ms\": %.5f}\n", r->kernels, r->milliseconds,
               r->predicted_milliseconds);
        return;
    }
    printf("%s: %d kernels at their shapes; a step takes %.4g ms", path, r->kernels, r->milliseconds);
    if (r->predicted_milliseconds > 0)
        printf(", by this profile %.4g ms", r->predicted_milliseconds);
    putchar('\n');
}

/* ---- collectives ---- */

static void collectives_json(const fsdp_bench_collectives *r)
{
    fputs("{", stdout);
    json_field("device", r->device, ", ");
    json_field("backend", r->backend, ", ");
    printf("\"world\": %d, \"collectives\": [", r->world_size);
    for (int i = 0; i < r->n; i++) {
        const fsdp_bench_collective *c = &r->rows[i];
        fputs(i ? ", {" : "{", stdout);
        json_field("name", c->name, ", ");
        printf("\"bytes\": %lld, \"ms\": %.5f, \"bus_gb_s\": %.4f, \"copy_gb_s\": %.4f}", (long long)c->bytes,
               c->milliseconds, c->bus_gigabytes, c->copy_gigabytes);
    }
    fputs("]}\n", stdout);
}

static void collectives_table(const fsdp_bench_collectives *r)
{
    printf("%d rank%s over %s, %s\n\n", r->world_size, r->world_size == 1 ? "" : "s", r->backend, r->device);
    printf("%-16s %12s %12s %14s %18s\n", "collective", "MiB", "ms", "bus GB/s", "copy of it GB/s");
    for (int i = 0; i < r->n; i++) {
        const fsdp_bench_collective *c = &r->rows[i];
        printf("%-16s %12.3f %12.4f %14.2f %18.2f\n", c->name, (double)c->bytes / (1 << 20), c->milliseconds,
               c->bus_gigabytes, c->copy_gigabytes);
    }
}

void bench_print_collectives(const fsdp_bench_collectives *r, bool json)
{
    (json ? collectives_json : collectives_table)(r);
}
