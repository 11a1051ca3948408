/* Opens libucp, and keeps it from doing more than was asked for: signal handlers, hooks into memory allocation, log
 * lines on standard output. What users set in UCX's own variables stays. */
#include <dlfcn.h>
#include <string.h>
#include <ucm/api/ucm.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "comm/ucx/backend.h"

/* UCX's handlers of fatal signals took the place of the program's when the library was opened: gives it back. Without
 * hooks, memory is registered with RDMA devices anew for every message. */
static void tame(void)
{
    void *services = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL),
         *memory = dlopen("libucm.so.0", RTLD_NOW | RTLD_LOCAL);
    void (*disable_signals)(void) = NULL;
    ucs_status_t (*set_value)(const char *, const char *) = NULL;
    void *found = services ? dlsym(services, "ucs_debug_disable_signals") : NULL;
    memcpy(&disable_signals, &found, sizeof found);
    if (disable_signals && !environment_text("UCX_ERROR_SIGNALS"))
        disable_signals();
    found = services ? dlsym(services, "ucs_global_opts_set_value") : NULL;
    memcpy(&set_value, &found, sizeof found);
    if (set_value && !environment_text("UCX_LOG_LEVEL"))
        (void)set_value("LOG_LEVEL", "fatal"); /* a lost peer is reported by us */
    ucm_global_config_t *options = memory ? dlsym(memory, "ucm_global_opts") : NULL;
    if (options && !environment_text("UCX_MEM_EVENTS"))
        options->enable_events = 0;
}

fsdp_status ucx_open_library(ucx_api *api)
{
    const char *missing = NULL;
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL); /* stays open: it cannot be loaded twice */
    if (!library)
        return error_set(FSDP_ERR_UNSUPPORTED, "libucp.so.0 was not found; install UCX (apt install libucx0), or use "
                                               "--comm_backend mpi");
    tame();
#define FIND(name)                                                                                                     \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
        memcpy(&api->name, &symbol, sizeof symbol);                                                                    \
        missing = symbol ? missing : #name;                                                                            \
    }
    UCX_FUNCTIONS(FIND)
#undef FIND
    if (missing)
        return error_set(FSDP_ERR_UNSUPPORTED, "libucp.so.0 is too old (no %s); UCX 1.11 or newer is needed", missing);
    return FSDP_OK;
}
