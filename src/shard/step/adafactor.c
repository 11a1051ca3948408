/* Two small reductions a step: the sums that means follow from, with the squares of the weights; and the squares of the
 * updates. Both are exact (kernels.h), so every strategy on any number of ranks gives the bits of one process. */
#include "shard/step/adafactor.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

/* A trained parameter; offsets are in elements of their arrays. */
typedef struct factored {
    const fsdp_parameter *parameter;
    int64_t matrices, rows, columns; /* rows 0: a vector */
    int64_t means;                   /* rows of all matrices, then columns: also of factors */
    int64_t sums;                    /* rows, coarse and fine, columns, and the two of the weights */
} factored;

struct adafactor {
    fsdp_model *model;
    fsdp_optimizer_config config;
    factored *list;
    int n;
    int64_t n_means, n_sums;
    float *means, *factors, *rates; /* (n_means), (n_means), (n, 2) */
    double *sums, *updates;         /* (n_sums), (n, 2): one after the other */
    uint8_t *memory;
    size_t bytes;
};

static factored describe(const fsdp_parameter *p)
{
    factored f = {.parameter = p, .matrices = 1};
    if (!update_is_factored(FSDP_ADAFACTOR, p))
        return f;
    f.rows = p->shape[p->n_dims - 2];
    f.columns = p->shape[p->n_dims - 1];
    f.matrices = p->numel / (f.rows * f.columns);
    return f;
}

static int64_t means_of(const factored *f)
{
    return f->matrices * (f->rows + f->columns);
}

static int64_t sums_of(const factored *f)
{
    return 2 * means_of(f) + 2;
}

/* How much there is of everything; `list` may be NULL. */
static void measure(adafactor *a)
{
    a->n = 0;
    a->n_means = a->n_sums = 0;
    for (int i = 0; i < a->model->contents.n_parameters; i++) {
        const fsdp_parameter *p = a->model->contents.parameters[i];
        if (!p->trainable)
            continue;
        factored f = describe(p);
        f.means = a->n_means;
        f.sums = a->n_sums;
        a->n_means += means_of(&f);
        a->n_sums += sums_of(&f);
        if (a->list)
            a->list[a->n] = f;
        a->n++;
    }
}

static uint8_t *take(adafactor *a, size_t bytes)
{
    uint8_t *at = a->memory ? a->memory + a->bytes : NULL;
    a->bytes += round_up(bytes, 256);
    return at;
}

static void cut(adafactor *a)
{
    a->bytes = 0;
    a->means = (void *)take(a, (size_t)a->n_means * sizeof *a->means);
    a->factors = (void *)take(a, (size_t)a->n_means * sizeof *a->factors);
    a->rates = (void *)take(a, (size_t)a->n * 2 * sizeof *a->rates);
    a->sums = (void *)take(a, ((size_t)a->n_sums + (size_t)a->n * 2) * sizeof *a->sums);
    a->updates = a->sums ? a->sums + a->n_sums : NULL;
}

static int index_of(const adafactor *a, const fsdp_parameter *p)
{
    int i = 0;
    while (i < a->n && a->list[i].parameter != p)
        i++;
    return i;
}

fsdp_status adafactor_create(fsdp_model *m, const fsdp_optimizer_config *config, update_range *ranges, int n_ranges,
                             adafactor **out)
{
    adafactor *a = calloc(1, sizeof *a);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!a || !(a->list = calloc((size_t)m->contents.n_parameters + 1, sizeof *a->list))) {
        free(a);
        return error_set(status, "Adafactor: out of host memory");
    }
    a->model = m;
    a->config = *config;
    measure(a);
    cut(a);
    TRY_OR(fail, m->dev->allocate(m->dev, MEMORY_DEVICE, a->bytes, (void **)&a->memory));
    model_note_memory(m, MEMORY_OPTIMIZER, (int64_t)a->bytes);
    cut(a);
    TRY_OR(fail, m->dev->zero(m->compute, a->memory, a->bytes));
    for (int i = 0; i < n_ranges; i++)
        for (int k = 0; k < ranges[i].n_spans; k++)
            ranges[i].spans[k].rate = a->rates + 2 * index_of(a, ranges[i].spans[k].parameter);
    *out = a;
    return FSDP_OK;
fail:
    adafactor_free(a);
    return status;
}

void adafactor_free(adafactor *a)
{
    if (!a)
        return;
    if (a->memory)
        model_note_memory(a->model, MEMORY_OPTIMIZER, -(int64_t)a->bytes);
    a->model->dev->release(a->model->dev, MEMORY_DEVICE, a->memory, a->bytes);
    free(a->list);
    free(a);
}

/* ---- The step ---- */

static void describe_span(void *context, const update_span *span, adafactor_part *part)
{
    const adafactor *a = context;
    int index = index_of(a, span->parameter);
    const factored *f = &a->list[index];
    part->rows = f->rows;
    part->columns = f->columns;
    part->n_rows = f->matrices * f->rows;
    part->n_columns = f->matrices * f->columns;
    part->row_sums = a->sums + f->sums;
    part->column_sums = part->row_sums + 2 * part->n_rows;
    part->weight_squares = part->column_sums + 2 * part->n_columns;
    part->update_squares = a->updates + 2 * index;
    part->row_factors = a->factors + f->means;
    part->column_factors = part->row_factors + part->n_rows;
    part->total = &a->model->scalars->totals[0];
}

static fsdp_status pass(adafactor *a, update *u, bool sums)
{
    fsdp_model *m = a->model;
    for (int i = 0; i < model_ranges(m); i++)
        FSDP_TRY(update_factored(u, i, m->compute, &m->scalars->optimizer, sums, describe_span, a));
    return FSDP_OK;
}

/* Where every rank holds everything, its sums are those of all. */
static bool is_cut(const fsdp_model *m)
{
    bool cut = false;
    for (int i = 0; i < m->n_policies; i++)
        cut |= !model_has_all_at_hand(m, i);
    return cut;
}

/* Whether another rank counts this rank's sums of a unit that several hold, so that they must not count twice. */
static bool counts_elsewhere(const fsdp_model *m, int index)
{
    return model_has_whole(m, index) ? m->rank != 0 : m->shardings[index].replica_rank != 0;
}

/* The sums of the updates, or those by row and column with the weights'. */
static fsdp_status add_over_ranks(adafactor *a, bool updates)
{
    fsdp_model *m = a->model;
    double *values = updates ? a->updates : a->sums;
    int64_t n = updates ? (int64_t)a->n * 2 : a->n_sums;
    if (!is_cut(m))
        return FSDP_OK;
    for (int i = 0; i < a->n; i++) {
        const factored *f = &a->list[i];
        if (counts_elsewhere(m, f->parameter->unit))
            FSDP_TRY(m->dev->zero(m->compute, values + (updates ? 2 * i : f->sums),
                                  (size_t)(updates ? 2 : sums_of(f)) * sizeof *values));
    }
    if (m->carrier)
        return m->carrier->sum(m->carrier->context, n, sizeof *values);
    comm_span span = {.send = {values, FSDP_F64}, .recv = {values, FSDP_F64}, .count = n};
    comm_op op = {.label = updates ? "squares of updates" : "squares by row and column",
                  .step = m->step,
                  .n_spans = 1,
                  .spans = &span,
                  .stream = m->compute};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_reduce(comm_world(m->world->comm), &op, &request));
    return comm_wait(&request, m->compute);
}

static fsdp_status move_means(adafactor *a, const factored *f)
{
    fsdp_model *m = a->model;
    int64_t n_rows = f->matrices * f->rows;
    const double *sums = a->sums + f->sums;
    adafactor_factors_args args = {.matrices = f->matrices,
                                   .rows = f->rows,
                                   .columns = f->columns,
                                   .row_sums = sums,
                                   .column_sums = sums + 2 * n_rows,
                                   .row_means = a->means + f->means,
                                   .column_means = a->means + f->means + n_rows,
                                   .row_factors = a->factors + f->means,
                                   .column_factors = a->factors + f->means + n_rows,
                                   .scalars = &m->scalars->optimizer};
    return f->rows > 0 ? m->dev->kernels->adafactor_factors(m->compute, &args) : FSDP_OK;
}

static fsdp_status find_rate(adafactor *a, int index)
{
    fsdp_model *m = a->model;
    const factored *f = &a->list[index];
    adafactor_rate_args args = {.numel = f->parameter->numel,
                                .weight_squares = a->sums + f->sums + 2 * means_of(f),
                                .update_squares = a->updates + 2 * index,
                                .scale = a->config.adafactor_scale,
                                .clip = a->config.adafactor_clip,
                                .rate = a->rates + 2 * index};
    return m->dev->kernels->adafactor_rate(m->compute, &args);
}

fsdp_status adafactor_prepare(adafactor *a, update *u)
{
    fsdp_model *m = a->model;
    FSDP_TRY(m->dev->zero(m->compute, a->sums, ((size_t)a->n_sums + (size_t)a->n * 2) * sizeof *a->sums));
    FSDP_TRY(pass(a, u, true));
    FSDP_TRY(add_over_ranks(a, false));
    for (int i = 0; i < a->n; i++)
        FSDP_TRY(move_means(a, &a->list[i]));
    FSDP_TRY(pass(a, u, false));
    FSDP_TRY(add_over_ranks(a, true));
    for (int i = 0; i < a->n; i++)
        FSDP_TRY(find_rate(a, i));
    return FSDP_OK;
}

float *adafactor_means(const adafactor *a, const char *name, bool rows)
{
    for (int i = 0; i < a->n; i++) {
        const factored *f = &a->list[i];
        if (f->rows > 0 && strcmp(f->parameter->name, name) == 0)
            return a->means + f->means + (rows ? 0 : f->matrices * f->rows);
    }
    return NULL;
}

adafactor_plan adafactor_make_plan(const fsdp_model *m)
{
    adafactor a = {.model = (fsdp_model *)(uintptr_t)m}; /* only read */
    int64_t n = m->n_ranks;
    measure(&a);
    cut(&a);
    adafactor_plan p = {.bytes = a.bytes, .saved_bytes = a.n_means * (int64_t)sizeof(float)};
    if (is_cut(m))
        p.reduced_bytes =
            2 * (n - 1) * a.n_sums * (int64_t)sizeof(double) / n + 2 * (n - 1) * a.n * 2 * (int64_t)sizeof(double) / n;
    return p;
}
