/* `fsdp run`: starts a program once per rank of this host, together with the launchers of other hosts. Takes torchrun's
 * flags with torchrun's meaning. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <fsdp/launch.h>
#include <fsdp/log.h>
#include <fsdp/report.h>

#include "commands.h"
#include "terminal.h"

typedef struct run_options {
    fsdp_flag_state state;
    bool standalone, plain, share_cores, no_python, module, run_path, virtual_local_rank;
    int numa_binding;
    int64_t node_rank, master_port, max_restarts;
    const char *nproc_per_node, *nnodes, *master_addr, *rdzv_id, *rdzv_endpoint, *rdzv_backend, *rdzv_conf,
        *rdzv_secret_file;
    const char *log_dir, *redirects, *tee, *local_addr, *local_ranks_filter, *report, *role, *start_method,
        *event_log_handler, *log_line_prefix_template, *signals_to_handle, *logs_specs, *duplicate_stdout_filters,
        *duplicate_stderr_filters;
    double grace, monitor_interval, watchdog, restart_window;
} run_options;

#define FIELD(name) offsetof(run_options, name)
#define TEXT(field, what, text)                                                                                        \
    {                                                                                                                  \
        .name = #field, .type = FSDP_FLAG_TEXT, .offset = FIELD(field), .unit = what, .help = text                     \
    }
#define SECONDS(field, start, text)                                                                                    \
    {                                                                                                                  \
        .name = #field, .type = FSDP_FLAG_FLOAT, .offset = FIELD(field), .default_value = start, .min = 0, .max = 1e7, \
        .unit = "seconds", .help = text                                                                                \
    }
#define SWITCH(field, text)                                                                                            \
    {                                                                                                                  \
        .name = #field, .type = FSDP_FLAG_SWITCH, .offset = FIELD(field), .help = text                                 \
    }

static const fsdp_choice backends[] = {{"c10d", 0, "fsdp etcd etcd_v2"}, {"static", 1, NULL}, {NULL, 0, NULL}};

static const fsdp_choice bindings[] = {{"shares", FSDP_NUMA_SHARES, NULL},
                                       {"node", FSDP_NUMA_NODE, NULL},
                                       {"socket", FSDP_NUMA_SOCKET, NULL},
                                       {"exclusive", FSDP_NUMA_EXCLUSIVE, NULL},
                                       {"core_complex", FSDP_NUMA_CORE_COMPLEX, NULL},
                                       {NULL, 0, NULL}};

static const fsdp_flag run_table[] = {
    SWITCH(standalone, "all ranks run on this host (default with one node)"),
    {.name = "nproc_per_node",
     .aliases = "nproc",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(nproc_per_node),
     .default_value = "1",
     .unit = "N|gpu|cpu|auto",
     .help = "ranks on this host; gpu: one per GPU; cpu: one per core; auto: gpu if there is one, otherwise cpu"},
    {.name = "nnodes",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(nnodes),
     .default_value = "1",
     .unit = "N|MIN:MAX",
     .help = "number of hosts; MIN:MAX: the job continues while at least MIN remain"},
    {.name = "node_rank",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(node_rank),
     .default_value = "-1",
     .min = -1,
     .max = 65535,
     .unit = "N",
     .help = "number of this host, from 0 (default: SLURM_NODEID, JOB_COMPLETION_INDEX, otherwise order of arrival)"},
    {.name = "rdzv_endpoint",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(rdzv_endpoint),
     .unit = "HOST[:PORT]",
     .help = "address where launchers meet, on one of the hosts (default port: 29400)"},
    {.name = "rdzv_id",
     .aliases = "job_token",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(rdzv_id),
     .unit = "TEXT",
     .help = "job name; keeps jobs at the same address apart"},
    {.name = "rdzv_backend",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(rdzv_backend),
     .default_value = "c10d",
     .choices = backends,
     .unit = "c10d|static",
     .help = "accepted for torchrun compatibility; every value means fsdp's own rendezvous"},
    TEXT(rdzv_conf, "KEY=VALUE,...", "timeout (or join_timeout) and last_call_timeout in seconds, as in torchrun"),
    TEXT(rdzv_secret_file, "FILE",
         "file with a secret that all launchers of this job must share (default: the variable FSDP_RDZV_SECRET)"),
    TEXT(master_addr, "HOST", "address of rank 0; without --rdzv_endpoint, launchers meet there too"),
    {.name = "master_port",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(master_port),
     .min = 0,
     .max = 65535,
     .unit = "PORT",
     .help = "port of rank 0 (default: a free one); with --master_addr and several hosts, launchers meet there "
             "(default: 29500)"},
    TEXT(local_addr, "HOST", "address at which other hosts reach this one"),
    {.name = "max_restarts",
     .type = FSDP_FLAG_INT,
     .offset = FIELD(max_restarts),
     .default_value = "0",
     .min = 0,
     .max = 1000000,
     .unit = "N",
     .help = "restart all ranks after a failure, up to N times; not after bad input (status 2) or a request to end"},
    SECONDS(restart_window, "0", "count only restarts of the last N seconds (default: all)"),
    SECONDS(watchdog, "0",
            "treat a rank that makes no progress for N seconds as failed; time in which it has no core does not count "
            "(default: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, otherwise off)"),
    SECONDS(monitor_interval, "0.1", "time between checks of the ranks"),
    {.name = "grace",
     .aliases = "shutdown_timeout",
     .type = FSDP_FLAG_FLOAT,
     .offset = FIELD(grace),
     .default_value = "30",
     .min = 0,
     .max = 1e7,
     .unit = "seconds",
     .help = "time ranks get to exit before they are killed"},
    TEXT(log_dir, "FOLDER",
         "folder for rank output (by attempt and rank) and report.jsonl (default for --redirects and --tee: a new one "
         "in "
         "TMPDIR)"),
    {.name = "redirects",
     .aliases = "r",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(redirects),
     .unit = "0-3|RANK:0-3,...",
     .help = "write output to --log_dir instead of showing it: 1 stdout, 2 stderr, 3 both; or per local rank"},
    {.name = "tee",
     .aliases = "t",
     .type = FSDP_FLAG_TEXT,
     .offset = FIELD(tee),
     .unit = "0-3|RANK:0-3,...",
     .help = "like --redirects, but show the output too"},
    TEXT(local_ranks_filter, "RANK,...", "show only output of these local ranks"),
    TEXT(log_line_prefix_template, "TEXT",
         "prefix of each line; ${rank}, ${local_rank}, ${hostname} and ${role_name} are filled in (default: '[rank "
         "${rank}] ')"),
    TEXT(signals_to_handle, "SIGNAL,...",
         "signals to pass on to the ranks; SIGQUIT is possible, too, and ends `fsdp train` without a save (default: "
         "SIGINT,SIGTERM,SIGHUP,SIGUSR1,SIGUSR2)"),
    TEXT(report, "FILE", "append one line per failure and what was done (default: report.jsonl in --log_dir)"),
    TEXT(role, "TEXT", "accepted for torchrun compatibility; all ranks have one role"),
    TEXT(start_method, "TEXT", "accepted for torchrun compatibility; ranks are programs, which have one way to start"),
    TEXT(event_log_handler, "TEXT", "accepted for torchrun compatibility; --report keeps what happened"),
    TEXT(logs_specs, "TEXT",
         "refused: torchrun's flag for a Python class that chooses files; --log_dir does that here"),
    TEXT(duplicate_stdout_filters, "TEXT,...", "refused: torchrun's second copy of some lines; --tee 1 keeps all"),
    TEXT(duplicate_stderr_filters, "TEXT,...", "refused: torchrun's second copy of some lines; --tee 2 keeps all"),
    SWITCH(run_path, "refused: torchrun's flag to run a script in its own Python; `fsdp run ... python3 SCRIPT` does"),
    {.name = "module",
     .aliases = "m",
     .type = FSDP_FLAG_SWITCH,
     .offset = FIELD(module),
     .help = "refused: torchrun's flag for Python modules, which `fsdp run ... python3 -m MODULE` starts"},
    SWITCH(no_python, "accepted for torchrun compatibility; programs always start as they are"),
    SWITCH(plain, "omit the prefix [rank 0] from lines of rank 0"),
    SWITCH(share_cores, "let every rank use all cores, not just a share"),
    {.name = "numa_binding",
     .type = FSDP_FLAG_CHOICE,
     .offset = FIELD(numa_binding),
     .default_value = "shares",
     .choices = bindings,
     .unit = "shares|node|socket|exclusive|core_complex",
     .help = "cores that a rank may use. shares: a share of all; node: the NUMA node of its GPU; socket: that node's "
             "socket; exclusive: a share of that node, not shared with other ranks; core_complex: cores of that node "
             "with a common cache. Without GPUs, the node is that of the rank's share"},
    SWITCH(virtual_local_rank, "tell every rank LOCAL_RANK 0 and show it only its own GPU (CUDA_VISIBLE_DEVICES)"),
    {.name = NULL},
};

static const fsdp_flag *run_flags(void)
{
    return run_table;
}

static void show_log(void *context, fsdp_log_level level, const char *line)
{
    (void)level;
    if (((const terminal *)context)->live) /* a rank's line of progress may stand there */
        fputs("\r\033[K", stdout), fflush(stdout);
    fprintf(stderr, "fsdp run: %s\n", line);
}

/* ---- what was not given ---- */

static fsdp_status set_default(run_options *o, const char *flag, const char *value)
{
    if (!value || !*value || fsdp_flags_given(run_table, &o->state, flag))
        return FSDP_OK;
    return fsdp_flags_set(run_table, o, &o->state, flag, value, FSDP_FROM_FILE);
}

/* PET_NNODES and the like, as torchrun reads them; then what Slurm and Kubernetes say about this host. */
static fsdp_status take_environment(run_options *o)
{
    for (const fsdp_flag *flag = run_table; flag->name; flag++) {
        char name[64] = "PET_";
        size_t n = 4;
        for (const char *at = flag->name; *at && n < sizeof name - 1; at++)
            name[n++] = (char)(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
        name[n] = 0;
        fsdp_status status = set_default(o, flag->name, getenv(name));
        if (status != FSDP_OK)
            return status;
    }
    const char *monitored = getenv("TORCH_NCCL_ENABLE_MONITORING"), *beat = getenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC");
    bool seconds = beat && *beat && strspn(beat, "0123456789") == strlen(beat);
    if (seconds && !(monitored && strcmp(monitored, "0") == 0) && set_default(o, "watchdog", beat) != FSDP_OK)
        return FSDP_ERR_INPUT;
    fsdp_status status = set_default(o, "node_rank", getenv("SLURM_NODEID"));
    return status == FSDP_OK ? set_default(o, "node_rank", getenv("JOB_COMPLETION_INDEX")) : status;
}

/* ---- what flags mean ---- */

/* Prints what is wrong and is false, or fills in the number. */
static bool read_ranks(const run_options *o, int *n)
{
    const char *text = o->nproc_per_node;
    int gpus = fsdp_launch_count_gpus();
    char *end;
    long value = strtol(text, &end, 10);
    if (strcasecmp(text, "gpu") == 0 && gpus == 0)
        return command_misused("run", "--nproc_per_node gpu: this host has no GPU; cpu and a number are possible"),
               false;
    if (strcasecmp(text, "gpu") == 0 || (strcasecmp(text, "auto") == 0 && gpus > 0))
        value = gpus;
    else if (strcasecmp(text, "cpu") == 0 || strcasecmp(text, "auto") == 0)
        value = fsdp_launch_count_cores();
    else if (end == text || *end || value < 1 || value > 4096)
        return command_misused("run", "--nproc_per_node %s: give a number from 1 to 4096, gpu, cpu or auto", text),
               false;
    *n = (int)value;
    return true;
}

static bool read_nodes(const run_options *o, int *least, int *most)
{
    char *end;
    long low = strtol(o->nnodes, &end, 10), high = low;
    bool read = end != o->nnodes;
    if (read && *end == ':') {
        const char *second = end + 1;
        high = strtol(second, &end, 10);
        read = end != second;
    }
    if (!read || *end || low < 1 || high < low || high > 65536)
        return command_misused("run", "--nnodes %s: give a number of hosts, or MIN:MAX", o->nnodes), false;
    *least = (int)low;
    *most = (int)high;
    return true;
}

/* torchrun's timeouts; its other keys are about stores of its own. */
static bool read_conf(const run_options *o, fsdp_launch_config *c)
{
    static const char *const without_effect[] = {
        "read_timeout",        "close_timeout",          "heartbeat", "is_host", "store_type", "rank",
        "keep_alive_interval", "keep_alive_max_attempt", "use_libuv"};
    for (const char *at = o->rdzv_conf; at && *at;) {
        size_t n = strcspn(at, ","), key = strcspn(at, "=");
        double value = key < n ? strtod(at + key + 1, NULL) : -1;
        bool known = false;
        for (size_t i = 0; i < sizeof without_effect / sizeof *without_effect; i++)
            known = known || (strlen(without_effect[i]) == key && strncmp(at, without_effect[i], key) == 0);
        if (key < n && value >= 0 &&
            ((key == 7 && strncmp(at, "timeout", key) == 0) || (key == 12 && strncmp(at, "join_timeout", key) == 0)))
            c->join_timeout_seconds = value;
        else if (key < n && value >= 0 && key == 17 && strncmp(at, "last_call_timeout", key) == 0)
            c->last_call_seconds = value;
        else if (!known)
            return command_misused("run",
                                   "--rdzv_conf %.*s: join_timeout=SECONDS and last_call_timeout=SECONDS are known",
                                   (int)n, at),
                   false;
        at += n + (at[n] == ',');
    }
    return true;
}

/* Where the launchers meet, in `memory`: the endpoint; else the master's address with several hosts; else nowhere. */
static bool read_endpoint(const run_options *o, fsdp_launch_config *c, char *memory, size_t bytes)
{
    bool at_master = c->max_nodes > 1 && !o->rdzv_endpoint && o->master_addr;
    c->master_address = o->master_addr;
    c->master_port = (int)o->master_port;
    if (o->standalone) {
        if (c->max_nodes > 1)
            return command_misused("run",
                                   "--standalone and --nnodes contradict each other: a standalone job has one host"),
                   false;
        return true;
    }
    if (c->max_nodes > 1 && !o->rdzv_endpoint && !o->master_addr)
        return command_misused("run", "several hosts need --rdzv_endpoint: the address at which their launchers meet"),
               false;
    c->endpoint = o->rdzv_endpoint;
    if (at_master) {
        snprintf(memory, bytes, strchr(o->master_addr, ':') ? "[%s]:%d" : "%s:%d", o->master_addr,
                 o->master_port ? (int)o->master_port : 29500);
        c->endpoint = memory;
        c->master_address = NULL;
        c->master_port = 0;
    }
    return true;
}

/* Flags of torchrun that have no meaning here, and what does what they do. Prints it and is true where one was given.
 */
static bool is_refused(const run_options *o)
{
    const struct {
        bool given;
        const char *instead;
    } all[] = {
        {o->module, "-m names a Python module, and there is no Python in fsdp: write `fsdp run ... python3 -m MODULE "
                    "...`"},
        {o->run_path, "--run_path runs a script in torchrun's own Python, and there is none in fsdp: write `fsdp run "
                      "... python3 SCRIPT ...`"},
        {o->logs_specs, "--logs_specs names a Python class, and there is no Python in fsdp: --log_dir, --redirects and "
                        "--tee say which output goes where"},
        {o->duplicate_stdout_filters, "--duplicate_stdout_filters is not possible: keep all lines with --tee 1, and "
                                      "search stdout.log in --log_dir"},
        {o->duplicate_stderr_filters, "--duplicate_stderr_filters is not possible: keep all lines with --tee 2, and "
                                      "search stderr.log in --log_dir"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].given)
            return command_misused("run", "%s", all[i].instead), true;
    return false;
}

/* What torchrun would give to Python. */
static bool read_program(const run_options *o, char **program)
{
    size_t n = program[0] ? strlen(program[0]) : 0;
    if (is_refused(o))
        return false;
    if (!program[0])
        return command_misused("run",
                               "no program is named; `fsdp run --nproc-per-node 2 fsdp train ...` starts two ranks"),
               false;
    if (n > 3 && strcmp(program[0] + n - 3, ".py") == 0 && !o->no_python)
        return command_misused(
                   "run", "%s is a Python script, and there is no Python in fsdp: write `fsdp run ... python3 %s ...`",
                   program[0], program[0]),
               false;
    return true;
}

/* Ranks that were killed wrote none, and the others did not know why these ended. A program other than `fsdp train`
 * leaves nothing to report. */
static void write_report(const char *folder)
{
    char *text = NULL;
    fsdp_report_config config = FSDP_REPORT_CONFIG_INIT;
    config.folders = &folder;
    config.n_folders = 1;
    fsdp_report(&config, &text);
    free(text);
}

static bool is_asked_for(const char *streams)
{
    return streams && strpbrk(streams, "123");
}

/* Output that is to be kept goes to a folder of its own where none is named, as torchrun has it. */
static bool choose_log_dir(const run_options *o, fsdp_launch_config *c, char *memory, size_t bytes)
{
    const char *where = getenv("TMPDIR");
    c->log_dir = o->log_dir;
    if (o->log_dir || (!is_asked_for(o->redirects) && !is_asked_for(o->tee)))
        return true;
    int n = snprintf(memory, bytes, "%s/fsdp-run-XXXXXX", where && *where ? where : "/tmp");
    if (n < 0 || (size_t)n >= bytes || !mkdtemp(memory))
        return command_misused("run", "no folder for output can be made in %s: name one with --log_dir",
                               where && *where ? where : "/tmp"),
               false;
    fprintf(stderr, "fsdp run: output of the ranks is kept in %s; --log_dir chooses the folder\n", memory);
    c->log_dir = memory;
    return true;
}

static int launch(const run_options *o, char **program)
{
    fsdp_launch_config config = FSDP_LAUNCH_CONFIG_INIT;
    char endpoint[320], log_dir[PATH_MAX];
    config.command = (const char *const *)program;
    if (!read_program(o, program) || !read_ranks(o, &config.n_ranks) ||
        !read_nodes(o, &config.min_nodes, &config.max_nodes) || !read_conf(o, &config) ||
        !read_endpoint(o, &config, endpoint, sizeof endpoint))
        return 2;
    if (o->node_rank >= config.max_nodes && !o->standalone)
        return command_misused("run", "--node_rank and --nnodes contradict each other: hosts are counted from 0");
    config.node = config.max_nodes > 1 ? (int)o->node_rank : -1;
    config.job_id = o->rdzv_id;
    config.secret_file = o->rdzv_secret_file;
    config.local_address = o->local_addr;
    config.max_restarts = (int)o->max_restarts;
    config.restart_window_seconds = o->restart_window;
    config.watchdog_seconds = o->watchdog;
    config.monitor_seconds = o->monitor_interval > 0.01 ? o->monitor_interval : 0.01;
    config.grace_seconds = o->grace;
    if (!choose_log_dir(o, &config, log_dir, sizeof log_dir))
        return 2;
    config.redirects = o->redirects;
    config.tee = o->tee;
    config.shown_ranks = o->local_ranks_filter;
    config.report_file = o->report;
    config.plain_first = o->plain;
    config.share_cores = o->share_cores;
    config.line_prefix = o->log_line_prefix_template;
    config.signals = o->signals_to_handle;
    config.virtual_local_rank = o->virtual_local_rank;
    config.numa_binding = (fsdp_numa_binding)o->numa_binding;
    terminal shown = terminal_open(stdout);
    fsdp_log_set_sink(show_log, &shown, FSDP_LOG_INFO);
    int exit_code;
    char left[PATH_MAX] = "";
    config.left = left;
    config.left_bytes = sizeof left;
    fsdp_status status = fsdp_launch(&config, &exit_code);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    if (status != FSDP_OK)
        command_failed("run", status);
    if (left[0])
        write_report(left);
    return exit_code;
}

static int run_run(int argc, char **argv)
{
    run_options options;
    int n_used = 0;
    fsdp_status status = fsdp_flags_init(run_table, &options, &options.state);
    if (status == FSDP_OK)
        status = fsdp_flags_parse_leading(run_table, &options, &options.state, "run", argc, argv, &n_used);
    if (status == FSDP_OK)
        status = take_environment(&options);
    int code = status == FSDP_OK ? launch(&options, argv + n_used) /* argv ends with NULL, and so do its tails */
                                 : command_failed("run", status);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_run = {
    .name = "run",
    .summary = "Start the ranks of a job on this host, watch them, and stop them together",
    .usage = "[FLAGS...] PROGRAM [ARGUMENTS...]",
    .details =
        "  fsdp run --standalone --nproc-per-node 2 fsdp train --preset tiny\n"
        "  fsdp run --nnodes 2 --nproc-per-node 8 --rdzv-endpoint host0:29400 fsdp train --preset llama3_1_8b\n\n"
        "For several hosts, run the same line on each, in any order; the launchers meet at the endpoint. Ranks get\n"
        "torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the others). Missing flags\n"
        "are read from torchrun's PET_* variables.\n"
        "The exit code is that of the first rank that failed, or 127 if the program is not found. Signals of\n"
        "--signals_to_handle go to every rank; all but SIGUSR2 prevent restarts. A second SIGINT kills all ranks.",
    .flags = run_flags,
    .run = run_run,
    .passes_on = true,
};
