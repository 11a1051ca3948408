/* `fsdp bench step`: whole training steps on random tokens, as a line of JSON or a small table. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/bench.h>

#include "commands.h"

static const fsdp_flag *bench_flags(void)
{
    return fsdp_settings_flags();
}

static void print_json(const char *name, const fsdp_bench_result *r)
{
    printf("{\"workload\": \"%s\", \"world\": %d, \"N\": %lld, \"batch\": %lld, \"seq\": %lld, \"ms\": %.2f, "
           "\"ms_best\": %.2f, \"tok_s\": %.0f, "
           "\"tflops\": %.2f, \"peak_gb\": %.3f, \"first_step_s\": %.2f, \"loss\": [%.4f, %.4f, %.4f]}\n",
           name, r->world_size, (long long)r->parameters, (long long)r->batch, (long long)r->width, r->milliseconds,
           r->fastest, r->tokens_per_second, r->tflops, (double)r->memory_bytes / (1 << 30), r->first_step_seconds,
           r->first_losses[0], r->first_losses[1], r->first_losses[2]);
}

static void print_table(const char *name, const fsdp_bench_result *r)
{
    printf("%-10s %8.2f ms  (best %.2f)  %9.0f tokens/s  %7.2f TFLOP/s a rank  %7.3f GiB  first step after %.2f s\n",
           name, r->milliseconds, r->fastest, r->tokens_per_second, r->tflops, (double)r->memory_bytes / (1 << 30),
           r->first_step_seconds);
}

/* Takes "--steps N", "--warmup_steps N", "--breakdown" and "--json" out of the arguments; the rest are settings. */
static int take_own(int argc, char **argv, fsdp_bench_config *c, bool *json)
{
    int kept = 0;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--breakdown") == 0)
            c->breakdown = true;
        else if (strcmp(argv[i], "--json") == 0)
            *json = true;
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
            c->steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--warmup_steps") == 0 && i + 1 < argc)
            c->warmup = atoi(argv[++i]);
        else
            argv[kept++] = argv[i];
    }
    return kept;
}

static int run_bench(int argc, char **argv)
{
    fsdp_bench_config config = FSDP_BENCH_CONFIG_INIT;
    fsdp_bench_result result = FSDP_BENCH_RESULT_INIT;
    fsdp_settings settings;
    if (argc < 1 || strcmp(argv[0], "step") != 0)
        return command_misused("bench", "what to measure? `fsdp bench step [WORKLOAD]`; workloads:\n%s",
                               fsdp_bench_workloads());
    bool json = false;
    argc = take_own(argc - 1, argv + 1, &config, &json);
    argv++;
    if (argc > 0 && argv[0][0] != '-') {
        config.workload = argv[0];
        argc--;
        argv++;
    }
    fsdp_status status = fsdp_settings_init(&settings);
    if (status == FSDP_OK)
        status = fsdp_settings_parse(&settings, "bench", argc, argv);
    if (status == FSDP_OK)
        status = fsdp_bench_step(&settings, &config, &result);
    if (status != FSDP_OK) {
        int code = command_failed("bench", status);
        fsdp_settings_free(&settings);
        return code;
    }
    const char *name = config.workload ? config.workload : "settings", *rank = getenv("RANK");
    if (!rank || strcmp(rank, "0") == 0) {
        (json ? print_json : print_table)(name, &result);
        fputs(result.breakdown, stdout);
    }
    fsdp_settings_free(&settings);
    return 0;
}

const command command_bench = {
    .name = "bench",
    .summary = "measure whole training steps",
    .usage = "step [WORKLOAD] [--steps N] [--warmup_steps N] [--breakdown] [--json] [FLAGS...]",
    .details = "Runs forward, backward, clipping and the optimizer on random tokens and prints the median step.\n"
               "Workloads: cpu-512, single, 1b-8k, 1b-8k-ac, 3.2-1b, 3.2-1b-8, 8b-4k-ac; without one, the model\n"
               "and batch of the flags. All flags of `fsdp train` count.",
    .flags = bench_flags,
    .run = run_bench};
