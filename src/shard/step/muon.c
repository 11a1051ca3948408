/* The exchange, unit by unit: every rank gathers the unit's directions in bf16, orthogonalizes the matrices that are
 * its own, and all gather the results, which lie owner by owner. While one unit is computed, the next one's directions
 * and the last one's results are on their way: a rank with little to do in one unit goes on to the next, so owners are
 * chosen for even work over all units. A matrix is computed whole and alone, so its bits do not depend on the owner or
 * on how many ranks there are. */
#include "shard/step/muon.h"

#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "optim/orthogonal.h"

enum { NO_RANGE = -1 };   /* of a unit of which this rank has nothing */
enum { ALIGNMENT = 128 }; /* elements: matrices begin on 256 bytes among the results */

typedef struct matrix {
    const fsdp_parameter *parameter;
    int owner;
    int64_t rows, columns;
    int64_t offset;  /* in the segment */
    int64_t results; /* among the unit's results */
} matrix;

typedef struct muon_unit {
    int index, range;
    matrix *matrices;
    int n_matrices;
    int64_t n_results;
    int64_t *counts; /* (the unit's n_shards): results of each owner */
    comm_request gather, give;
    comm_span gather_span, give_span;
} muon_unit;

struct muon {
    fsdp_model *model;
    muon_unit *units;
    int n_units;
    int n_sets; /* buffers: two, so that one is on its way while the other is worked on; one rank has one */
    uint16_t *directions[2], *results[2];
    uint8_t *scratch, *memory;
    size_t bytes;
};

/* Operations, as optim/orthogonal.c needs them. */
static double work_of(const matrix *x)
{
    double small = (double)min_i64(x->rows, x->columns), large = (double)max_i64(x->rows, x->columns);
    return small * small * (9 * large + 11 * small);
}

/* The largest first; of equals the first. */
static matrix *heaviest_left(muon_unit *u)
{
    matrix *most = NULL;
    for (int i = 0; i < u->n_matrices; i++)
        if (u->matrices[i].owner < 0 && (!most || work_of(&u->matrices[i]) > work_of(most)))
            most = &u->matrices[i];
    return most;
}

/* Each goes to the rank that has had least to do so far, `load` (n_ranks); of a unit with several replicas, to that
 * rank of every group. */
static void choose_owners(muon_unit *u, int n_shards, double *load, int n_ranks)
{
    for (matrix *x; (x = heaviest_left(u)) != NULL;) {
        x->owner = 0;
        for (int r = 1; r < n_shards; r++)
            if (load[r] < load[x->owner])
                x->owner = r;
        for (int r = x->owner; r < n_ranks; r += n_shards)
            load[r] += work_of(x);
    }
    for (int r = 0; r < n_shards; r++) {
        int64_t first = u->n_results;
        for (int i = 0; i < u->n_matrices; i++) {
            if (u->matrices[i].owner != r)
                continue;
            u->matrices[i].results = u->n_results;
            u->n_results += ceil_div(u->matrices[i].rows * u->matrices[i].columns, ALIGNMENT) * ALIGNMENT;
        }
        u->counts[r] = u->n_results - first;
    }
}

static fsdp_status list_matrices(const fsdp_model *m, int index, muon_unit *u)
{
    const layout_segment *s = &m->layout->units[index].segments[0];
    u->index = index;
    u->matrices = calloc((size_t)s->n_slots + 1, sizeof *u->matrices);
    u->counts = calloc((size_t)s->n_shards, sizeof *u->counts);
    if (!u->matrices || !u->counts)
        return error_set(FSDP_ERR_MEMORY, "Muon: out of host memory");
    for (int k = 0; s->trainable && k < s->n_slots; k++) {
        const fsdp_parameter *p = s->slots[k].parameter;
        if (update_is_muon(FSDP_MUON, p))
            u->matrices[u->n_matrices++] = (matrix){
                .parameter = p, .owner = -1, .rows = p->shape[0], .columns = p->shape[1], .offset = s->slots[k].offset};
    }
    return FSDP_OK;
}

static void free_units(muon *x)
{
    for (int i = 0; x->units && i <= x->n_units && i < x->model->layout->n_units; i++) {
        free(x->units[i].matrices);
        free(x->units[i].counts);
    }
    free(x->units);
}

/* Units that have a matrix, and their owners: pure arithmetic, the same on every rank. */
static fsdp_status list_units(muon *x)
{
    const fsdp_model *m = x->model;
    double *load = calloc((size_t)m->n_ranks, sizeof *load);
    x->units = calloc((size_t)m->layout->n_units + 1, sizeof *x->units);
    fsdp_status status = load && x->units ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "Muon: out of host memory");
    int range = 0;
    for (int i = 0; status == FSDP_OK && i < m->layout->n_units; i++) {
        muon_unit *u = &x->units[x->n_units];
        status = list_matrices(m, i, u);
        u->range = m->units && m->units[i].segments[0].gradient ? range++ : NO_RANGE;
        if (status != FSDP_OK)
            break;
        if (u->n_matrices > 0) {
            choose_owners(u, m->shardings[i].n_shards, load, m->n_ranks);
            x->n_units++;
        } else {
            free(u->matrices);
            free(u->counts);
            *u = (muon_unit){.index = 0};
        }
    }
    free(load);
    return status;
}

static int shards_of(const muon *x, const muon_unit *u)
{
    return x->model->shardings[u->index].n_shards;
}

/* Elements of the buffer that a unit's directions are gathered into. */
static int64_t directions_numel(const muon *x, const muon_unit *u)
{
    return x->model->layout->units[u->index].segments[0].padded;
}

/* The next matrices of an owner, from *at on, that are worked on side by side; the results go where they belong. */
static int next_group(const muon_unit *u, int owner, int *at, const uint16_t *directions, uint16_t *results,
                      orthogonal_item *out)
{
    int n = 0, first = *at, taken;
    for (int i = first; i < u->n_matrices && n < ORTHOGONAL_ITEMS; i++) {
        const matrix *a = &u->matrices[i];
        if (a->owner == owner)
            out[n++] = (orthogonal_item){.rows = a->rows,
                                         .columns = a->columns,
                                         .x = directions ? directions + a->offset : NULL,
                                         .out = results ? results + a->results : NULL};
    }
    taken = n > 0 ? orthogonal_group(out, n) : 0;
    *at = u->n_matrices;
    for (int i = first, passed = 0; i < u->n_matrices; i++)
        if (u->matrices[i].owner == owner && passed++ == taken)
            return *at = i, taken;
    return taken;
}

static size_t owner_scratch(const muon *x, const muon_unit *u, int owner)
{
    orthogonal_item group[ORTHOGONAL_ITEMS];
    size_t most = 0;
    for (int at = 0, n; (n = next_group(u, owner, &at, NULL, NULL, group)) > 0;) {
        size_t bytes = orthogonal_workspace(x->model->dev, group, n);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static void measure(muon *x)
{
    size_t directions = 0, results = 0, scratch = 0;
    bool exchanges = false;
    for (int i = 0; i < x->n_units; i++) {
        const muon_unit *u = &x->units[i];
        size_t gathered = (size_t)directions_numel(x, u) * sizeof(uint16_t);
        size_t given = (size_t)u->n_results * sizeof(uint16_t);
        exchanges |= shards_of(x, u) > 1;
        directions = gathered > directions ? gathered : directions;
        results = given > results ? given : results;
        for (int r = 0; r < shards_of(x, u); r++) {
            size_t bytes = owner_scratch(x, u, r);
            scratch = bytes > scratch ? bytes : scratch;
        }
    }
    x->n_sets = exchanges && x->n_units > 1 ? 2 : 1;
    directions = round_up(directions, 256);
    results = round_up(results, 256);
    x->bytes = (size_t)x->n_sets * (directions + results) + scratch;
    for (int i = 0; x->memory && i < 2; i++) {
        x->directions[i] = (void *)(x->memory + (size_t)(i % x->n_sets) * directions);
        x->results[i] = (void *)(x->memory + (size_t)x->n_sets * directions + (size_t)(i % x->n_sets) * results);
        x->scratch = x->memory + (size_t)x->n_sets * (directions + results);
    }
}

/* Every span of Muon's is a part of one matrix: where in it the part begins says where its directions are. */
static void place_spans(const muon *x, update_range *ranges)
{
    for (int i = 0; i < x->n_units; i++) {
        const muon_unit *u = &x->units[i];
        update_range *r = u->range == NO_RANGE ? NULL : &ranges[u->range];
        for (int k = 0; r && k < r->n_spans; k++) {
            update_span *span = &r->spans[k];
            for (int j = 0; span->muon && j < u->n_matrices; j++) {
                const matrix *a = &u->matrices[j];
                if (a->parameter != span->parameter)
                    continue;
                span->direction = a->results + span->from;
                span->direction_scale = 0.2f * sqrtf((float)max_i64(a->rows, a->columns));
            }
        }
    }
}

fsdp_status muon_create(fsdp_model *m, update_range *ranges, int n_ranges, muon **out)
{
    muon *x = calloc(1, sizeof *x);
    (void)n_ranges;
    *out = NULL;
    if (!x)
        return error_set(FSDP_ERR_MEMORY, "Muon: out of host memory");
    x->model = m;
    fsdp_status status = list_units(x);
    if (status == FSDP_OK && x->n_units > 0) {
        measure(x);
        TRY_OR(done, m->dev->allocate(m->dev, MEMORY_DEVICE, x->bytes, (void **)&x->memory));
        model_note_memory(m, MEMORY_OPTIMIZER, (int64_t)x->bytes);
        TRY_OR(done, m->dev->zero(m->compute, x->memory, x->bytes));
        measure(x);
        place_spans(x, ranges);
        *out = x;
        return FSDP_OK;
    }
done:
    muon_free(x);
    return status;
}

void muon_free(muon *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->n_units; i++) {
        comm_forget(&x->units[i].gather);
        comm_forget(&x->units[i].give);
    }
    if (x->memory)
        model_note_memory(x->model, MEMORY_OPTIMIZER, -(int64_t)x->bytes);
    x->model->dev->release(x->model->dev, MEMORY_DEVICE, x->memory, x->bytes);
    free_units(x);
    free(x);
}

bool muon_has(const muon *x, int index)
{
    for (int i = 0; i < x->n_units; i++)
        if (x->units[i].range == index)
            return true;
    return false;
}

/* ---- The step ---- */

/* Of the directions, or of the results. */
static fsdp_status start_gather(muon *x, muon_unit *u, bool results)
{
    fsdp_model *m = x->model;
    comm_span *span = results ? &u->give_span : &u->gather_span;
    if (m->carrier) {
        int64_t n = 0, own = span->counts[m->shardings[u->index].shard_rank];
        for (int r = 0; r < shards_of(x, u); r++)
            n += span->counts[r];
        return m->carrier->gather(m->carrier->context, u->index, results, n, n - own, sizeof(uint16_t));
    }
    comm_op op = {
        .unit = m->layout->units[u->index].name, .step = m->step, .n_spans = 1, .spans = span, .stream = m->compute};
    return comm_all_gather(m->shardings[u->index].shard_group, &op, results ? &u->give : &u->gather);
}

static fsdp_status await_gather(muon *x, muon_unit *u, bool results)
{
    const fsdp_model *m = x->model;
    bool started = shards_of(x, u) > 1 && (results || !model_has_all_at_hand(m, u->index));
    if (m->carrier && started)
        return m->carrier->await(m->carrier->context, u->index, results);
    return comm_wait(results ? &u->give : &u->gather, m->compute);
}

/* This rank's directions, and the others' on their way. */
static fsdp_status begin_unit(muon *x, update *of, int index)
{
    fsdp_model *m = x->model;
    muon_unit *u = &x->units[index];
    const unit_segment *segment = &m->units[u->index].segments[0];
    uint16_t *all = x->directions[index % x->n_sets], *mine = all + segment->first;
    if (index >= x->n_sets) /* who reads what this rank gave the last time is done with it */
        FSDP_TRY(comm_wait_sent(&x->units[index - x->n_sets].gather, m->compute));
    if (u->range != NO_RANGE)
        FSDP_TRY(update_directions(of, u->range, m->compute, &m->scalars->optimizer, mine));
    if (model_has_all_at_hand(m, u->index))
        return FSDP_OK;
    u->gather_span = (comm_span){.send = {mine, FSDP_BF16}, .recv = {all, FSDP_BF16}, .counts = segment->counts};
    return start_gather(x, u, false);
}

static fsdp_status compute_unit(muon *x, int index)
{
    fsdp_model *m = x->model;
    muon_unit *u = &x->units[index];
    uint16_t *directions = x->directions[index % x->n_sets], *results = x->results[index % x->n_sets];
    int64_t before = 0;
    int shard_rank = m->shardings[u->index].shard_rank;
    FSDP_TRY(await_gather(x, u, false));
    if (index >= x->n_sets)
        FSDP_TRY(comm_wait_sent(&x->units[index - x->n_sets].give, m->compute));
    orthogonal_item group[ORTHOGONAL_ITEMS];
    for (int at = 0, n; (n = next_group(u, shard_rank, &at, directions, results, group)) > 0;)
        FSDP_TRY(orthogonalize(m->dev, m->compute, group, n, x->scratch));
    if (shards_of(x, u) == 1)
        return FSDP_OK;
    for (int r = 0; r < shard_rank; r++)
        before += u->counts[r];
    u->give_span =
        (comm_span){.send = {results + before, FSDP_BF16}, .recv = {results, FSDP_BF16}, .counts = u->counts};
    return start_gather(x, u, true);
}

static fsdp_status finish_unit(muon *x, update *of, int index)
{
    fsdp_model *m = x->model;
    muon_unit *u = &x->units[index];
    FSDP_TRY(await_gather(x, u, true));
    if (u->range == NO_RANGE)
        return FSDP_OK;
    FSDP_TRY(model_before_update(m, u->range));
    return update_apply_directions(of, u->range, m->compute, &m->scalars->optimizer, x->results[index % x->n_sets]);
}

fsdp_status muon_update(muon *x, update *u)
{
    int behind = x->n_sets - 1;
    FSDP_TRY(begin_unit(x, u, 0));
    for (int i = 0; i < x->n_units; i++) {
        if (behind && i + 1 < x->n_units)
            FSDP_TRY(begin_unit(x, u, i + 1));
        FSDP_TRY(compute_unit(x, i));
        if (i >= behind)
            FSDP_TRY(finish_unit(x, u, i - behind));
        if (!behind && i + 1 < x->n_units)
            FSDP_TRY(begin_unit(x, u, i + 1));
    }
    if (behind)
        FSDP_TRY(finish_unit(x, u, x->n_units - 1));
    for (int i = 0; i < x->n_units; i++) { /* what peers still read is written again in the next step */
        FSDP_TRY(comm_wait_sent(&x->units[i].gather, x->model->compute));
        FSDP_TRY(comm_wait_sent(&x->units[i].give, x->model->compute));
    }
    return FSDP_OK;
}

/* ---- The plan ---- */

fsdp_status muon_make_plan(const fsdp_model *m, muon_plan *out)
{
    muon x = {.model = (fsdp_model *)(uintptr_t)m}; /* only read */
    *out = (muon_plan){.workspace = 0};
    fsdp_status status = list_units(&x);
    if (status == FSDP_OK && x.n_units > 0) {
        measure(&x);
        out->workspace = x.bytes;
    }
    for (int i = 0; status == FSDP_OK && i < x.n_units; i++) {
        const muon_unit *u = &x.units[i];
        const layout_segment *s = &m->layout->units[u->index].segments[0];
        int64_t others = s->padded - model_part(m, u->index, s).n;
        others += u->n_results - u->counts[m->shardings[u->index].shard_rank];
        out->gathered_bytes += others * (int64_t)sizeof(uint16_t);
    }
    free_units(&x);
    return status;
}
