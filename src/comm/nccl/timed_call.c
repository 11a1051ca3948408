/* NCCL's calls that wait for other ranks have no timeout: they run on a thread that can be left behind. Communicators
 * that do not block would do without, but then NCCL starts a thread for every collective. */
#include "comm/nccl/backend.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "device/cuda/cuda_device.h"

enum timed_call_state { ERRAND_RUNNING, ERRAND_DONE, ERRAND_ABANDONED };

nccl_timed_call *nccl_timed_call_new(const comm *c, void (*run)(nccl_timed_call *e))
{
    nccl_timed_call *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->run = run;
    e->device = c->config.device;
    e->api = nccl_world_of(c)->api;
    return e;
}

static void *timed_call_main(void *argument)
{
    nccl_timed_call *e = argument;
    int running = ERRAND_RUNNING;
    if (cuda_enter((const cuda_device *)e->device) == FSDP_OK)
        e->run(e);
    else
        e->result = ncclUnhandledCudaError;
    if (!atomic_compare_exchange_strong(&e->state, &running, ERRAND_DONE))
        free(e);
    return NULL;
}

bool nccl_timed_call_run(nccl_timed_call *e, double seconds, const atomic_bool *watched)
{
    double deadline = clock_seconds() + seconds;
    struct timespec pause = {.tv_nsec = 500000};
    pthread_t thread;
    if (pthread_create(&thread, NULL, timed_call_main, e) != 0) {
        e->result = ncclSystemError;
        return true;
    }
    pthread_detach(thread);
    while (atomic_load(&e->state) == ERRAND_RUNNING && clock_seconds() < deadline && !(watched && atomic_load(watched)))
        nanosleep(&pause, NULL);
    int running = ERRAND_RUNNING;
    return !atomic_compare_exchange_strong(&e->state, &running, ERRAND_ABANDONED);
}
