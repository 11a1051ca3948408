/* What fsdp has in place of PyTorch's variables. */
#include "comm/torch_variables.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

extern char **environ;

/* The first row whose beginning matches; longer names come before shorter ones. */
static const struct {
    const char *name, *instead;
} known[] = {
    {"TORCH_DISTRIBUTED_DEBUG", "calls are always compared"},
    {"TORCH_NCCL_TRACE_BUFFER_SIZE", "the last 4096 events are always kept"},
    {"TORCH_FR_BUFFER_SIZE", "the last 4096 events are always kept"},
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "flight files are always written"},
    {"TORCH_FR_DUMP_ON_TIMEOUT", "flight files are always written"},
    {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "FSDP_FLIGHT_DIR names the folder of flight files"},
    {"TORCH_FR_DUMP_TEMP_FILE", "FSDP_FLIGHT_DIR names the folder of flight files"},
    {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "SIGUSR2 writes flight files"},
    {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "`fsdp run --watchdog SECONDS`"},
    {"TORCH_NCCL_ENABLE_MONITORING", "`fsdp run --watchdog SECONDS`"},
    {"TORCH_NCCL_DESYNC_DEBUG", "`fsdp debug DIR` says who is behind"},
    {"TORCH_NCCL_BLOCKING_WAIT", "every wait has a timeout: --comm_timeout"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "a failure always ends all ranks"},
    {"TORCH_NCCL_", "no effect"},
    {"NCCL_TIMEOUT", "--comm_timeout SECONDS"},
    {"NCCL_BLOCKING_WAIT", "every wait has a timeout: --comm_timeout"},
    {"NCCL_ASYNC_ERROR_HANDLING", "a failure always ends all ranks"},
};

static const char *instead_of(const char *variable)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].name);
        bool family = known[i].name[n - 1] == '_';
        if (strncmp(variable, known[i].name, n) == 0 && (family || variable[n] == '='))
            return known[i].instead;
    }
    return NULL;
}

void torch_variables_check(void)
{
    char text[900];
    size_t at = 0;
    for (char **v = environ; *v; v++) {
        const char *instead = instead_of(*v);
        if (instead && at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%.*s (%s)", at ? ", " : "", (int)strcspn(*v, "="),
                                   *v, instead);
    }
    if (at > 0)
        log_write(FSDP_LOG_WARNING, "set for PyTorch, without effect here: %s", text);
}
