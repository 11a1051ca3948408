/* `fsdp bench step|kernel|comm`: whole steps, single kernels and collectives, on the device that the flags name. What
 * is printed is bench_print.c's. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/bench.h>

#include "bench_print.h"
#include "commands.h"

enum { MAX_SIZES = 16 };

/* What the command takes besides the flags of `fsdp train`. */
typedef struct options {
    fsdp_flag_state state;
    int64_t steps, warmup_steps;
    bool breakdown, json;
    const char *emulate;
    fsdp_text_list sizes;
    int64_t size;
    const char *profile;
} options;

static const fsdp_flag own_flags[] = {
    {.name = "steps",
     .only = "step",
     .type = FSDP_FLAG_INT,
     .offset = offsetof(options, steps),
     .default_value = "12",
     .min = 1,
     .max = 1e6},
    {.name = "warmup_steps",
     .only = "step",
     .type = FSDP_FLAG_INT,
     .offset = offsetof(options, warmup_steps),
     .default_value = "5",
     .min = 0,
     .max = 1e6},
    {.name = "breakdown", .only = "step", .type = FSDP_FLAG_SWITCH, .offset = offsetof(options, breakdown)},
    {.name = "emulate", .only = "step", .type = FSDP_FLAG_TEXT, .offset = offsetof(options, emulate)},
    {.name = "profile", .type = FSDP_FLAG_TEXT, .offset = offsetof(options, profile)},
    {.name = "sizes", .only = "comm", .type = FSDP_FLAG_LIST, .offset = offsetof(options, sizes)},
    {.name = "json", .type = FSDP_FLAG_SWITCH, .offset = offsetof(options, json)},
    {.name = NULL},
};

/* One entry of --sizes. */
static const fsdp_flag size_flag[] = {
    {.name = "sizes", .type = FSDP_FLAG_BYTES, .offset = offsetof(options, size), .min = 4, .max = 1e15},
    {.name = NULL},
};

typedef struct request {
    fsdp_settings settings;
    options own;
    fsdp_bench_config config;
    int64_t sizes[MAX_SIZES];
} request;

static const fsdp_flag *bench_flags(void)
{
    return fsdp_settings_flags();
}

/* Under `fsdp run` every rank measures and the first one prints. */
static bool is_first(void)
{
    const char *rank = getenv("RANK");
    return !rank || strcmp(rank, "0") == 0;
}

static int run_step(request *q)
{
    fsdp_bench_result r = FSDP_BENCH_RESULT_INIT;
    q->settings.profile = q->own.profile;
    fsdp_status status = fsdp_bench_step(&q->settings, &q->config, &r);
    if (status != FSDP_OK)
        return command_failed("bench", status);
    if (is_first())
        bench_print_step(q->config.workload ? q->config.workload : "settings", &r, q->own.json);
    return 0;
}

static int run_profile(request *q)
{
    fsdp_bench_profiled r = FSDP_BENCH_PROFILED_INIT;
    q->config.profile = q->own.profile;
    fsdp_status status = fsdp_bench_profile(&q->settings, &q->config, &r);
    if (status != FSDP_OK)
        return command_failed("bench", status);
    if (is_first())
        bench_print_profiled(q->own.profile, &r, q->own.json);
    return 0;
}

static int run_kernel(request *q)
{
    if (q->own.profile)
        return run_profile(q);
    fsdp_bench_kernels r = FSDP_BENCH_KERNELS_INIT;
    fsdp_status status = fsdp_bench_kernels_run(&q->settings, &q->config, &r);
    if (status != FSDP_OK)
        return command_failed("bench", status);
    if (is_first())
        bench_print_kernels(&r, q->own.json);
    return 0;
}

static int run_comm(request *q)
{
    fsdp_bench_collectives r = FSDP_BENCH_COLLECTIVES_INIT;
    if (q->own.profile)
        return command_misused("bench", "comm takes no --profile; kernel writes one");
    if (q->config.workload)
        return command_misused("bench", "comm takes --sizes, not a workload (%s)", q->config.workload);
    if (q->own.sizes.n > MAX_SIZES)
        return command_misused("bench", "comm takes at most %d sizes", MAX_SIZES);
    fsdp_status status = fsdp_bench_comm(&q->settings, &q->config, &r);
    if (status != FSDP_OK)
        return command_failed("bench", status);
    if (is_first())
        bench_print_collectives(&r, q->own.json);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(request *q);
} kinds[] = {{"step", run_step}, {"kernel", run_kernel}, {"comm", run_comm}};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static const fsdp_flag *find_own(const char *word)
{
    char name[64];
    size_t length = strncmp(word, "--", 2) == 0 ? strcspn(word + 2, "=") : 0;
    if (length == 0 || length >= sizeof name)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)length, word + 2);
    return fsdp_flags_find(own_flags, name);
}

/* The arguments that are the command's own go to `own`, the rest to `others`, in their order; both have room for argc.
 * Returns the first of its own that is another kind's, or NULL. */
static const fsdp_flag *divide(const char *kind, int argc, char **argv, char **own, int *n_own, char **others,
                               int *n_others)
{
    const fsdp_flag *stray = NULL;
    *n_own = *n_others = 0;
    for (int i = 0; i < argc; i++) {
        const fsdp_flag *flag = find_own(argv[i]);
        if (!flag) {
            others[(*n_others)++] = argv[i];
            continue;
        }
        if (!stray && !fsdp_flags_belongs(flag, kind))
            stray = flag;
        own[(*n_own)++] = argv[i];
        if (flag->type != FSDP_FLAG_SWITCH && !strchr(argv[i], '=') && i + 1 < argc)
            own[(*n_own)++] = argv[++i];
    }
    return stray;
}

static fsdp_status read_sizes(request *q)
{
    fsdp_flag_state state = {.storage = NULL};
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < q->own.sizes.n && i < MAX_SIZES && status == FSDP_OK; i++) {
        status = fsdp_flags_set(size_flag, &q->own, &state, "sizes", q->own.sizes.items[i], FSDP_FROM_COMMAND);
        q->sizes[i] = q->own.size;
        q->config.n_sizes = i + 1;
    }
    q->config.sizes = q->sizes;
    fsdp_flags_free(&state);
    return status;
}

/* `kind` owns --steps and the like; everything else is a setting of the run. *stray: a flag of another kind. */
static fsdp_status read_arguments(request *q, const char *kind, int argc, char **argv, const fsdp_flag **stray)
{
    int n_own, n_others;
    char **own = calloc(2 * (size_t)argc + 2, sizeof *own), **others = own + argc + 1;
    if (!own)
        return FSDP_ERR_MEMORY;
    *stray = divide(kind, argc, argv, own, &n_own, others, &n_others);
    if (*stray) {
        free(own);
        return FSDP_ERR_INPUT;
    }
    if (n_others > 0 && others[0][0] != '-') {
        q->config.workload = others[0];
        others++;
        n_others--;
    }
    fsdp_status status = fsdp_flags_parse(own_flags, &q->own, &q->own.state, kind, n_own, own, NULL, NULL);
    if (status == FSDP_OK)
        status = read_sizes(q);
    if (status == FSDP_OK)
        status = fsdp_settings_parse(&q->settings, "bench", n_others, others);
    q->config.steps = (int)q->own.steps;
    q->config.warmup = (int)q->own.warmup_steps;
    q->config.breakdown = q->own.breakdown;
    if (fsdp_flags_given(own_flags, &q->own.state, "emulate")) /* no links are none that can be emulated */
        q->config.emulate = q->own.emulate ? q->own.emulate : "";
    free(own);
    return status;
}

static int run_kind(int (*run)(request *q), const char *kind, int argc, char **argv)
{
    request q = {.config = FSDP_BENCH_CONFIG_INIT};
    const fsdp_flag *stray = NULL;
    fsdp_status status = fsdp_settings_init(&q.settings);
    if (status == FSDP_OK)
        status = fsdp_flags_init(own_flags, &q.own, &q.own.state);
    if (status == FSDP_OK)
        status = read_arguments(&q, kind, argc, argv, &stray);
    int code;
    if (stray)
        code = command_misused("bench", "--%s belongs to `fsdp bench %s`", stray->name, stray->only);
    else
        code = status == FSDP_OK ? run(&q) : command_failed("bench", status);
    fsdp_flags_free(&q.own.state);
    fsdp_settings_free(&q.settings);
    return code;
}

static int run_bench(int argc, char **argv)
{
    command_show_warnings("bench");
    for (int i = 0; argc > 0 && i < N_KINDS; i++)
        if (strcmp(argv[0], kinds[i].name) == 0)
            return run_kind(kinds[i].run, kinds[i].name, argc - 1, argv + 1);
    return command_misused("bench",
                           "name what to measure: `fsdp bench step`, `fsdp bench kernel` or `fsdp bench comm`");
}

const command command_bench = {
    .name = "bench",
    .summary = "Measure whole steps, kernels or collectives",
    .usage = "step|kernel|comm [WORKLOAD] [--json] [FLAGS...]",
    .details =
        "step [WORKLOAD] [--steps N] [--warmup_steps N] [--breakdown] [--emulate LINKS]\n"
        "    Runs whole steps (forward, backward, clipping, optimizer) on random tokens. Prints the median time, its\n"
        "    TFLOP/s, and their share of the device's peak and of a large matrix product timed in the same run.\n"
        "    --breakdown also shows where the time goes, by kernel class and operation; those steps wait for each\n"
        "    operation. --profile FILE puts the time that the profile predicts beside it. Without a workload, flags "
        "set\n"
        "    model and batch.\n"
        "    --emulate 8@450GBs,2@50GBs measures this process as one rank of two hosts with eight ranks each, joined\n"
        "    at 450 GB/s within a host and 50 GB/s a rank between them: shards, memory and times are those of such\n"
        "    a rank, the losses mean nothing. Exposed is the time by which communication makes a step longer.\n"
        "    --comm_ctas and --comm_memory say how many multiprocessors the collectives take.\n"
        "    With several ranks, real or emulated, it also says how long a step waits for collectives; --json lists\n"
        "    the longest waits.\n"
        "kernel [WORKLOAD]\n"
        "    Times each kernel at the workload's shapes: matrix products and their gradients, attention, norms, rope,\n"
        "    swiglu, loss, embedding, optimizer. Shown as a share of a large matrix product or a copy.\n"
        "kernel [WORKLOAD] --profile FILE|auto\n"
        "    Times the kernels of whole steps where they run, and writes FILE (or adds to it), from which\n"
        "    `fsdp plan --predict --profile FILE` tells how long steps take; auto: where runs look for it. Under\n"
        "    `fsdp run`, collectives are timed, too.\n"
        "comm [--sizes SIZE,SIZE...]\n"
        "    Under `fsdp run --nproc-per-node N`: times all_gather, reduce_scatter and all_reduce of 1, 16 and\n"
        "    128 MiB on the job's backend, beside a plain copy of as many bytes.\n"
        "\n"
        "Workloads: cpu-512, single, 1b-8k, 1b-8k-ac, 3.2-1b, 3.2-1b-8, 8b-4k-ac, tiny. --json prints one line of\n"
        "JSON instead of a table. Flags of `fsdp train` for batch, optimizer, precision, sharding and machine\n"
        "apply; those for the model's shape apply only without a workload.",
    .flags = bench_flags,
    .run = run_bench};
