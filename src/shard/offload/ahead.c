/* Old values of units that were updated before the norm was known, and when it pays to do so. */
#include "shard/offload/ahead.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"

/* Room for old values, in trained elements, offloaded or not: one in so many. That is about what a processor updates
 * while backward runs. */
enum { SHARE = 3, MULTIPLE = 128, LONGEST_PAUSE = 63 };

struct ahead {
    fsdp_model *model;
    update *update;
    fsdp_dtype kept_dtype;
    ahead_guesser guess;
    void *context;
    uint8_t *memory; /* arrays of `room` elements: parameters, moments, the average */
    size_t bytes;
    int64_t room, used; /* elements */
    int64_t *at;        /* (ranges): where a range's old values lie */
    optimizer_scalars expected;
    bool guessed;      /* `expected` is of the step under way */
    bool pays;         /* to guess in this step */
    int pause, paused; /* steps without a guess after a wrong one, and those that have passed */
};

int64_t ahead_numel(int64_t n)
{
    return ceil_div(n, MULTIPLE) * MULTIPLE;
}

int64_t ahead_room(const fsdp_model *m)
{
    int64_t all = 0, n = 0, most = 0;
    for (int i = 0; i < m->layout->n_units; i++) {
        const layout_segment *s = &m->layout->units[i].segments[0];
        int64_t part = s->trainable ? model_part(m, i, s).n : 0, room = ahead_numel(part);
        all += room;
        n += m->offloaded[i] ? room : 0;
        most = m->offloaded[i] && i > 0 ? max_i64(most, room) : most; /* the first unit's gradient comes last */
    }
    return min_i64(n, ahead_numel(max_i64(all / SHARE, most)));
}

size_t ahead_bytes(const fsdp_model *m, int numbers, int halves)
{
    size_t kept = (size_t)(numbers - halves) * sizeof(float) + (size_t)halves * sizeof(uint16_t);
    return m->config.cpu_offload_ahead && offload_any(m) ? (size_t)ahead_room(m) * (sizeof(float) + kept) : 0;
}

/* ---- The runner ---- */

static bool takes(void *context, int range)
{
    ahead *a = context;
    int64_t n = ahead_numel(update_range_at(a->update, range)->n);
    if (!a->pays || a->used + n > a->room)
        return false;
    if (!a->guessed)
        a->guess(a->context, &a->expected);
    a->guessed = true;
    a->at[range] = a->used;
    a->used += n;
    return true;
}

/* An array of old values: of `room` elements, from the next free byte on; NULL where the range has none. */
static void *old_values(const ahead *a, int range, size_t *from, const void *array, size_t size)
{
    if (!array)
        return NULL;
    void *at = a->memory + *from + (size_t)a->at[range] * size;
    *from += (size_t)a->room * size;
    return at;
}

static update_part whole_range(const ahead *a, int range)
{
    const update_range *r = update_range_at(a->update, range);
    size_t from = 0, kept = fsdp_dtype_size(a->kept_dtype);
    update_part part = {.first = 0, .end = r->n};
    part.old.parameter = old_values(a, range, &from, r->parameter, sizeof(float));
    part.old.moment1 = old_values(a, range, &from, r->moment1, kept);
    part.old.moment2 = old_values(a, range, &from, r->moment2, kept);
    part.old.average = old_values(a, range, &from, r->average, sizeof(float));
    return part;
}

static fsdp_status update_ahead(void *context, int range, stream *s)
{
    ahead *a = context;
    update_part part = whole_range(a, range);
    return update_apply_part(a->update, range, &part, s, &a->expected);
}

static fsdp_status restore(void *context, int range, stream *s)
{
    const ahead *a = context;
    const update_range *r = update_range_at(a->update, range);
    const update_part part = whole_range(a, range);
    device *host = offload_host(a->model);
    size_t whole = (size_t)r->n * sizeof(float), kept = (size_t)r->n * fsdp_dtype_size(a->kept_dtype);
    FSDP_TRY(host->copy(s, r->parameter, part.old.parameter, whole));
    if (r->moment1)
        FSDP_TRY(host->copy(s, r->moment1, part.old.moment1, kept));
    if (r->moment2)
        FSDP_TRY(host->copy(s, r->moment2, part.old.moment2, kept));
    return r->average ? host->copy(s, r->average, part.old.average, whole) : FSDP_OK;
}

/* ---- Beginning and end ---- */

fsdp_status ahead_create(fsdp_model *m, update *u, const fsdp_optimizer_config *config, ahead_guesser guess,
                         void *context, ahead **out)
{
    ahead *a = calloc(1, sizeof *a);
    if (!a || !(a->at = calloc((size_t)model_ranges(m) + 1, sizeof *a->at))) {
        free(a);
        return error_set(FSDP_ERR_MEMORY, "updating offloaded units ahead of the norm: out of host memory");
    }
    a->model = m;
    a->update = u;
    a->kept_dtype = config->state_dtype;
    a->guess = guess;
    a->context = context;
    a->room = ahead_room(m);
    a->bytes = ahead_bytes(m, update_kept(config), update_halves(config));
    fsdp_status status = FSDP_OK;
    if (a->bytes > 0)
        status = m->dev->allocate(m->dev, MEMORY_HOST, a->bytes, (void **)&a->memory);
    if (status != FSDP_OK) {
        free(a->at);
        free(a);
        return status;
    }
    const offload_runner runner = {.takes = takes, .update = update_ahead, .restore = restore, .context = a};
    status = offload_run_ahead(m, &runner);
    *out = a;
    return status;
}

void ahead_free(ahead *a)
{
    if (!a)
        return;
    (void)offload_run_ahead(a->model, NULL); /* its failure is reported by the next call that uses the model */
    a->model->dev->release(a->model->dev, MEMORY_HOST, a->memory, a->bytes);
    free(a->at);
    free(a);
}

/* ---- Steps ---- */

static bool same_numbers(const optimizer_scalars *a, const optimizer_scalars *b)
{
    return a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps &&
           a->weight_decay == b->weight_decay && a->momentum == b->momentum &&
           a->bias_correction1 == b->bias_correction1 && a->bias_correction2 == b->bias_correction2 &&
           a->gradient_scale == b->gradient_scale && a->skip == b->skip && a->average_decay == b->average_decay &&
           a->step == b->step;
}

bool ahead_stands(ahead *a, const optimizer_scalars *known, bool guessable)
{
    bool stands = a->guessed && same_numbers(&a->expected, known);
    if (a->guessed) {
        a->pause = stands ? 0 : (int)min_i64(2 * a->pause + 1, LONGEST_PAUSE);
        a->paused = 0;
    } else {
        a->paused++;
    }
    a->pays = guessable && a->paused >= a->pause;
    a->guessed = false;
    a->used = 0; /* old values stay until the next unit is offered, which waits for the update that may read them */
    return stands;
}
