/* Running micro-batches: recordings become planned programs, which run with the schedule's events between their
 * instructions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "shard/events.h"
#include "shard/offload.h"

/* Smaller inputs of checkpointed modules are not worth a transfer. */
enum { LEAST_OFFLOADED = 4096 };

static bool direct_gradients(const fsdp_model *m)
{
    return m->n_ranks == 1 && m->config.reduce_dtype == FSDP_F32;
}

schedule_options model_schedule_options(const fsdp_model *m)
{
    const fsdp_config *c = &m->config;
    schedule_options o = {.parameters = m->traits->parameters,
                          .alias = m->n_shards == 1,
                          .gradients = m->traits->holds_gradients || !c->sync_each_micro_batch ? GRADIENT_HELD
                                                                                               : GRADIENT_BUFFERED,
                          .param_bytes = fsdp_dtype_size(c->param_dtype),
                          .grad_bytes = fsdp_dtype_size(c->reduce_dtype),
                          .gather_buffers = c->gather_buffers,
                          .forward_prefetch = c->forward_prefetch,
                          .backward_prefetch = c->backward_prefetch,
                          .offloaded = m->offloaded,
                          .replicated = m->replicated};
    if (direct_gradients(m))
        o.gradients = GRADIENT_DIRECT;
    return o;
}

program_options model_program_options(const fsdp_model *m, bool backward)
{
    return (program_options){.backward = backward,
                             .stage_inputs = strcmp(m->dev->name, "cpu") != 0,
                             .offload_bytes = m->config.offload_activations ? LEAST_OFFLOADED : 0};
}

void model_forget_graphs(fsdp_model *m)
{
    for (planned_program *p = m->programs; p; p = p->next) {
        recorded_forget(m->dev, &p->whole[0]);
        recorded_forget(m->dev, &p->whole[1]);
        stretches_forget(m->dev, &p->stretches);
    }
}

static fsdp_status grow_arena(fsdp_model *m, model_arena *a, size_t bytes)
{
    if (bytes <= a->bytes)
        return FSDP_OK;
    FSDP_TRY(m->dev->stream_synchronize(m->compute));
    FSDP_TRY(offload_settle(m));
    model_forget_graphs(m);
    void *memory = NULL;
    if (a->shared) {
        comm_release(m->world->comm, a->memory);
        a->memory = NULL;
        a->bytes = 0;
        FSDP_TRY(comm_allocate(m->world->comm, bytes, &memory));
    } else {
        m->dev->release(m->dev, a->kind, a->memory, a->bytes);
        a->memory = NULL;
        a->bytes = 0;
        FSDP_TRY(m->dev->allocate(m->dev, a->kind, bytes, &memory));
    }
    a->memory = memory;
    a->bytes = bytes;
    return FSDP_OK;
}

/* A copy that stays (RESIDENT_KEPT) does not survive its arena. */
static void forget_kept(fsdp_model *m)
{
    for (int i = 0; i < m->layout->n_units; i++) {
        m->units[i].stale = true;
        if (m->units[i].parameters == PARAMETERS_FULL)
            m->units[i].parameters = PARAMETERS_SHARDED;
    }
}

static fsdp_status make_room(fsdp_model *m, const planned_program *p)
{
    if (p->schedule->gather_bytes > m->gather.bytes)
        forget_kept(m);
    FSDP_TRY(grow_arena(m, &m->gather, p->schedule->gather_bytes));
    FSDP_TRY(grow_arena(m, &m->gradient, p->schedule->gradient_bytes));
    if (program_host_bytes(p->program) > 0 && !m->transfers)
        FSDP_TRY(m->dev->stream_create(m->dev, 0, &m->transfers));
    FSDP_TRY(grow_arena(m, &m->waiting, program_host_bytes(p->program)));
    return grow_arena(m, &m->slab, program_slab_bytes(p->program));
}

static planned_program *find_program(fsdp_model *m, uint64_t signature)
{
    planned_program *p = m->programs;
    while (p && program_signature(p->program) != signature)
        p = p->next;
    return p;
}

fsdp_status model_plan(fsdp_model *m, fsdp_tape *recording, fsdp_tensor *root, planned_program **out)
{
    *out = find_program(m, recording->signature);
    if (*out)
        return FSDP_OK;
    planned_program *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "planning a step: out of host memory");
    program_options options = model_program_options(m, root != NULL);
    schedule_options when = model_schedule_options(m);
    fsdp_tape *fresh = NULL;
    fsdp_status status;
    TRY_OR(fail, tape_create(m->dev, &fresh));
    TRY_OR(fail, program_compile(recording, root, &options, &p->program));
    m->recording = fresh; /* the program has taken the old one */
    fresh = NULL;
    TRY_OR(fail, schedule_build(p->program, m->layout, &when, &p->schedule));
    TRY_OR(fail, stretches_cut(p->program, p->schedule, &p->stretches));
    TRY_OR(fail, make_room(m, p));
    p->next = m->programs;
    m->programs = p;
    *out = p;
    return FSDP_OK;
fail:
    tape_free(fresh);
    stretches_free(m->dev, &p->stretches);
    schedule_free(p->schedule);
    program_free(p->program);
    free(p);
    return status;
}

/* What this micro-batch's kernels read: its place in the random streams, and the gradient of the loss. */
static fsdp_status put_numbers(fsdp_model *m)
{
    model_numbers *host = model_host_numbers(m);
    if (m->micro > 0 && m->micro_total % MODEL_HOST_NUMBERS == 0)
        FSDP_TRY(m->dev->stream_synchronize(m->compute));
    host->step = (step_numbers){m->micro_total, (uint64_t)m->first_sample};
    host->seed = m->expected_count > 0 ? (float)(m->loss_scale / m->expected_count) : 1;
    FSDP_TRY(m->dev->copy(m->compute, &m->numbers->step, &host->step, sizeof host->step));
    return m->dev->copy(m->compute, &m->numbers->seed, &host->seed, sizeof host->seed);
}

typedef struct program_work {
    program *program;
    const program_run_args *args;
    int first, end;
} program_work;

static fsdp_status run_instructions(void *context)
{
    const program_work *w = context;
    return program_run_range(w->program, w->args, w->first, w->end);
}

/* Events happen between the stretches, plainly; the stretches are recorded. */
static fsdp_status run_stretches(fsdp_model *m, planned_program *p, const program_run_args *args)
{
    program_run_args inside = *args;
    inside.before = NULL;
    for (int i = 0; i < p->stretches.n; i++) {
        stretch *part = &p->stretches.list[i];
        program_work work = {p->program, &inside, part->first, part->end};
        FSDP_TRY(args->before(args->before_context, part->first));
        if (part->recordable)
            FSDP_TRY(
                recorded_run(m->dev, m->compute, &part->work[args->accumulate_parameters], run_instructions, &work));
        else
            FSDP_TRY(run_instructions(&work));
    }
    return args->before(args->before_context, program_length(p->program));
}

static fsdp_status run_program(fsdp_model *m, planned_program *p, const fsdp_tape *recording, bool last)
{
    schedule_options options = model_schedule_options(m);
    event_run events = {.m = m, .planned = p, .gradients = options.gradients, .last = last};
    if (m->traits->parameters == RESIDENT_ALIAS) {
        for (int i = 0; i < m->layout->n_units; i++)
            unit_point_at_copy(&m->units[i], m->config.param_dtype);
    }
    FSDP_TRY(offload_begin(m));
    FSDP_TRY(put_numbers(m));
    bool held = options.gradients == GRADIENT_HELD && !m->config.sync_each_micro_batch;
    program_run_args args = {.dev = m->dev,
                             .compute = m->compute,
                             .slab = m->slab.memory,
                             .host = m->waiting.memory,
                             .transfers = m->transfers,
                             .seed = &m->numbers->seed,
                             .numbers = &m->numbers->step,
                             .statistics = &m->statistics,
                             .peers = &m->peers,
                             .accumulate_parameters = m->micro > 0 && (options.gradients == GRADIENT_DIRECT || held),
                             .deterministic = m->config.deterministic,
                             .before = events_before,
                             .before_context = &events};
    FSDP_TRY(program_stage_inputs(p->program, recording, &args));
    if (!model_works_alone(m))
        return run_stretches(m, p, &args);
    program_work work = {p->program, &args, 0, program_length(p->program)};
    return recorded_run(m->dev, m->compute, &p->whole[args.accumulate_parameters], run_instructions, &work);
}

static fsdp_tape *begin(fsdp_model *m, bool training)
{
    fsdp_tape *t = m->recording;
    tape_reset(t, training);
    t->owner = m;
    t->seed = m->config.seed;
    t->peers = m->n_ranks;
    t->recompute_cheap = m->config.recompute_cheap;
    t->selective = m->config.checkpointing == FSDP_CHECKPOINT_SELECTIVE;
    return t;
}

fsdp_tape *fsdp_begin(fsdp_model *m)
{
    return begin(m, true);
}

fsdp_tape *fsdp_begin_evaluation(fsdp_model *m)
{
    return begin(m, false);
}

/* The loss is divided by a power of two near the count, the same on all ranks: exact, and sums stay in range. */
static fsdp_status agree_on_count(fsdp_model *m, const fsdp_tensor *loss)
{
    int64_t rows = 1;
    const node *n = loss->producer;
    for (int i = 0; i < n->n_inputs; i++) {
        if (n->inputs[i])
            rows = max_i64(rows, tensor_rows(n->inputs[i]));
    }
    double most = (double)rows;
    FSDP_TRY(comm_all_reduce_f64(comm_world(m->world->comm), "rows of a batch", m->step, COMM_MAX, &most, 1));
    m->expected_count = exp2(ceil(log2(most)));
    return FSDP_OK;
}

fsdp_status fsdp_backward(fsdp_tape *t, fsdp_loss loss, bool last)
{
    fsdp_model *m = t->owner;
    FSDP_TRY(fsdp_tape_status(t));
    if (!loss.sum || !loss.count)
        return error_set(FSDP_ERR_STATE, "fsdp_backward without a loss");
    if (m->expected_count == 0)
        FSDP_TRY(agree_on_count(m, loss.sum));
    planned_program *p;
    FSDP_TRY(model_plan(m, t, loss.sum, &p));
    t->program = p->program;
    m->last_training = p;
    FSDP_TRY(events_clear_untrained(m, p->schedule));
    FSDP_TRY(run_program(m, p, t, last));
    buffer sum, count;
    FSDP_TRY(program_output(p->program, loss.sum, m->slab.memory, &sum));
    FSDP_TRY(program_output(p->program, loss.count, m->slab.memory, &count));
    loss_total_args total = {
        .loss_sum = sum.p, .count = count.p, .totals = &m->numbers->totals[1], .add = m->micro > 0};
    FSDP_TRY(m->dev->kernels->loss_total(m->compute, &total));
    m->micro++;
    m->micro_total++;
    return FSDP_OK;
}

/* The collectives of a step without its computation: events in their order, gradients of zero. */
fsdp_status fsdp_backward_nothing(fsdp_model *m, bool last)
{
    planned_program *p = m->last_training;
    if (!p)
        return error_set(FSDP_ERR_STATE, "a rank has no data for its first step: it cannot know what the others "
                                         "compute; give every rank at least one sample");
    schedule_options options = model_schedule_options(m);
    event_run events = {.m = m, .planned = p, .gradients = options.gradients, .last = last, .nothing = true};
    FSDP_TRY(offload_begin(m));
    FSDP_TRY(events_clear_untrained(m, p->schedule));
    FSDP_TRY(events_before(&events, program_length(p->program)));
    if (m->micro == 0)
        FSDP_TRY(m->dev->zero(m->compute, &m->numbers->totals[1], 2 * sizeof m->numbers->totals[0]));
    m->micro++;
    m->micro_total++;
    return FSDP_OK;
}

fsdp_status fsdp_evaluate(fsdp_tape *t)
{
    fsdp_model *m = t->owner;
    planned_program *p;
    FSDP_TRY(fsdp_tape_status(t));
    FSDP_TRY(model_plan(m, t, NULL, &p));
    t->program = p->program;
    return run_program(m, p, t, false);
}

fsdp_status fsdp_read(fsdp_tensor *x, float *values, int64_t n)
{
    if (!x || !x->tape->program || !x->tape->owner)
        return error_set(FSDP_ERR_STATE, "reading a tensor before its step has run");
    fsdp_model *m = x->tape->owner;
    buffer value;
    if (n != x->numel)
        return error_set(FSDP_ERR_INPUT, "reading %lld values of a tensor that has %lld", (long long)n,
                         (long long)x->numel);
    FSDP_TRY(program_output(x->tape->program, x, m->slab.memory, &value));
    if (value.dtype == FSDP_F32)
        return model_fetch(m, values, value.p, (size_t)n * sizeof *values);
    float *converted;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, (size_t)n * sizeof *converted, (void **)&converted));
    axpby_args cast = {.n = n, .alpha = 1, .a = value, .out = {converted, FSDP_F32}};
    fsdp_status status = m->dev->kernels->axpby(m->compute, &cast);
    if (status == FSDP_OK)
        status = model_fetch(m, values, converted, (size_t)n * sizeof *converted);
    m->dev->release(m->dev, MEMORY_DEVICE, converted, (size_t)n * sizeof *converted);
    return status;
}
