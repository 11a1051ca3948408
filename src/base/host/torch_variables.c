/* What fsdp has in place of PyTorch's variables. */
#include "base/host/torch_variables.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/host/environment.h"
#include "base/log.h"

extern char **environ;

/* Of a rank that `fsdp run` has not started: there is nobody who would take it over. */
enum { LONE_RANK = 4 };

/* The first row whose beginning matches; longer names come before shorter ones, and families end with "_". */
static const struct {
    const char *name, *instead;
    int readers;
} known[] = {
    {"TORCH_DISTRIBUTED_DEBUG", "calls are always compared", TORCH_RANK},
    {"TORCH_CPP_LOG_LEVEL", "--log_level", TORCH_RANK},
    {"TORCH_SHOW_CPP_STACKTRACES", "a crash always prints a backtrace", TORCH_RANK},
    {"TORCH_NCCL_TRACE_BUFFER_SIZE", "the last 4096 events are always kept", TORCH_RANK},
    {"TORCH_FR_BUFFER_SIZE", "the last 4096 events are always kept", TORCH_RANK},
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "flight files are always written", TORCH_RANK},
    {"TORCH_FR_DUMP_ON_TIMEOUT", "flight files are always written", TORCH_RANK},
    {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "FSDP_FLIGHT_DIR names the folder of flight files", TORCH_RANK},
    {"TORCH_FR_DUMP_TEMP_FILE", "FSDP_FLIGHT_DIR names the folder of flight files", TORCH_RANK},
    {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "SIGUSR2 writes flight files", TORCH_RANK},
    {"TORCH_FR_", "flight files are always written", TORCH_RANK},
    {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "`fsdp run --watchdog SECONDS`", LONE_RANK},
    {"TORCH_NCCL_ENABLE_MONITORING", "`fsdp run --watchdog SECONDS`", LONE_RANK},
    {"TORCH_NCCL_DESYNC_DEBUG", "`fsdp debug DIR` says who is behind", TORCH_RANK},
    {"TORCH_NCCL_BLOCKING_WAIT", "every wait has a timeout: --comm_timeout", TORCH_RANK},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "a failure always ends all ranks", TORCH_RANK},
    {"TORCH_NCCL_ENABLE_TIMING", "--trace, and the laps in metrics.jsonl", TORCH_RANK},
    {"TORCH_NCCL_", "no effect", TORCH_RANK},
    {"NCCL_BLOCKING_WAIT", "every wait has a timeout: --comm_timeout", TORCH_RANK},
    {"NCCL_ASYNC_ERROR_HANDLING", "a failure always ends all ranks", TORCH_RANK},
    {"NCCL_DESYNC_DEBUG", "`fsdp debug DIR` says who is behind", TORCH_RANK},
    {"NCCL_ENABLE_TIMING", "--trace, and the laps in metrics.jsonl", TORCH_RANK},
    {"GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES names the network of CPU jobs", TORCH_RANK},
    {"TORCH_GLOO_", "no effect", TORCH_RANK},
    {"GLOO_", "no effect", TORCH_RANK},
    {"TP_SOCKET_IFNAME", "UCX_NET_DEVICES names the network of CPU jobs", TORCH_RANK},
    {"PYTORCH_CUDA_ALLOC_CONF", "memory is planned before the first step", TORCH_RANK},
    {"PYTORCH_ALLOC_CONF", "memory is planned before the first step", TORCH_RANK},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "memory is planned before the first step", TORCH_RANK},
    {"FSDP_SHARDING_STRATEGY", "--sharding_strategy", TORCH_RANK},
    {"FSDP_OFFLOAD_PARAMS", "--cpu_offload", TORCH_RANK},
    {"FSDP_ACTIVATION_CHECKPOINTING", "--activation_checkpointing", TORCH_RANK},
    {"FSDP_STATE_DICT_TYPE", "--checkpoint_kind", TORCH_RANK},
    {"ACCELERATE_MIXED_PRECISION", "--param_dtype", TORCH_RANK},
    {"ACCELERATE_", "no effect", TORCH_RANK},
    {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "--log_line_prefix_template", TORCH_LAUNCHER},
    {"TORCHELASTIC_ENABLE_FILE_TIMER", "--watchdog SECONDS", TORCH_LAUNCHER},
    {"TORCHELASTIC_TIMER_FILE", "--watchdog SECONDS", TORCH_LAUNCHER},
    {"TORCHELASTIC_HEALTH_CHECK_PORT", "`fsdp train --metrics_port PORT`", TORCH_LAUNCHER},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "--signals_to_handle", TORCH_LAUNCHER},
    {"TORCHELASTIC_ERROR_FILE", "--report FILE", TORCH_LAUNCHER},
    {"PET_START_METHOD", "no effect", TORCH_LAUNCHER},
    {"PET_EVENT_LOG_HANDLER", "--report FILE", TORCH_LAUNCHER},
};

static const char *instead_of(const char *variable, int readers)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].name);
        bool family = known[i].name[n - 1] == '_';
        if (strncmp(variable, known[i].name, n) == 0 && (family || variable[n] == '='))
            return known[i].readers & readers ? known[i].instead : NULL;
    }
    return NULL;
}

void torch_variables_check(torch_reader reader)
{
    char text[900] = "";
    size_t at = 0;
    int n = 0, left_out = 0;
    int readers =
        reader == TORCH_RANK && !environment_text("FSDP_RDZV_ENDPOINT") ? TORCH_RANK | LONE_RANK : (int)reader;
    for (char **v = environ; *v; v++) {
        char word[256];
        const char *instead = instead_of(*v, readers);
        if (!instead)
            continue;
        int length = snprintf(word, sizeof word, "%s%.*s (%s)", n ? ", " : "", (int)strcspn(*v, "="), *v, instead);
        n++;
        if (length >= (int)sizeof word || at + (size_t)length >= sizeof text) {
            left_out++;
            continue;
        }
        memcpy(text + at, word, (size_t)length + 1);
        at += (size_t)length;
    }
    if (n > 0 && left_out > 0)
        log_write(FSDP_LOG_WARNING, "set for PyTorch, without effect here: %s, and %d more", text, left_out);
    else if (n > 0)
        log_write(FSDP_LOG_WARNING, "set for PyTorch, without effect here: %s", text);
}
