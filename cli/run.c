/* `fsdp run`: starts a program once per rank of this host. Takes torchrun's flags where it has the same ones. */
#include <stdlib.h>
#include <string.h>

#include <fsdp/launch.h>
#include <fsdp/log.h>

#include "commands.h"

typedef struct run_options {
    fsdp_flag_state state;
    bool standalone, plain, share_cores;
    int64_t nproc_per_node, nnodes, node_rank, master_port, max_restarts;
    const char *master_addr, *rdzv_id;
    double grace;
} run_options;

#define FIELD(name) offsetof(run_options, name)

static const fsdp_flag run_table[] = {
    {.name = "standalone",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(standalone),
     .help = "all ranks run on this host (default with one node)"},
    {.name = "nproc_per_node",
     .aliases = "nproc",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(nproc_per_node),
     .default_value = "1",
     .min = 1,
     .max = 4096,
     .unit = "N",
     .help = "ranks on this host"},
    {.name = "nnodes",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(nnodes),
     .default_value = "1",
     .min = 1,
     .max = 65536,
     .unit = "N",
     .help = "number of hosts"},
    {.name = "node_rank",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(node_rank),
     .default_value = "0",
     .min = 0,
     .max = 65535,
     .unit = "N",
     .help = "number of this host, from 0"},
    {.name = "master_addr",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(master_addr),
     .unit = "HOST",
     .help = "address of rank 0; needed with several hosts"},
    {.name = "master_port",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(master_port),
     .min = 0,
     .max = 65535,
     .unit = "PORT",
     .help = "port on which rank 0 listens (default: a free one; with several hosts 29500)"},
    {.name = "rdzv_id",
     .aliases = "job_token",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(rdzv_id),
     .unit = "TEXT",
     .help = "identifies this job among others at the same address"},
    {.name = "max_restarts",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(max_restarts),
     .default_value = "0",
     .min = 0,
     .max = 1000000,
     .unit = "N",
     .help = "restart all ranks after a failure, up to N times"},
    {.name = "grace",
     .type = FSDP_FLAG_FLOAT,
     .offset = FIELD(grace),
     .default_value = "30",
     .min = 0,
     .max = 1e6,
     .unit = "seconds",
     .help = "time that ranks have to end before they are killed"},
    {.name = "plain",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(plain),
     .help = "print lines of rank 0 without the prefix [rank 0]"},
    {.name = "share_cores",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(share_cores),
     .help = "let every rank use all cores instead of a share of them"},
    {.name = NULL},
};

static const fsdp_flag *run_flags(void)
{
    return run_table;
}

static void show_log(void *context, fsdp_log_level level, const char *line)
{
    (void)context;
    (void)level;
    fprintf(stderr, "fsdp run: %s\n", line);
}

/* Says what is missing or contradictory; NULL when nothing is. */
static const char *wrong_options(const run_options *o, bool has_program)
{
    if (!has_program)
        return "no program is named; `fsdp run --nproc-per-node 2 fsdp train ...` starts two ranks";
    if (o->standalone && o->nnodes > 1)
        return "--standalone and --nnodes contradict each other: a standalone job has one host";
    if (o->node_rank >= o->nnodes)
        return "--node_rank and --nnodes contradict each other: hosts are counted from 0";
    if (o->nnodes > 1 && !o->master_addr)
        return "several hosts need --master_addr: the address of rank 0";
    return NULL;
}

static int launch(const run_options *o, char **program)
{
    fsdp_launch_config config = FSDP_LAUNCH_CONFIG_INIT;
    config.command = (const char *const *)program;
    config.n_ranks = (int)o->nproc_per_node;
    config.n_nodes = (int)o->nnodes;
    config.node = (int)o->node_rank;
    config.master_address = o->master_addr;
    config.master_port = o->nnodes > 1 && o->master_port == 0 ? 29500 : (int)o->master_port;
    config.job_token = o->rdzv_id;
    config.max_restarts = (int)o->max_restarts;
    config.grace_seconds = o->grace;
    config.plain_first = o->plain;
    config.share_cores = o->share_cores;
    fsdp_log_set_sink(show_log, NULL, FSDP_LOG_INFO);
    int exit_code;
    fsdp_status status = fsdp_launch(&config, &exit_code);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    if (status != FSDP_OK)
        command_failed("run", status);
    return exit_code;
}

static int run_run(int argc, char **argv)
{
    run_options options;
    int n_used = 0;
    fsdp_status status = fsdp_flags_init(run_table, &options, &options.state);
    if (status == FSDP_OK)
        status = fsdp_flags_parse_leading(run_table, &options, &options.state, "run", argc, argv, &n_used);
    const char *wrong = status == FSDP_OK ? wrong_options(&options, n_used < argc) : NULL;
    int code;
    if (status != FSDP_OK)
        code = command_failed("run", status);
    else if (wrong)
        code = command_misused("run", "%s", wrong);
    else
        code = launch(&options, argv + n_used); /* argv ends with NULL, and so do its tails */
    fsdp_flags_free(&options.state);
    return code;
}

const command command_run = {
    .name = "run",
    .summary = "Start the ranks of a job on this host, watch them, and end them together",
    .usage = "[FLAGS...] PROGRAM [ARGUMENTS...]",
    .details =
        "  fsdp run --standalone --nproc-per-node 2 fsdp train --preset tiny\n"
        "  fsdp run --nnodes 2 --node_rank 0 --master_addr host0 --nproc-per-node 8 fsdp train --preset llama3_1_8b\n\n"
        "Ranks find RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in their environment.\n"
        "The exit status is that of the first rank that failed, or 127 if the program is not found.\n"
        "SIGINT, SIGTERM and SIGHUP are passed to every rank, and ranks are then not restarted. A second\n"
        "SIGINT kills them.",
    .flags = run_flags,
    .run = run_run,
    .passes_on = true,
};
