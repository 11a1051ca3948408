/* Tells the exposition who the ranks are, and what happened between steps. */
#include "train/serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/host/environment.h"
#include "base/error.h"
#include "base/host/host_memory.h"
#include "base/log.h"
#include "device/gpu.h"
#include "observe/serve/exposition.h"
#include "observe/serve/http_server.h"

struct serve {
    exposition *metrics;
    http_server *server;
    http_route route;
    exposed_events events, before; /* before: without the newest checkpoint, which may turn out to have failed */
    int64_t seen_save;             /* run->last_saved_step at the step before */
};

static char *answer(void *context, size_t *bytes)
{
    return exposition_text(context, bytes);
}

static exposed_rank describe_rank(const train_run *run)
{
    exposed_rank r;
    const gpu_properties *gpu = run->world->dev->gpu;
    int sharing = run->world->job.local_world_size;
    memset(&r, 0, sizeof r); /* it travels: padding, too */
    r.node = run->world->job.node;
    if (gpu)
        memcpy(r.pci_bus_id, gpu->pci_bus_id, sizeof r.pci_bus_id);
    r.memory_limit_bytes =
        (int64_t)(gpu ? gpu->memory_bytes : host_memory_available() / (size_t)(sharing ? sharing : 1));
    return r;
}

/* A run that was resumed has a checkpoint already. */
static exposed_events events_at_start(const train_run *run)
{
    struct stat info;
    exposed_events events = {.checkpoint_time = (double)time(NULL), .validation_loss = NAN};
    if (run->last_saved_step > 0 && stat(fsdp_state_path(run->state), &info) == 0) {
        events.checkpoint_step = run->last_saved_step;
        events.checkpoint_time = (double)info.st_mtime;
    }
    return events;
}

/* With what all ranks are, on the rank that serves. */
static fsdp_status start(train_run *run, run_snapshot *snapshot, const exposed_rank *ranks, serve *s)
{
    const fsdp_settings *set = run->settings;
    int64_t restarts = 0;
    environment_int("TORCHELASTIC_RESTART_COUNT", &restarts);
    exposition_config c = {.snapshot = snapshot,
                           .ranks = ranks,
                           .n_ranks = run->n_ranks,
                           .node = run->world->job.node,
                           .steps = run->n_steps,
                           .restarts = (int)restarts,
                           .events = s->events,
                           .run = run->folder.run,
                           .strategy = fsdp_strategy_name(run->sharding.config.strategy),
                           .device = fsdp_world_description(run->world)};
    FSDP_TRY(exposition_new(&c, &s->metrics));
    s->route = (http_route){"/metrics", "text/plain; version=0.0.4; charset=utf-8", answer, s->metrics};
    int port = set->metrics_port == FSDP_PORT_AUTO ? 0 : (int)set->metrics_port;
    FSDP_TRY(http_server_open("--metrics_port", set->metrics_address, port, &s->route, 1, &s->server));
    bool v6 = strchr(set->metrics_address, ':') != NULL;
    char where[320];
    snprintf(where, sizeof where, "metrics for Prometheus: http://%s%s%s:%d/metrics", v6 ? "[" : "",
             set->metrics_address, v6 ? "]" : "", http_server_port(s->server));
    run_say(run, FSDP_LINE_INFO, "%s", where);
    if (run->rank != 0)
        log_write(FSDP_LOG_INFO, "%s", where); /* its log file has it: only rank 0 says lines */
    return FSDP_OK;
}

fsdp_status serve_open(train_run *run, run_snapshot *snapshot, serve **out)
{
    *out = NULL;
    if (run->settings->metrics_port == 0)
        return FSDP_OK;
    exposed_rank mine = describe_rank(run), *ranks = calloc((size_t)run->n_ranks, sizeof *ranks);
    size_t *bytes = calloc((size_t)run->n_ranks, sizeof *bytes);
    serve *s = calloc(1, sizeof *s);
    fsdp_status status = FSDP_OK;
    if (!ranks || !bytes || !s)
        status = error_set(FSDP_ERR_MEMORY, "--metrics_port: out of host memory");
    if (status == FSDP_OK)
        status = comm_exchange(comm_world(run->world->comm), "metrics", &mine, sizeof mine, sizeof mine, ranks, bytes);
    bool serves = run->world->job.local_rank == 0;
    if (status == FSDP_OK && serves) {
        s->events = s->before = events_at_start(run);
        s->seen_save = run->last_saved_step;
        status = start(run, snapshot, ranks, s);
    }
    free(ranks);
    free(bytes);
    if (status == FSDP_OK && serves)
        *out = s;
    else
        serve_close(s);
    return status;
}

void serve_close(serve *s)
{
    if (!s)
        return;
    http_server_close(s->server);
    exposition_free(s->metrics);
    free(s);
}

/* A save counts from its beginning on, until it is known to have failed: then last_saved_step is -1. */
static void follow_saves(serve *s, const train_run *run)
{
    if (run->last_saved_step == s->seen_save)
        return;
    s->seen_save = run->last_saved_step;
    if (run->last_saved_step < 0) {
        int64_t fails = s->events.checkpoint_fails + 1;
        s->events.checkpoint_step = s->before.checkpoint_step;
        s->events.checkpoint_time = s->before.checkpoint_time;
        s->events.checkpoint_fails = fails;
        return;
    }
    s->before = s->events;
    s->events.checkpoint_step = run->last_saved_step;
    s->events.checkpoint_time = (double)time(NULL) - (clock_seconds() - run->last_save);
}

void serve_step(serve *s, const train_run *run, const step_figures *f, const rank_snapshot *ranks)
{
    if (!s)
        return;
    follow_saves(s, run);
    s->events.validation_loss = run->result.validation_loss;
    exposition_add(s->metrics, f, ranks, &s->events);
}
