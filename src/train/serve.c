/* Tells the exposition and the live page who the ranks are, and what happened between steps; opens the one server that
 * answers for both. */
#include "train/serve.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host/environment.h"
#include "base/host/host_memory.h"
#include "base/log.h"
#include "device/gpu.h"
#include "meet/endpoint.h"
#include "meet/secret.h"
#include "observe/serve/exposition.h"
#include "observe/serve/http_server.h"
#include "observe/units.h"
#include "page/page.h"
#include "plan/workload.h"
#include "report/live/live_run.h"
#include "train/rank_facts.h"

_Static_assert((int)LIVE_CURSOR <= (int)HTTP_CURSOR, "a client's cursor is too small");

enum { MOST_ROUTES = 5, TOKEN_BYTES = 33 };

struct serve {
    exposition *metrics;
    live_run *live;
    char *page;
    size_t page_bytes;
    char *place; /* the file that says where the page is */
    http_server *server;
    http_route routes[MOST_ROUTES];
    char token[TOKEN_BYTES];       /* "": the page needs none */
    char id[SECRET_TEXT_BYTES];    /* tells this run from others that answer at the same port later */
    exposed_events events, before; /* before: without the newest checkpoint, which may turn out to have failed */
    int64_t seen_save;             /* run->last_saved_step at the step before */
};

/* What a rank tells the ones that serve. Plain data that travels between ranks. */
typedef struct served_rank {
    exposed_rank rank;
    int64_t planned[MEMORY_USES];
} served_rank;

static char *answer_metrics(void *context, size_t *bytes)
{
    return exposition_text(context, bytes);
}

static char *answer_document(void *context, size_t *bytes)
{
    return live_run_document(context, false, bytes);
}

static char *answer_lately(void *context, size_t *bytes)
{
    return live_run_document(context, true, bytes);
}

static char *next_message(void *context, int64_t cursor[HTTP_CURSOR], bool last, size_t *bytes)
{
    return live_run_message(context, cursor, last, bytes);
}

static char *answer_page(void *context, size_t *bytes)
{
    const serve *s = context;
    char *copy = malloc(s->page_bytes);
    *bytes = s->page_bytes;
    return copy ? memcpy(copy, s->page, s->page_bytes) : NULL;
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

static int restarts(void)
{
    int64_t n = 0;
    environment_int("TORCHELASTIC_RESTART_COUNT", &n);
    return (int)n;
}

/* ---- Where it listens ---- */

/* One server for both flags: the page's port and address, or those of the metrics where it has none of its own. */
static fsdp_status find_place(const train_run *run, http_config *c)
{
    const fsdp_settings *s = run->settings;
    bool shows = run->rank == 0 && s->dashboard != 0, both = shows && s->metrics_port != 0;
    int64_t port = shows ? s->dashboard : s->metrics_port;
    if (both && port == FSDP_PORT_AUTO)
        port = s->metrics_port;
    if (both && s->metrics_port != FSDP_PORT_AUTO && port != s->metrics_port)
        return error_set(FSDP_ERR_INPUT,
                         "--dashboard %" PRId64 " and --metrics_port %" PRId64
                         ": one server answers for both; give one port, and --dashboard without any",
                         s->dashboard, s->metrics_port);
    if (both && s->dashboard_address && strcmp(s->dashboard_address, s->metrics_address) != 0)
        return error_set(FSDP_ERR_INPUT,
                         "--dashboard_address %s and --metrics_address %s: one server answers for both; give them the "
                         "same address",
                         s->dashboard_address, s->metrics_address);
    c->flag = shows ? "--dashboard" : "--metrics_port";
    c->port = port == FSDP_PORT_AUTO ? 0 : (int)port;
    c->address = shows && s->dashboard_address ? s->dashboard_address : s->metrics_address;
    return FSDP_OK;
}

/* Whoever is not on this host must know the token. */
static fsdp_status make_token(serve *s, const char *address)
{
    endpoint place = {0};
    const char *given = environment_text("FSDP_DASHBOARD_TOKEN");
    char drawn[SECRET_TEXT_BYTES];
    snprintf(place.host, sizeof place.host, "%s", address);
    if (!given && endpoint_is_loopback(&place))
        return FSDP_OK;
    if (given && (strlen(given) >= sizeof s->token || strlen(given) < 8 ||
                  strspn(given, "0123456789abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != strlen(given)))
        return error_set(FSDP_ERR_INPUT, "FSDP_DASHBOARD_TOKEN: give 8 to %d letters, digits, '-' or '_'",
                         TOKEN_BYTES - 1);
    if (!given)
        FSDP_TRY(secret_draw_text(drawn));
    snprintf(s->token, sizeof s->token, "%.*s", TOKEN_BYTES - 1, given ? given : drawn);
    return FSDP_OK;
}

/* ---- What it answers ---- */

static fsdp_status open_metrics(train_run *run, run_snapshot *snapshot, const exposed_rank *ranks, serve *s)
{
    exposition_config c = {.snapshot = snapshot,
                           .ranks = ranks,
                           .n_ranks = run->n_ranks,
                           .node = run->world->job.node,
                           .steps = run->n_steps,
                           .restarts = restarts(),
                           .events = s->events,
                           .run = run->folder.run,
                           .strategy = fsdp_strategy_name(run->sharding.config.strategy),
                           .device = fsdp_world_description(run->world)};
    return exposition_new(&c, &s->metrics);
}

static fsdp_status open_live(train_run *run, const exposed_rank *ranks, const int64_t *planned, serve *s)
{
    char model[160], count[UNITS_TEXT];
    json_t *nothing = json_object();
    snprintf(model, sizeof model, "%s, %s parameters in %d units", model_type_name(&run->model_config),
             units_count(count, (double)fsdp_model_parameters(run->model)), fsdp_model_units(run->model));
    live_config c = {.folder = run->folder.path,
                     .checkpoints = run->folder.checkpoints,
                     .model = model,
                     .strategy = fsdp_strategy_name(run->sharding.config.strategy),
                     .device = fsdp_world_description(run->world),
                     .ranks = ranks,
                     .planned = planned,
                     .n_ranks = run->n_ranks,
                     .node = run->world->job.node,
                     .step = run->step,
                     .steps = run->n_steps,
                     .restarts = restarts(),
                     .events = s->events,
                     .id = s->id};
    page p = {.title = "Training", .language = "en", .view = "live", .kit = "run", .data = nothing, .asks = true};
    fsdp_status status = nothing ? page_text(&p, &s->page, &s->page_bytes)
                                 : error_set(FSDP_ERR_MEMORY, "--dashboard: out of host memory");
    json_decref(nothing);
    FSDP_TRY(status);
    FSDP_TRY(secret_draw_text(s->id));
    return live_run_open(&c, &s->live);
}

/* The metrics are guarded with the page where nobody asked for them by their own flag. */
static int fill_routes(serve *s, bool open_metrics)
{
    static const char html[] = "text/html; charset=utf-8", json[] = "application/json";
    int n = 0;
    s->routes[n++] = (http_route){.path = "/metrics",
                                  .content_type = "text/plain; version=0.0.4; charset=utf-8",
                                  .answer = answer_metrics,
                                  .context = s->metrics,
                                  .guarded = !open_metrics};
    if (!s->live)
        return n;
    s->routes[n++] =
        (http_route){.path = "/", .content_type = html, .answer = answer_page, .context = s, .guarded = true};
    s->routes[n++] = (http_route){
        .path = "/run.json", .content_type = json, .answer = answer_document, .context = s->live, .guarded = true};
    s->routes[n++] = (http_route){
        .path = "/now.json", .content_type = json, .answer = answer_lately, .context = s->live, .guarded = true};
    s->routes[n++] = (http_route){.path = "/events",
                                  .content_type = "text/event-stream",
                                  .next = next_message,
                                  .context = s->live,
                                  .guarded = true};
    return n;
}

/* ---- How others find it ---- */

/* dashboard.json in the run's folder, for `fsdp top`; only its owner may read it, because of the token. */
static void write_place(const train_run *run, const char *address, serve *s)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    json_t *all = json_pack("{s:s, s:i, s:s, s:s, s:s}", "address", address, "port", http_server_port(s->server),
                            "host", host, "id", s->id, "token", s->token);
    char *text = json_dumps(all, 0);
    ssize_t n = text ? (ssize_t)strlen(text) : 0;
    s->place = file_join(run->folder.path, "dashboard.json");
    if (s->place)
        unlink(s->place);
    int fd = s->place ? open(s->place, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || !text || write(fd, text, (size_t)n) != n)
        log_write(FSDP_LOG_WARNING, "no dashboard.json in %s: `fsdp top` needs the port", run->folder.path);
    if (fd >= 0)
        close(fd);
    free(text);
    json_decref(all);
}

static void say_place(train_run *run, const serve *s, const char *address)
{
    char where[320], name[256] = "";
    bool v6 = strchr(address, ':') != NULL, anywhere = strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0;
    int port = http_server_port(s->server);
    if (anywhere)
        gethostname(name, sizeof name - 1);
    const char *host = name[0] ? name : address, *open = v6 && !name[0] ? "[" : "", *close = v6 && !name[0] ? "]" : "";
    if (run->settings->metrics_port != 0) {
        snprintf(where, sizeof where, "metrics for Prometheus: http://%s%s%s:%d/metrics", v6 ? "[" : "", address,
                 v6 ? "]" : "", port);
        run_say(run, FSDP_LINE_INFO, "%s", where);
        if (run->rank != 0)
            log_write(FSDP_LOG_INFO, "%s", where); /* its log file has it: only rank 0 says lines */
    }
    if (s->live)
        run_say(run, FSDP_LINE_INFO, "live page: http://%s%s%s:%d/%s%s", open, host, close, port,
                s->token[0] ? "?token=" : "", s->token);
}

/* With what all ranks are, on the rank that serves. */
static fsdp_status start(train_run *run, run_snapshot *snapshot, const exposed_rank *ranks, const int64_t *planned,
                         serve *s)
{
    http_config c = {.routes = s->routes};
    s->events = s->before = events_at_start(run);
    s->seen_save = run->last_saved_step;
    FSDP_TRY(find_place(run, &c));
    FSDP_TRY(open_metrics(run, snapshot, ranks, s));
    if (run->rank == 0 && run->settings->dashboard != 0) {
        FSDP_TRY(make_token(s, c.address));
        FSDP_TRY(open_live(run, ranks, planned, s));
    }
    c.n_routes = fill_routes(s, run->settings->metrics_port != 0);
    c.token = s->token[0] ? s->token : NULL;
    FSDP_TRY(http_server_open(&c, &s->server));
    say_place(run, s, c.address);
    if (s->live)
        write_place(run, c.address, s);
    return FSDP_OK;
}

/* ---- Opening ---- */

static fsdp_status describe(train_run *run, served_rank *out)
{
    memory_plan plan;
    plan_world world = run_plan_world(run);
    memset(out, 0, sizeof *out); /* it travels: padding, too */
    out->rank = describe_rank(run);
    FSDP_TRY(workload_plan_rank(&run->work, &run->sharding.config, &world, run->rank, &plan));
    rank_facts_classes(run, &plan, out->planned);
    return FSDP_OK;
}

static fsdp_status gather(train_run *run, served_rank *all, exposed_rank *ranks, int64_t *planned)
{
    served_rank mine;
    size_t *bytes = calloc((size_t)run->n_ranks, sizeof *bytes);
    fsdp_status status = bytes ? describe(run, &mine) : error_set(FSDP_ERR_MEMORY, "--dashboard: out of host memory");
    if (status == FSDP_OK)
        status = comm_exchange(comm_world(run->world->comm), "metrics", &mine, sizeof mine, sizeof mine, all, bytes);
    for (int i = 0; i < run->n_ranks && status == FSDP_OK; i++) {
        ranks[i] = all[i].rank;
        memcpy(planned + (size_t)i * MEMORY_USES, all[i].planned, sizeof all[i].planned);
    }
    free(bytes);
    return status;
}

fsdp_status serve_open(train_run *run, run_snapshot *snapshot, serve **out)
{
    const fsdp_settings *set = run->settings;
    *out = NULL;
    if (set->metrics_port == 0 && set->dashboard == 0)
        return FSDP_OK;
    size_t n = (size_t)run->n_ranks;
    served_rank *all = calloc(n, sizeof *all);
    exposed_rank *ranks = calloc(n, sizeof *ranks);
    int64_t *planned = calloc(n * MEMORY_USES, sizeof *planned);
    serve *s = calloc(1, sizeof *s);
    fsdp_status status = all && ranks && planned && s
                             ? gather(run, all, ranks, planned)
                             : error_set(FSDP_ERR_MEMORY, "--metrics_port: out of host memory");
    bool serves = set->metrics_port != 0 ? run->world->job.local_rank == 0 : run->rank == 0;
    if (status == FSDP_OK && serves)
        status = start(run, snapshot, ranks, planned, s);
    free(all);
    free(ranks);
    free(planned);
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
    if (s->place)
        unlink(s->place);
    free(s->place);
    http_server_close(s->server);
    exposition_free(s->metrics);
    live_run_close(s->live);
    free(s->page);
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
    if (s->live)
        live_run_step(s->live, f, ranks, &s->events);
}

void serve_rewind(serve *s, int64_t step)
{
    if (s && s->live)
        live_run_rewind(s->live, step);
}

void serve_validation(serve *s, const train_run *run, double loss)
{
    if (s && s->live)
        live_run_validation(s->live, run->step, loss, run->result.validation_accuracy);
}

void serve_say(serve *s, bool warning, const char *text)
{
    if (s && s->live)
        live_run_say(s->live, warning, text);
}
