/* Transfers of offloaded units between device and host, and the optimizer's work there. */
#include "shard/offload/offload.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "base/log.h"
#include "optim/update.h"
#include "shard/build/wrap.h"
#include "shard/offload/worker.h"

#define TIMEOUT_SECONDS 600.0 /* for one unit; the largest take a second */

typedef struct offload_unit {
    event *preloaded; /* the sum of earlier micro-batches is back on the device */
    event *landed;    /* the gradient is in host memory */
    event *refreshed; /* the copy has come */
    int slice;        /* of the optimizer, -1: nothing to train */
    bool leaving;     /* compute has not waited for `landed` yet */
    bool coming;      /* compute has not waited for `refreshed` yet */
    bool updated;     /* `refreshed` has been recorded: the device may still read what it waits for */
    bool offered;     /* in this step: `made` may be set, and nobody has decided whether that stands; the caller's */
    bool given;   /* to the worker, to be updated ahead of the norm; the caller's, while it is not with the worker */
    bool made;    /* updated ahead of the norm; likewise */
    bool squared; /* the squares of this step's gradient are taken, or being taken */
} offload_unit;

struct offload {
    fsdp_model *model;
    device *host;
    bool owns_host;
    stream *host_stream, *worker_stream; /* of host: the caller's thread, the worker's */
    stream *sums;                        /* remaining sums and squares, which must not wait for gradients that leave */
    stream *out, *in, *back;             /* to the host; to the device: copies (the worker's), sums (the caller's) */
    event *marker;                       /* how far compute has come */
    event *summed;                       /* how far sums has come: all squares enqueued so far */
    offload_unit *units;                 /* (n_units) */
    int *order;                          /* (n_units): scratch for handing over */
    unit_worker *worker;
    offload_updater update;
    void *update_context;
    offload_runner runner; /* takes NULL: nothing runs ahead */
    bool stands;           /* what ran ahead of the step that is being updated */
    double update_begun;
    offload_figures figures;
};

/* ---- Which units ---- */

static int64_t trained_numel(const fsdp_model *m, int index)
{
    int64_t n = 0;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        n += p->unit == index && p->trainable ? p->numel : 0;
    }
    return n;
}

/* Of the units to be offloaded, the first ones in the module tree stay, as far as the configuration lets them. One that
 * is too large is offloaded, and a smaller one after it may stay. */
static void keep_residents(fsdp_model *m, int n_units)
{
    int64_t all = 0, kept = 0;
    for (int i = 0; i < n_units; i++)
        all += m->offloaded[i] ? trained_numel(m, i) : 0;
    for (int i = 0; i < m->contents.n_parameters && m->config.cpu_offload_resident > 0; i++) {
        int index = m->contents.parameters[i]->unit;
        int64_t n = trained_numel(m, index);
        if (!m->offloaded[index] || (double)(kept + n) * 100 > (double)all * m->config.cpu_offload_resident)
            continue;
        m->offloaded[index] = false;
        kept += n;
    }
}

fsdp_status offload_choose(fsdp_model *m, int n_units, const char *const *names)
{
    fsdp_config *c = &m->config;
    if (c->cpu_offload_resident < 0 || c->cpu_offload_resident > 100)
        return error_set(FSDP_ERR_INPUT, "cpu_offload_resident is %d; it is a percentage, from 0 to 100",
                         c->cpu_offload_resident);
    m->offloaded = calloc((size_t)n_units, sizeof *m->offloaded);
    if (!m->offloaded)
        return error_set(FSDP_ERR_MEMORY, "choosing units to offload: out of host memory");
    for (int i = 0; i < n_units; i++)
        m->offloaded[i] = c->cpu_offload && c->n_cpu_offload_units == 0;
    for (int g = 0; g < c->n_cpu_offload_units; g++) {
        int matched = 0;
        for (int i = 0; i < n_units; i++) {
            bool match = fnmatch(c->cpu_offload_units[g], names[i], 0) == 0;
            m->offloaded[i] |= match && c->cpu_offload;
            matched += match;
        }
        if (matched == 0)
            return wrap_no_such_unit("cpu_offload_units", c->cpu_offload_units[g], n_units, names);
    }
    keep_residents(m, n_units);
    c->cpu_offload_units = NULL; /* the caller's, and no longer needed */
    c->n_cpu_offload_units = 0;
    return FSDP_OK;
}

bool offload_any(const fsdp_model *m)
{
    for (int i = 0; i < m->layout->n_units; i++) {
        if (m->offloaded[i])
            return true;
    }
    return false;
}

/* The thread that updates units in host memory cannot wait for other ranks. */
fsdp_status offload_check_optimizer(const fsdp_model *m, fsdp_optimizer_kind kind)
{
    if (offload_any(m) && !update_is_local(kind))
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s does not update units in host memory: turn off cpu_offload, or use AdamW",
                         kind == FSDP_MUON ? "Muon" : "Adafactor");
    return FSDP_OK;
}

/* ---- Beginning and end ---- */

static fsdp_status open_host(offload *o)
{
    device *dev = o->model->dev;
    if (!dev->own_memory) {
        o->host = dev;
    } else {
        FSDP_TRY(device_open_cpu(CPU_GEMM_PORTABLE, &o->host)); /* no products are asked of it: nothing to probe */
        o->owns_host = true;
    }
    FSDP_TRY(o->host->stream_create(o->host, 0, &o->host_stream));
    return o->host->stream_create(o->host, 0, &o->worker_stream);
}

static fsdp_status create_events(offload *o)
{
    device *dev = o->model->dev;
    FSDP_TRY(dev->event_create(dev, &o->marker));
    FSDP_TRY(dev->event_create(dev, &o->summed));
    for (int i = 0; i < o->model->layout->n_units; i++) {
        offload_unit *u = &o->units[i];
        if (!o->model->offloaded[i])
            continue;
        FSDP_TRY(dev->event_create(dev, &u->preloaded));
        FSDP_TRY(dev->event_create(dev, &u->landed));
        FSDP_TRY(dev->event_create(dev, &u->refreshed));
    }
    return FSDP_OK;
}

static void number_slices(offload *o)
{
    const fsdp_model *m = o->model;
    for (int i = 0; i < m->layout->n_units; i++)
        o->units[i].slice = -1;
    for (int s = 0; s < model_ranges(m); s++)
        o->units[model_range_unit(m, s)].slice = s;
    for (int i = 0; i < m->layout->n_units; i++) {
        if (m->offloaded[i] && o->units[i].slice >= 0)
            o->figures.parameters += m->units[i].segments[0].numel;
    }
}

fsdp_status offload_create(fsdp_model *m, offload **out)
{
    device *dev = m->dev;
    offload *o = calloc(1, sizeof *o);
    fsdp_status status;
    if (!o)
        return error_set(FSDP_ERR_MEMORY, "offloading units: out of host memory");
    o->model = m;
    o->units = calloc((size_t)m->layout->n_units, sizeof *o->units);
    o->order = calloc((size_t)m->layout->n_units, sizeof *o->order);
    if (!o->units || !o->order) {
        status = error_set(FSDP_ERR_MEMORY, "offloading units: out of host memory");
        goto fail;
    }
    TRY_OR(fail, open_host(o));
    TRY_OR(fail, dev->stream_create(dev, 1, &o->sums));
    TRY_OR(fail, dev->stream_create(dev, 1, &o->out));
    TRY_OR(fail, dev->stream_create(dev, 1, &o->in));
    TRY_OR(fail, dev->stream_create(dev, 1, &o->back));
    TRY_OR(fail, create_events(o));
    number_slices(o);
    TRY_OR(fail, unit_worker_create(m->layout, TIMEOUT_SECONDS, &o->worker));
    *out = o;
    return FSDP_OK;
fail:
    offload_free(o);
    return status;
}

static void free_stream(device *dev, stream *s)
{
    if (!s)
        return;
    (void)dev->stream_synchronize(s);
    dev->stream_free(s);
}

static void log_figures(const offload *o)
{
    const offload_figures *f = &o->figures;
    double n = (double)f->updates;
    if (f->updates > 0)
        log_write(FSDP_LOG_INFO,
                  "offload: %lld updates of %.1f M parameters in host memory (%.1f M of them by the device, %.1f M "
                  "before the norm was known), %.1f ms each "
                  "(%.1f ms of arithmetic), of which the next step waited %.1f ms",
                  (long long)f->updates, (double)f->parameters / 1e6, (double)f->on_device / n / 1e6,
                  (double)f->ahead / n / 1e6, f->span_seconds * 1e3 / n, f->update_seconds * 1e3 / n,
                  f->wait_seconds * 1e3 / n);
}

void offload_free(offload *o)
{
    if (!o)
        return;
    device *dev = o->model->dev;
    unit_worker_free(o->worker);
    log_figures(o);
    free_stream(dev, o->sums);
    free_stream(dev, o->out);
    free_stream(dev, o->in);
    free_stream(dev, o->back);
    for (int i = 0; o->units && i < o->model->layout->n_units; i++) {
        dev->event_free(o->units[i].preloaded);
        dev->event_free(o->units[i].landed);
        dev->event_free(o->units[i].refreshed);
    }
    dev->event_free(o->marker);
    dev->event_free(o->summed);
    if (o->host) {
        o->host->stream_free(o->host_stream);
        o->host->stream_free(o->worker_stream);
    }
    if (o->owns_host)
        device_close(o->host);
    free(o->order);
    free(o->units);
    free(o);
}

device *offload_host(const fsdp_model *m)
{
    return m->offload ? m->offload->host : NULL;
}

stream *offload_host_stream(const fsdp_model *m)
{
    return m->offload ? m->offload->host_stream : NULL;
}

/* ---- Gradients ---- */

/* Work enqueued on `s` from now on runs after what compute has so far. */
static fsdp_status follow_compute(offload *o, stream *s)
{
    device *dev = o->model->dev;
    FSDP_TRY(dev->event_record(o->model->compute, o->marker));
    return dev->stream_wait(s, o->marker);
}

static size_t gradient_bytes(const fsdp_model *m, int index)
{
    return (size_t)m->units[index].segments[0].numel * fsdp_dtype_size(m->config.gradient_dtype);
}

fsdp_status offload_landed(fsdp_model *m, int index)
{
    offload_unit *u = &m->offload->units[index];
    if (!u->leaving)
        return FSDP_OK;
    u->leaving = false;
    return m->dev->stream_wait(m->compute, u->landed);
}

fsdp_status offload_begin(fsdp_model *m)
{
    FSDP_TRY(offload_undo_ahead(m));
    for (int i = 0; m->offload && i < m->layout->n_units; i++)
        FSDP_TRY(offload_landed(m, i));
    return FSDP_OK;
}

fsdp_status offload_preload(fsdp_model *m, int index, void *to)
{
    offload *o = m->offload;
    offload_unit *u = &o->units[index];
    FSDP_TRY(follow_compute(o, o->back));
    FSDP_TRY(m->dev->stream_wait(o->back, u->landed));
    FSDP_TRY(m->dev->copy(o->back, to, m->units[index].segments[0].gradient, gradient_bytes(m, index)));
    HOOK(HOOK_UNIT, HOOK_INSTANT, m->units[index].layout->name, "SUM TO DEVICE", 0, 2);
    return m->dev->event_record(o->back, u->preloaded);
}

fsdp_status offload_preloaded(fsdp_model *m, int index)
{
    return m->dev->stream_wait(m->compute, m->offload->units[index].preloaded);
}

static fsdp_status is_ready(void *context, int index, bool *ready);
static fsdp_status update_unit(void *context, int index);

static unit_work work_of(offload *o)
{
    return (unit_work){.ready = is_ready, .run = update_unit, .context = o};
}

/* The unit's gradient is on its way to the host, complete: its update may begin when it is there. */
static fsdp_status offer_ahead(offload *o, int index)
{
    offload_unit *u = &o->units[index];
    if (!o->runner.takes || u->slice < 0)
        return FSDP_OK;
    FSDP_TRY(offload_wait(o->model)); /* for the last update, which may read old values of the step before */
    if (!o->runner.takes(o->runner.context, u->slice))
        return FSDP_OK;
    unit_work work = work_of(o);
    u->offered = u->given = true;
    return unit_worker_add(o->worker, &work, index);
}

fsdp_status offload_land(fsdp_model *m, int index, void *landing, bool last)
{
    offload *o = m->offload;
    offload_unit *to = &o->units[index];
    unit *u = &m->units[index];
    const unit_segment *segment = &u->segments[0];
    FSDP_TRY(unit_worker_wait(o->worker, index)); /* it reads the gradient of the step before */
    FSDP_TRY(follow_compute(o, o->sums));
    FSDP_TRY(comm_wait(&u->reduce, o->sums));
    if (last && model_has_replicas(m, index)) {
        FSDP_TRY(unit_replicate(u, m->shardings[index].replica_group, landing, m->step, o->sums));
        FSDP_TRY(comm_wait(&u->replicate, o->sums));
    }
    if (last)
        FSDP_TRY(model_squares(m, index, landing, &m->unit_squares[index], false, o->sums));
    to->squared = last;
    FSDP_TRY(m->dev->event_record(o->sums, o->summed));
    FSDP_TRY(m->dev->stream_wait(o->out, o->summed));
    if (to->updated)
        FSDP_TRY(m->dev->stream_wait(o->out, to->refreshed));
    FSDP_TRY(m->dev->copy(o->out, segment->gradient, landing, gradient_bytes(m, index)));
    HOOK(HOOK_UNIT, HOOK_INSTANT, u->layout->name, "GRADIENT TO HOST", 0, 2);
    FSDP_TRY(m->dev->event_record(o->out, to->landed));
    to->leaving = true;
    return last ? offer_ahead(o, index) : FSDP_OK;
}

fsdp_status offload_clear(fsdp_model *m, int index)
{
    offload *o = m->offload;
    FSDP_TRY(unit_worker_wait(o->worker, index));
    FSDP_TRY(m->dev->stream_synchronize(o->out));
    FSDP_TRY(m->dev->stream_synchronize(o->in)); /* the device reads gradients, too */
    return o->host->zero(o->host_stream, m->units[index].segments[0].gradient, gradient_bytes(m, index));
}

static fsdp_status reduce_to(fsdp_model *m, int index, uint8_t *held, void *landing)
{
    unit *u = &m->units[index];
    FSDP_TRY(unit_reduce(u, m->shardings[index].shard_group, m->policies[index].reduce_dtype, held, landing, false,
                         m->step, m->compute));
    FSDP_TRY(offload_land(m, index, landing, true));
    return unit_reduced(u, m->compute);
}

static fsdp_status bring_back(fsdp_model *m, int index, void *landing)
{
    FSDP_TRY(offload_preload(m, index, landing));
    FSDP_TRY(offload_preloaded(m, index));
    return offload_land(m, index, landing, true);
}

/* A unit that the last micro-batch did not train is closed like the others: from its full gradients at `held`, or,
 * where those are reduced (NULL), from the sum that comes back once more. */
static fsdp_status close_untrained(fsdp_model *m, int index, uint8_t *held)
{
    offload *o = m->offload;
    size_t bytes = gradient_bytes(m, index);
    void *landing;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, bytes, &landing));
    fsdp_status status = held ? reduce_to(m, index, held, landing) : bring_back(m, index, landing);
    fsdp_status ended = m->dev->stream_synchronize(o->out);
    m->dev->release(m->dev, MEMORY_DEVICE, landing, bytes);
    return status == FSDP_OK ? ended : status;
}

fsdp_status offload_reduce(fsdp_model *m, int index, uint8_t *held)
{
    return close_untrained(m, index, held);
}

fsdp_status offload_finish_gradients(fsdp_model *m)
{
    offload *o = m->offload;
    for (int i = 0; o && i < m->layout->n_units; i++) {
        if (m->offloaded[i] && o->units[i].slice >= 0 && !o->units[i].squared)
            FSDP_TRY(close_untrained(m, i, NULL));
        o->units[i].squared = false;
    }
    return o ? m->dev->stream_wait(m->compute, o->summed) : FSDP_OK;
}

/* On the device and over the whole part, as when it landed, so that the sum has the same order. */
static fsdp_status take_squares(fsdp_model *m, int index)
{
    offload *o = m->offload;
    size_t bytes = gradient_bytes(m, index);
    void *copy;
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, bytes, &copy));
    const unit_segment *segment = &m->units[index].segments[0];
    fsdp_status status = m->dev->copy(o->sums, copy, segment->gradient, bytes);
    if (status == FSDP_OK)
        status = model_squares(m, index, copy, &m->unit_squares[index], false, o->sums);
    fsdp_status ended = m->dev->stream_synchronize(o->sums);
    m->dev->release(m->dev, MEMORY_DEVICE, copy, bytes);
    return status == FSDP_OK ? ended : status;
}

fsdp_status offload_take_squares(fsdp_model *m)
{
    offload *o = m->offload;
    for (int i = 0; o && i < m->layout->n_units; i++) {
        if (m->offloaded[i] && o->units[i].slice >= 0)
            FSDP_TRY(take_squares(m, i));
    }
    return FSDP_OK;
}

/* ---- The update ---- */

static fsdp_status is_ready(void *context, int index, bool *ready)
{
    const offload *o = context;
    device *dev = o->model->dev;
    FSDP_TRY(dev->event_done(o->units[index].landed, ready));
    return *ready ? dev->event_done(o->units[index].refreshed, ready) : FSDP_OK;
}

/* The unit's update, unless it was made ahead of the norm and stands. */
static fsdp_status make_update(offload *o, offload_unit *u, int64_t numel, int64_t *on_host)
{
    bool made = u->made;
    u->made = u->given;
    if (u->given)
        return o->runner.update(o->runner.context, u->slice, o->worker_stream);
    if (made && o->stands) {
        o->figures.ahead += numel;
        return FSDP_OK;
    }
    if (made) {
        o->figures.redone += numel;
        FSDP_TRY(o->runner.restore(o->runner.context, u->slice, o->worker_stream));
    }
    return o->update(o->update_context, u->slice, (offload_lanes){o->worker_stream, o->in}, on_host);
}

static fsdp_status update_unit(void *context, int index)
{
    offload *o = context;
    fsdp_model *m = o->model;
    const unit_segment *segment = &m->units[index].segments[0];
    int64_t on_host = segment->numel;
    double begun = clock_seconds();
    HOOK(HOOK_PHASE, HOOK_BEGIN, "update in host memory", m->units[index].layout->name, 0, 2);
    FSDP_TRY(make_update(o, &o->units[index], segment->numel, &on_host));
    HOOK(HOOK_PHASE, HOOK_END, "update in host memory", m->units[index].layout->name, 0, 2);
    if (o->units[index].given) { /* the copy waits until it is known that the update stands */
        o->figures.update_seconds += clock_seconds() - begun;
        return FSDP_OK;
    }
    FSDP_TRY(m->dev->copy(o->in, segment->copy, segment->host_copy, (size_t)on_host * fsdp_dtype_size(segment->dtype)));
    FSDP_TRY(m->dev->event_record(o->in, o->units[index].refreshed));
    o->units[index].updated = true;
    o->figures.on_device += segment->numel - on_host;
    double now = clock_seconds();
    o->figures.update_seconds += now - begun;
    o->figures.span_seconds += now - o->update_begun;
    o->update_begun = now;
    return FSDP_OK;
}

/* Units in the order in which the last program begins to use them, then those that it does not use. */
static int list_units(offload *o)
{
    const fsdp_model *m = o->model;
    const schedule *s = m->last_training ? m->last_training->schedule : NULL;
    int n = 0;
    for (int k = 0; s && k < s->n_events; k++) {
        int i = s->events[k].unit;
        if (s->events[k].action == ACTION_REFRESH && o->units[i].slice >= 0)
            o->order[n++] = i;
    }
    for (int i = 0; i < m->layout->n_units; i++) {
        if (m->offloaded[i] && o->units[i].slice >= 0 && !(s && s->units[i].used))
            o->order[n++] = i;
    }
    return n;
}

fsdp_status offload_update(fsdp_model *m, offload_updater updater, void *context, bool stands)
{
    offload *o = m->offload;
    unit_work work = work_of(o);
    FSDP_TRY(offload_stop_ahead(m));
    FSDP_TRY(offload_wait(m));
    o->stands = stands;
    o->update = updater;
    o->update_context = context;
    o->update_begun = clock_seconds();
    o->figures.updates++;
    int n = list_units(o);
    for (int k = 0; k < n; k++) {
        o->units[o->order[k]].coming = true;
        o->units[o->order[k]].offered = false; /* the worker keeps or undoes it */
    }
    return unit_worker_give(o->worker, &work, o->order, n);
}

fsdp_status offload_refresh(fsdp_model *m, int index)
{
    offload *o = m->offload;
    if (!o->units[index].coming)
        return FSDP_OK;
    double begun = clock_seconds();
    FSDP_TRY(unit_worker_wait(o->worker, index));
    o->figures.wait_seconds += clock_seconds() - begun;
    o->units[index].coming = false;
    return m->dev->stream_wait(m->compute, o->units[index].refreshed);
}

/* Those that run ahead of the norm are not waited for. */
fsdp_status offload_wait(fsdp_model *m)
{
    offload *o = m->offload;
    for (int i = 0; o && i < m->layout->n_units; i++)
        if (!o->units[i].given)
            FSDP_TRY(unit_worker_wait(o->worker, i));
    return FSDP_OK;
}

fsdp_status offload_stop_ahead(fsdp_model *m)
{
    offload *o = m->offload;
    for (int i = 0; o && i < m->layout->n_units; i++) {
        if (!o->units[i].given)
            continue;
        if (!unit_worker_withdraw(o->worker, i))
            FSDP_TRY(unit_worker_wait(o->worker, i));
        o->units[i].given = false;
    }
    return FSDP_OK;
}

fsdp_status offload_undo_ahead(fsdp_model *m)
{
    offload *o = m->offload;
    FSDP_TRY(offload_stop_ahead(m));
    for (int i = 0; o && i < m->layout->n_units; i++) {
        offload_unit *u = &o->units[i];
        if (!u->offered) /* `made` may be the worker's */
            continue;
        if (u->made)
            FSDP_TRY(o->runner.restore(o->runner.context, u->slice, o->host_stream));
        u->made = u->offered = false;
    }
    return FSDP_OK;
}

fsdp_status offload_run_ahead(fsdp_model *m, const offload_runner *runner)
{
    FSDP_TRY(offload_undo_ahead(m));
    m->offload->runner = runner ? *runner : (offload_runner){NULL, NULL, NULL, NULL};
    return FSDP_OK;
}

fsdp_status offload_settle(fsdp_model *m)
{
    offload *o = m->offload;
    if (!o)
        return FSDP_OK;
    FSDP_TRY(offload_undo_ahead(m));
    FSDP_TRY(unit_worker_wait(o->worker, -1));
    FSDP_TRY(m->dev->stream_synchronize(o->in));
    FSDP_TRY(m->dev->stream_synchronize(o->back));
    FSDP_TRY(m->dev->stream_synchronize(o->sums));
    return m->dev->stream_synchronize(o->out);
}

offload_figures offload_figures_of(const fsdp_model *m)
{
    return m->offload ? m->offload->figures : (offload_figures){.updates = 0};
}
