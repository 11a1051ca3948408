/* Moments and their updates. */
#include "optim/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/record/memory_use.h"

typedef struct moments {
    uint8_t *memory;
    size_t bytes;
} moments;

struct update {
    fsdp_optimizer_config config;
    update_memory places[UPDATE_PLACES];
    moments moments[UPDATE_PLACES];
    int n_places, n_ranges;
    update_range *ranges;
};

bool update_has_first(const fsdp_optimizer_config *c)
{
    return c->kind == FSDP_SGD ? c->momentum != 0 : c->kind != FSDP_ADAFACTOR;
}

/* Of some parameters at least. */
static bool has_second(fsdp_optimizer_kind kind)
{
    return kind != FSDP_SGD;
}

static int update_moments(const fsdp_optimizer_config *c)
{
    return update_has_first(c) + has_second(c->kind);
}

bool update_is_muon(fsdp_optimizer_kind kind, const fsdp_parameter *p)
{
    return kind == FSDP_MUON && p->n_dims == 2 && !p->output && (p->linear != LINEAR_NONE || p->adapter);
}

bool update_is_factored(fsdp_optimizer_kind kind, const fsdp_parameter *p)
{
    return kind == FSDP_ADAFACTOR && p->n_dims >= 2;
}

bool update_is_local(fsdp_optimizer_kind kind)
{
    return kind != FSDP_MUON && kind != FSDP_ADAFACTOR;
}

bool update_has_second(fsdp_optimizer_kind kind, const fsdp_parameter *p)
{
    return has_second(kind) && !update_is_muon(kind, p) && !update_is_factored(kind, p);
}

int update_kept(const fsdp_optimizer_config *c)
{
    return update_moments(c) + (c->average > 0);
}

int update_halves(const fsdp_optimizer_config *c)
{
    return c->state_dtype == FSDP_BF16 ? update_moments(c) : 0;
}

/* Of those that want everything in fp32. */
static const char *name_of(fsdp_optimizer_kind kind)
{
    return kind == FSDP_MUON ? "Muon" : "Adafactor";
}

static fsdp_status check(const fsdp_optimizer_config *c)
{
    if (!(c->beta1 >= 0 && c->beta1 < 1) || !(c->beta2 >= 0 && c->beta2 < 1))
        return error_set(FSDP_ERR_INPUT, "beta1 %g and beta2 %g must lie in [0, 1)", (double)c->beta1,
                         (double)c->beta2);
    if (!(c->eps > 0) || !(c->weight_decay >= 0) || !(c->momentum >= 0 && c->momentum < 1) || !(c->clip >= 0))
        return error_set(FSDP_ERR_INPUT,
                         "eps must be positive, weight decay and clip not negative, momentum in [0, 1)");
    if (!(c->muon_momentum >= 0 && c->muon_momentum < 1))
        return error_set(FSDP_ERR_INPUT, "Muon's momentum is %g; it must lie in [0, 1)", (double)c->muon_momentum);
    bool decays = c->adafactor_decay > 0 && c->adafactor_decay <= 1;
    if (c->kind == FSDP_ADAFACTOR && !(decays && c->adafactor_clip > 0)) /* others may leave them 0 */
        return error_set(FSDP_ERR_INPUT,
                         "Adafactor's decay is %g and its clip %g: the first must lie in (0, 1], the other be positive",
                         (double)c->adafactor_decay, (double)c->adafactor_clip);
    if (!(c->average >= 0 && c->average < 1))
        return error_set(FSDP_ERR_INPUT, "the decay of the average of the weights, %g, must lie in [0, 1)",
                         (double)c->average);
    if (c->state_dtype != FSDP_F32 && c->state_dtype != FSDP_BF16)
        return error_set(FSDP_ERR_INPUT, "the optimizer's moments cannot be %s: use fp32 or bf16",
                         fsdp_dtype_name(c->state_dtype));
    if (c->state_dtype != FSDP_F32 && (c->kind == FSDP_MUON || c->kind == FSDP_ADAFACTOR))
        return error_set(FSDP_ERR_INPUT, "%s keeps its moments in fp32: leave the optimizer's state in fp32",
                         name_of(c->kind));
    return FSDP_OK;
}

static size_t room_for(int64_t n, fsdp_dtype dtype)
{
    return round_up((size_t)n * fsdp_dtype_size(dtype), 256);
}

/* Finds a place for each span's second moments, and returns how many the range has. */
static int64_t count_second(const update *u, const update_range *r)
{
    int64_t n = 0, first = 0;
    if (!has_second(u->config.kind))
        return 0;
    for (int i = 0; i < r->n_spans; first = r->spans[i++].end) {
        r->spans[i].second = n;
        n += r->spans[i].muon || r->spans[i].factored ? 0 : r->spans[i].end - first;
    }
    return r->n_spans > 0 ? n : r->n;
}

static size_t kept_bytes(const update *u, const update_range *r)
{
    fsdp_dtype dtype = u->config.state_dtype;
    size_t first = update_has_first(&u->config) ? room_for(r->n, dtype) : 0;
    return first + room_for(count_second(u, r), dtype) + (u->config.average > 0 ? room_for(r->n, FSDP_F32) : 0);
}

/* The moments of all ranges of one place, one after another. */
static fsdp_status place_moments(update *u, int place)
{
    const update_memory *where = &u->places[place];
    moments *all = &u->moments[place];
    bool has_first = update_has_first(&u->config);
    for (int i = 0; i < u->n_ranges; i++)
        all->bytes += u->ranges[i].place == place ? kept_bytes(u, &u->ranges[i]) : 0;
    if (all->bytes == 0)
        return FSDP_OK;
    FSDP_TRY(where->home->allocate(where->home, where->kind, all->bytes, (void **)&all->memory));
    if (where->kind == MEMORY_DEVICE)
        memory_use_note(MEMORY_OPTIMIZER, (int64_t)all->bytes);
    FSDP_TRY(where->dev->zero(where->s, all->memory, all->bytes));
    uint8_t *at = all->memory;
    for (int i = 0; i < u->n_ranges; i++) {
        update_range *r = &u->ranges[i];
        size_t bytes = kept_bytes(u, r), first = has_first ? room_for(r->n, u->config.state_dtype) : 0;
        if (r->place != place)
            continue;
        r->moment1 = has_first ? at : NULL;
        r->moment2 = has_second(u->config.kind) ? at + first : NULL;
        r->average = u->config.average > 0 ? (float *)(void *)(at + bytes - room_for(r->n, FSDP_F32)) : NULL;
        at += bytes;
    }
    return FSDP_OK;
}

fsdp_status update_create(const update_memory *places, int n_places, const fsdp_optimizer_config *config,
                          const update_range *ranges, int n, update **out)
{
    FSDP_TRY(check(config));
    update *u = calloc(1, sizeof *u);
    if (!u || !(u->ranges = calloc((size_t)n + 1, sizeof *u->ranges))) {
        free(u);
        return error_set(FSDP_ERR_MEMORY, "creating an optimizer over %d units: out of host memory", n);
    }
    for (int i = 0; i < n && (config->kind == FSDP_MUON || config->kind == FSDP_ADAFACTOR); i++) {
        if (ranges[i].gradient_dtype != FSDP_F32) {
            free(u->ranges);
            free(u);
            return error_set(FSDP_ERR_INPUT, "%s reads gradients in fp32: leave gradient_dtype as it is",
                             name_of(config->kind));
        }
    }
    u->config = *config;
    u->n_places = n_places;
    u->n_ranges = n;
    memcpy(u->places, places, (size_t)n_places * sizeof *places);
    memcpy(u->ranges, ranges, (size_t)n * sizeof *ranges);
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < n; i++) {
        u->ranges[i].moment1 = u->ranges[i].moment2 = NULL;
        u->ranges[i].average = NULL;
    }
    for (int place = 0; place < n_places; place++)
        TRY_OR(fail, place_moments(u, place));
    *out = u;
    return FSDP_OK;
fail:
    update_free(u);
    return status;
}

void update_free(update *u)
{
    if (!u)
        return;
    for (int i = 0; i < u->n_places; i++) {
        if (u->moments[i].memory && u->places[i].kind == MEMORY_DEVICE)
            memory_use_note(MEMORY_OPTIMIZER, -(int64_t)u->moments[i].bytes);
        u->places[i].home->release(u->places[i].home, u->places[i].kind, u->moments[i].memory, u->moments[i].bytes);
    }
    free(u->ranges);
    free(u);
}

double update_rate(const update *u, float lr, int64_t step)
{
    bool relative = u->config.kind == FSDP_ADAFACTOR && u->config.adafactor_relative_step;
    return relative ? fmin(1e-2, 1 / sqrt((double)step)) : (double)lr;
}

void update_scalars(const update *u, float lr, int64_t step, optimizer_scalars *out)
{
    const fsdp_optimizer_config *c = &u->config;
    bool adam = c->kind != FSDP_SGD, factored = c->kind == FSDP_ADAFACTOR;
    *out =
        (optimizer_scalars){.lr = (float)update_rate(u, lr, step),
                            .beta1 = c->beta1,
                            .beta2 = factored ? (float)(1 - pow((double)step, -(double)c->adafactor_decay)) : c->beta2,
                            .eps = c->eps,
                            .weight_decay = c->weight_decay,
                            .momentum = c->kind == FSDP_MUON ? c->muon_momentum : c->momentum,
                            .bias_correction1 = adam ? (float)(1 - pow(c->beta1, (double)step)) : step == 1,
                            .bias_correction2 = adam ? (float)(1 - pow(c->beta2, (double)step)) : 1,
                            .gradient_scale = 1,
                            .average_decay = c->average,
                            .step = (uint64_t)step};
}

static void *element_at(void *base, fsdp_dtype dtype, int64_t index)
{
    return base ? (uint8_t *)base + (size_t)index * fsdp_dtype_size(dtype) : NULL;
}

/* Elements `first` to `end` of a range. `span`: their own options, from element `from` on; NULL: the optimizer's. */
static optimizer_args describe_part(const update *u, const update_range *r, int64_t first, int64_t end,
                                    const update_span *span, int64_t from, const optimizer_scalars *scalars)
{
    int64_t second = span ? span->second + (first - from) : first;
    optimizer_args a = {.kind = u->config.kind == FSDP_MUON ? FSDP_ADAMW : u->config.kind,
                        .n = end - first,
                        .decay = first < r->decay_end,
                        .grouped = span != NULL,
                        .lr_factor = span ? span->lr_factor : 1,
                        .weight_decay = span ? span->weight_decay : 0,
                        .parameter = r->parameter ? r->parameter + first : NULL,
                        .gradient = element_at(r->gradient, r->gradient_dtype, first),
                        .gradient_dtype = r->gradient_dtype,
                        .moment1 = element_at(r->moment1, u->config.state_dtype, first),
                        .moment2 = element_at(r->moment2, u->config.state_dtype, second),
                        .moment_dtype = u->config.state_dtype,
                        .key = {r->key[0], r->key[1]},
                        .element = r->element + (uint64_t)first,
                        .average = r->average ? r->average + first : NULL,
                        .copy = r->copy,
                        .copy_half = r->copy_half,
                        .low = r->low ? r->low + first : NULL,
                        .rate = span ? span->rate : NULL,
                        .scalars = scalars};
    a.copy.p = element_at(a.copy.p, a.copy.dtype, first);
    return a;
}

/* Where, up to `end`, another magnitude begins than that of element `at`, which is *largest; NULL: nobody asks. */
static int64_t magnitude_end(const update_range *r, int64_t at, int64_t end, float **largest)
{
    *largest = NULL;
    for (int i = 0; i < r->n_magnitudes; i++) {
        const update_magnitude *m = &r->magnitudes[i];
        if (at < m->first)
            return min_i64(end, m->first);
        if (at < m->end) {
            *largest = m->largest;
            return min_i64(end, m->end);
        }
    }
    return end;
}

/* `part`: what the elements are of, with a place for their old values; NULL: those are not kept. */
static fsdp_status apply_part(const update *u, device *dev, const update_range *r, int64_t from, int64_t end,
                              const update_span *span, const update_part *part, stream *s,
                              const optimizer_scalars *scalars)
{
    if (span && span->rate) /* without padding */
        end = span->used;
    for (int64_t first = from, stop; first < end; first = stop) {
        float *magnitude;
        stop = magnitude_end(r, first, end, &magnitude);
        optimizer_args a = describe_part(u, r, first, stop, span, from, scalars);
        a.magnitude = magnitude;
        if (part && part->old.parameter) {
            a.old_parameter = part->old.parameter + first;
            a.old_average = element_at(part->old.average, FSDP_F32, first);
            a.old_moment1 = element_at(part->old.moment1, u->config.state_dtype, first);
            a.old_moment2 = element_at(part->old.moment2, u->config.state_dtype, first);
        }
        FSDP_TRY(dev->kernels->optimizer(s, &a));
    }
    return FSDP_OK;
}

/* A span of Muon's is part of one matrix, which has one magnitude. */
static fsdp_status apply_direction(update *u, const update_range *r, int64_t first, const update_span *span, stream *s,
                                   const optimizer_scalars *scalars, const uint16_t *directions)
{
    if (first >= span->used)
        return FSDP_OK;
    optimizer_args a = describe_part(u, r, first, span->used, span, first, scalars);
    (void)magnitude_end(r, first, span->used, &a.magnitude);
    a.kind = FSDP_MUON;
    a.gradient = NULL;
    a.moment1 = a.moment2 = NULL;
    a.direction = directions + span->direction;
    a.direction_scale = span->direction_scale;
    return u->places[r->place].dev->kernels->optimizer(s, &a);
}

fsdp_status update_apply(update *u, int index, stream *s, const optimizer_scalars *scalars)
{
    return update_apply_directions(u, index, s, scalars, NULL);
}

fsdp_status update_apply_directions(update *u, int index, stream *s, const optimizer_scalars *scalars,
                                    const uint16_t *directions)
{
    const update_range *r = &u->ranges[index];
    device *dev = u->places[r->place].dev;
    int64_t first = 0;
    for (int i = 0; i < r->n_spans; first = r->spans[i++].end)
        FSDP_TRY(r->spans[i].muon ? apply_direction(u, r, first, &r->spans[i], s, scalars, directions)
                                  : apply_part(u, dev, r, first, r->spans[i].end, &r->spans[i], NULL, s, scalars));
    if (r->n_spans > 0)
        return FSDP_OK;
    FSDP_TRY(apply_part(u, dev, r, 0, r->decay_end, NULL, NULL, s, scalars));
    return apply_part(u, dev, r, r->decay_end, r->n, NULL, NULL, s, scalars);
}

/* The part as a range of its own, without spans. */
static update_range cut_out(const update *u, const update_range *r, const update_part *part)
{
    fsdp_dtype kept = u->config.state_dtype;
    int64_t first = part->first, n = part->end - first;
    update_range cut = *r;
    cut.n = n;
    cut.decay_end = min_i64(max_i64(r->decay_end - first, 0), n);
    cut.element += (uint64_t)first;
    cut.n_spans = 0;
    cut.n_magnitudes = 0; /* nobody asks where updates come in parts */
    if (part->dev) {
        cut.parameter = part->parameter;
        cut.average = part->average;
        cut.gradient = part->gradient;
        cut.moment1 = part->moment1;
        cut.moment2 = part->moment2;
        cut.copy = part->copy;
        return cut;
    }
    cut.parameter = element_at(r->parameter, FSDP_F32, first);
    cut.average = element_at(r->average, FSDP_F32, first);
    cut.gradient = element_at(r->gradient, r->gradient_dtype, first);
    cut.moment1 = element_at(r->moment1, kept, first);
    cut.moment2 = element_at(r->moment2, kept, first);
    cut.copy.p = element_at(r->copy.p, r->copy.dtype, first);
    return cut;
}

fsdp_status update_apply_part(update *u, int index, const update_part *part, stream *s,
                              const optimizer_scalars *scalars)
{
    const update_range *r = &u->ranges[index];
    device *dev = part->dev ? part->dev : u->places[r->place].dev;
    update_range cut = cut_out(u, r, part);
    int64_t before = 0;
    for (int i = 0; i < r->n_spans; before = r->spans[i++].end) {
        int64_t from = max_i64(before - part->first, 0), to = min_i64(r->spans[i].end - part->first, cut.n);
        update_span span = r->spans[i];
        span.second = from;
        FSDP_TRY(apply_part(u, dev, &cut, from, to, &span, part, s, scalars));
    }
    if (r->n_spans > 0)
        return FSDP_OK;
    FSDP_TRY(apply_part(u, dev, &cut, 0, cut.decay_end, NULL, part, s, scalars));
    return apply_part(u, dev, &cut, cut.decay_end, cut.n, NULL, part, s, scalars);
}

fsdp_status update_directions(update *u, int index, stream *s, const optimizer_scalars *scalars, uint16_t *out)
{
    const update_range *r = &u->ranges[index];
    int64_t first = 0;
    for (int i = 0; i < r->n_spans; first = r->spans[i++].end) {
        muon_direction_args a = {.n = r->spans[i].used - first,
                                 .gradient = (const float *)r->gradient + first,
                                 .moment = (float *)r->moment1 + first,
                                 .direction = out + first,
                                 .scalars = scalars};
        if (r->spans[i].muon && a.n > 0)
            FSDP_TRY(u->places[r->place].dev->kernels->muon_direction(s, &a));
    }
    return FSDP_OK;
}

fsdp_status update_factored(update *u, int index, stream *s, const optimizer_scalars *scalars, bool sums,
                            update_describer describe, void *context)
{
    const update_range *r = &u->ranges[index];
    const kernel_table *k = u->places[r->place].dev->kernels;
    int64_t first = 0;
    for (int i = 0; i < r->n_spans; first = r->spans[i++].end) {
        const update_span *span = &r->spans[i];
        adafactor_part part = {.n = span->used - first,
                               .first = span->from,
                               .gradient = (float *)r->gradient + first,
                               .parameter = r->parameter ? r->parameter + first : NULL,
                               .copy = r->low ? (const uint16_t *)r->copy.p + first : NULL,
                               .low = r->low ? r->low + first : NULL,
                               .moment2 = span->factored ? NULL : (float *)r->moment2 + span->second,
                               .scalars = scalars};
        if (part.n <= 0)
            continue;
        describe(context, span, &part);
        FSDP_TRY(sums ? k->adafactor_sums(s, &part) : k->adafactor_update(s, &part));
    }
    return FSDP_OK;
}

void *update_moment2_at(const update *u, int index, int64_t element)
{
    const update_range *r = &u->ranges[index];
    int64_t first = 0;
    for (int i = 0; i < r->n_spans; first = r->spans[i++].end) {
        if (element < r->spans[i].end)
            return element_at(r->moment2, u->config.state_dtype, r->spans[i].second + (element - first));
    }
    return element_at(r->moment2, u->config.state_dtype, element);
}

const update_range *update_range_at(const update *u, int index)
{
    return &u->ranges[index];
}
