/* Running micro-batches: recordings become planned programs, which run with the schedule's events between their
 * instructions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "shard/step/early.h"
#include "shard/step/events.h"
#include "shard/offload/offload.h"

/* Smaller inputs of checkpointed modules are not worth a transfer. */
enum { MIN_OFFLOADED = 4096 };

static bool direct_gradients(const fsdp_model *m)
{
    bool whole = m->n_ranks == 1;
    for (int i = 0; i < m->n_policies; i++)
        whole = whole && m->policies[i].reduce_dtype == m->config.gradient_dtype;
    return whole;
}

schedule_options model_schedule_options(const fsdp_model *m)
{
    const fsdp_config *c = &m->config;
    schedule_options o = {.alias = m->n_ranks == 1,
                          .gradients = model_holds_gradients(m) ? GRADIENT_HELD : GRADIENT_BUFFERED,
                          .held = m->held,
                          .param_bytes = fsdp_dtype_size(c->param_dtype),
                          .grad_bytes = fsdp_dtype_size(c->reduce_dtype),
                          .gather_buffers = c->gather_buffers,
                          .forward_prefetch = c->forward_prefetch,
                          .backward_prefetch = c->backward_prefetch,
                          .offloaded = m->offloaded,
                          .residencies = m->residencies,
                          .unit_param_bytes = m->param_bytes,
                          .unit_grad_bytes = m->grad_bytes,
                          .keep_groups = m->keep_groups,
                          .prefetches = {m->prefetches[0], m->prefetches[1]},
                          .sum_bytes = fsdp_dtype_size(c->gradient_dtype)};
    if (direct_gradients(m))
        o.gradients = GRADIENT_DIRECT;
    return o;
}

program_options model_program_options(const fsdp_model *m, bool backward)
{
    return (program_options){.backward = backward,
                             .stage_inputs = m->dev->own_memory,
                             .offload_bytes = m->config.offload_activations ? MIN_OFFLOADED : 0};
}

void model_forget_graphs(fsdp_model *m)
{
    for (planned_program *p = m->programs; p; p = p->next) {
        recorded_forget(m->dev, &p->whole);
        stretches_forget(m->dev, &p->stretches);
    }
}

static fsdp_status take_arena(fsdp_model *m, model_arena *a, size_t bytes)
{
    void *memory = NULL;
    if (a->shared)
        FSDP_TRY(comm_allocate(m->world->comm, bytes, &memory));
    else
        FSDP_TRY(m->dev->allocate(m->dev, a->kind, bytes, &memory));
    a->memory = memory;
    a->bytes = bytes;
    if (a->kind == MEMORY_DEVICE)
        memory_use_note(a->use, (int64_t)bytes);
    return FSDP_OK;
}

void model_release_arena(fsdp_model *m, model_arena *a)
{
    if (a->kind == MEMORY_DEVICE && a->bytes > 0)
        memory_use_note(a->use, -(int64_t)a->bytes);
    if (a->shared)
        comm_release(m->world->comm, a->memory);
    else
        m->dev->release(m->dev, a->kind, a->memory, a->bytes);
    a->memory = NULL;
    a->bytes = 0;
}

static fsdp_status grow_arena(fsdp_model *m, model_arena *a, size_t bytes)
{
    if (bytes <= a->bytes)
        return FSDP_OK;
    FSDP_TRY(m->dev->stream_synchronize(m->compute));
    FSDP_TRY(offload_settle(m));
    model_forget_graphs(m);
    model_release_arena(m, a);
    return take_arena(m, a, bytes);
}

/* The same, but what is held of this step's earlier micro-batches comes along. */
static fsdp_status grow_gradients(fsdp_model *m, size_t bytes)
{
    model_arena before = m->gradient;
    if (bytes <= before.bytes || m->micro == 0 || !model_holds_gradients(m))
        return grow_arena(m, &m->gradient, bytes);
    FSDP_TRY(m->dev->stream_synchronize(m->compute));
    FSDP_TRY(offload_settle(m));
    model_forget_graphs(m);
    FSDP_TRY(take_arena(m, &m->gradient, bytes));
    fsdp_status status = m->dev->copy(m->compute, m->gradient.memory, before.memory, before.bytes);
    if (status == FSDP_OK)
        status = m->dev->stream_synchronize(m->compute);
    model_release_arena(m, &before);
    return status;
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
    FSDP_TRY(grow_gradients(m, p->schedule->gradient_bytes));
    if (program_host_bytes(p->program) > 0 && !m->transfers)
        FSDP_TRY(m->dev->stream_create(m->dev, 0, &m->transfers));
    FSDP_TRY(grow_arena(m, &m->waiting, program_host_bytes(p->program)));
    return grow_arena(m, &m->slab, program_slab_bytes(p->program));
}

static planned_program *find_program(fsdp_model *m, program_key key)
{
    planned_program *p = m->programs;
    while (p && (p->key.signature != key.signature || p->key.loss != key.loss))
        p = p->next;
    return p;
}

void planned_program_free(fsdp_model *m, planned_program *p)
{
    recorded_forget(m->dev, &p->whole);
    stretches_free(m->dev, &p->stretches);
    for (int i = 0; i < 2; i++)
        inner_mark_free(m->dev, &p->turns[i]);
    schedule_free(p->schedule);
    program_free(p->program);
    free(p);
}

/* The program takes its tape. A recording that another program has taken before is copied. */
static fsdp_status compile(fsdp_model *m, fsdp_tape *recording, const fsdp_tensor *root, program **out)
{
    program_options options = model_program_options(m, root != NULL);
    fsdp_tape *taken = recording, *other = NULL;
    if (recording == m->recording)
        FSDP_TRY(tape_create(m->dev, &other));
    else
        FSDP_TRY(tape_copy(recording, &taken));
    fsdp_status status = program_compile(taken, root ? taken->tensors[root->id] : NULL, &options, out);
    if (status != FSDP_OK)
        tape_free(other ? other : taken);
    else if (other)
        m->recording = other;
    return status;
}

/* The first program that trains decides: a later one may be of a last, odd batch. */
static fsdp_status check_fp8(const fsdp_model *m, const fsdp_tape *recording)
{
    for (const planned_program *p = m->programs; p; p = p->next)
        if (p->key.loss >= 0)
            return FSDP_OK;
    return model_check_fp8(m, recording);
}

/* Finds the program of a recording and its loss (NULL: without gradients), or plans it and makes room. The model takes
 * the recording when it is new. */
static fsdp_status model_plan(fsdp_model *m, fsdp_tape *recording, fsdp_tensor *root, planned_program **out)
{
    program_key key = {recording->signature, root ? root->id : -1};
    *out = find_program(m, key);
    if (!*out && root)
        FSDP_TRY(check_fp8(m, recording));
    if (*out)
        return early_keep(m, (*out)->schedule);
    planned_program *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "planning a step: out of host memory");
    schedule_options when = model_schedule_options(m);
    fsdp_status status;
    p->key = key;
    TRY_OR(fail, compile(m, recording, root, &p->program));
    TRY_OR(fail, schedule_build(p->program, m->layout, &when, &p->schedule));
    p->turn = program_forward_length(p->program);
    TRY_OR(fail, stretches_cut(p->program, p->schedule, p->turn, &p->stretches));
    p->recordable = program_is_recordable(p->program);
    TRY_OR(fail, early_keep(m, p->schedule));
    TRY_OR(fail, make_room(m, p));
    p->next = m->programs;
    m->programs = p;
    *out = p;
    return FSDP_OK;
fail:
    planned_program_free(m, p);
    return status;
}

/* What this micro-batch's kernels read: its place in the random streams, and the gradient of the loss. */
static fsdp_status put_scalars(fsdp_model *m)
{
    model_scalars *host = model_host_scalars(m);
    if (m->micro > 0 && m->micro_total % MODEL_HOST_SCALARS == 0)
        FSDP_TRY(m->dev->stream_synchronize(m->compute));
    host->step = (step_scalars){.step = m->micro_total};
    if (m->first_sample >= 0)
        host->step.first_sample = (uint64_t)m->first_sample;
    else
        host->step.share = (uint64_t)comm_rank(m->world->comm);
    host->seed = m->expected_count > 0 ? (float)(m->loss_scale / m->expected_count) : 1;
    FSDP_TRY(m->dev->copy(m->compute, &m->scalars->step, &host->step, sizeof host->step));
    return m->dev->copy(m->compute, &m->scalars->seed, &host->seed, sizeof host->seed);
}

/* What does not change from run to run. */
typedef struct program_work {
    fsdp_model *m;
    planned_program *planned;
    int first, end;
} program_work;

/* What does, for instructions alone. */
typedef struct instruction_facts {
    bool add; /* gradients of parameters are added to earlier ones */
} instruction_facts;

static program_run_args run_args(const program_work *w, bool add)
{
    fsdp_model *m = w->m;
    return (program_run_args){.dev = m->dev,
                              .compute = m->compute,
                              .slab = m->slab.memory,
                              .host = m->waiting.memory,
                              .transfers = m->transfers,
                              .seed = &m->scalars->seed,
                              .scalars = &m->scalars->step,
                              .statistics = &m->statistics,
                              .peers = &m->peers,
                              .accumulate_parameters = add,
                              .deterministic = m->config.deterministic};
}

static fsdp_status run_instructions(const void *fixed, const void *facts)
{
    const program_work *w = fixed;
    program_run_args args = run_args(w, ((const instruction_facts *)facts)->add);
    return program_run_range(w->planned->program, &args, w->first, w->end);
}

static event_run begin_events(fsdp_model *m, planned_program *p, micro_batch batch)
{
    return (event_run){.m = m, .planned = p, .gradients = model_schedule_options(m).gradients, .batch = batch};
}

/* Of programs that train: what evaluates is a part of what asked for it. */
static void begin_phases(planned_program *p)
{
    if (p->key.loss < 0)
        return;
    p->phase = "forward";
    HOOK(HOOK_PHASE, HOOK_BEGIN, p->phase, NULL, 0, 0);
}

static fsdp_status end_phases(planned_program *p, fsdp_status status)
{
    if (p->phase)
        HOOK(HOOK_PHASE, HOOK_END, p->phase, NULL, 0, 0);
    p->phase = NULL;
    return status;
}

static bool adds_gradients(const event_run *r)
{
    return r->batch.more && (r->gradients == GRADIENT_DIRECT || model_holds_gradients(r->m));
}

/* Instructions and events in one. */
static fsdp_status run_whole(const void *fixed, const void *facts)
{
    const program_work *w = fixed;
    event_run events = begin_events(w->m, w->planned, *(const micro_batch *)facts);
    program_run_args args = run_args(w, adds_gradients(&events));
    args.before = events_before;
    args.before_context = &events;
    return program_run_range(w->planned->program, &args, w->first, w->end);
}

/* A graph that was launched has turned by itself. */
static fsdp_status run_alone(const program_work *w, micro_batch batch)
{
    fsdp_model *m = w->m;
    planned_program *p = w->planned;
    if (!p->recordable)
        return run_whole(w, &batch);
    FSDP_TRY(recorded_run(m->dev, m->compute, &p->whole, run_whole, w, (recorded_facts){&batch, sizeof batch}));
    stream_laps_divide(m->laps, &p->turns[batch.more], LAP_FORWARD, LAP_BACKWARD);
    return events_turn(m, p, batch.more);
}

/* Events happen between the stretches, plainly; the stretches are recorded. */
static fsdp_status run_stretches(fsdp_model *m, planned_program *p, micro_batch batch)
{
    event_run events = begin_events(m, p, batch);
    instruction_facts facts = {adds_gradients(&events)};
    for (int i = 0; i < p->stretches.n; i++) {
        stretch *segment = &p->stretches.list[i];
        program_work work = {m, p, segment->first, segment->end};
        FSDP_TRY(events_before(&events, segment->first));
        if (segment->recordable)
            FSDP_TRY(recorded_run(m->dev, m->compute, &segment->work, run_instructions, &work,
                                  (recorded_facts){&facts, sizeof facts}));
        else
            FSDP_TRY(run_instructions(&work, &facts));
    }
    return events_before(&events, program_length(p->program));
}

static fsdp_status run_program(fsdp_model *m, planned_program *p, const fsdp_tape *recording, bool last)
{
    bool trains = p->key.loss >= 0;
    micro_batch batch = {.more = trains && m->micro > 0, .last = trains && last && !model_works_alone(m)};
    program_work work = {m, p, 0, program_length(p->program)};
    program_run_args args = run_args(&work, false);
    for (int i = 0; i < m->layout->n_units; i++)
        if (m->residencies[i] == RESIDENT_ALIAS)
            unit_point_at_copy(&m->units[i], m->policies[i].param_dtype);
    FSDP_TRY(offload_begin(m));
    FSDP_TRY(put_scalars(m));
    FSDP_TRY(program_stage_inputs(p->program, recording, &args));
    begin_phases(p);
    return end_phases(p, model_works_alone(m) ? run_alone(&work, batch) : run_stretches(m, p, batch));
}

void fsdp_set_position(fsdp_model *m, int64_t first_sample)
{
    m->first_sample = first_sample;
}

void fsdp_set_counted_rows(fsdp_model *m, int64_t n_rows)
{
    m->counted_rows = n_rows;
}

static fsdp_tape *begin(fsdp_model *m, bool training)
{
    fsdp_tape *t = m->recording;
    tape_reset(t, training);
    t->owner = m;
    t->seed = m->config.seed;
    t->peers = m->n_ranks;
    t->shadow = false;
    t->recompute_cheap = m->config.recompute_cheap;
    t->selective = m->config.checkpointing == FSDP_CHECKPOINT_SELECTIVE;
    return t;
}

fsdp_tape *fsdp_begin(fsdp_model *m)
{
    fsdp_tape *t = begin(m, true);
    t->counted_rows = m->counted_rows;
    return t;
}

fsdp_tape *fsdp_begin_shadow(fsdp_model *m)
{
    fsdp_tape *t = fsdp_begin(m);
    t->shadow = true;
    return t;
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
    FSDP_TRY(comm_all_reduce_f64(comm_world(m->world->comm), "rows of a batch", m->step, FSDP_REDUCE_MAX, &most, 1));
    m->expected_count = exp2(ceil(log2(most)));
    return FSDP_OK;
}

fsdp_status model_check_loss(const char *call, const fsdp_tape *t, fsdp_loss loss)
{
    const fsdp_tensor *parts[] = {loss.sum, loss.count};
    if (!loss.sum || !loss.count)
        return error_set(FSDP_ERR_STATE, "%s without a loss", call);
    for (int i = 0; i < 2; i++) {
        if (parts[i]->tape != t)
            return error_set(FSDP_ERR_INPUT, "%s: the loss belongs to another recording", call);
        if (parts[i]->numel != 1 || parts[i]->dtype != FSDP_F32)
            return error_set(FSDP_ERR_INPUT, "%s: the %s of the loss is %s of %lld elements instead of one fp32", call,
                             i ? "count" : "sum", fsdp_dtype_name(parts[i]->dtype), (long long)parts[i]->numel);
    }
    return FSDP_OK;
}

fsdp_status fsdp_backward(fsdp_tape *t, fsdp_loss loss, bool last)
{
    fsdp_model *m = t->owner;
    FSDP_TRY(fsdp_tape_status(t));
    FSDP_TRY(model_may_accumulate(m));
    FSDP_TRY(model_await_gradients(m)); /* of a micro-batch that was called the last */
    FSDP_TRY(model_check_loss("fsdp_backward", t, loss));
    if (t->shadow)
        return error_set(FSDP_ERR_STATE, "fsdp_backward of a shadow step, which only fsdp_fp8_check runs: record the "
                                         "batch again after fsdp_begin");
    fsdp_output(t, loss.count); /* of a loss that the program made itself */
    if (m->expected_count == 0)
        FSDP_TRY(agree_on_count(m, loss.sum));
    planned_program *p;
    stream_laps_begin(m->laps);
    FSDP_TRY(model_plan(m, t, loss.sum, &p));
    t->program = p->program;
    m->last_training = p;
    FSDP_TRY(events_clear_untrained(m, p->schedule));
    FSDP_TRY(run_program(m, p, t, last));
    buffer sum, count;
    FSDP_TRY(program_output(p->program, loss.sum, m->slab.memory, &sum));
    FSDP_TRY(program_output(p->program, loss.count, m->slab.memory, &count));
    loss_total_args total = {
        .loss_sum = sum.p, .count = count.p, .totals = &m->scalars->totals[1], .add = m->micro > 0};
    FSDP_TRY(m->dev->kernels->loss_total(m->compute, &total));
    m->micro++;
    m->micro_total++;
    return FSDP_OK;
}

fsdp_status model_run_shadow(fsdp_model *m, fsdp_tape *t, fsdp_tensor *loss)
{
    planned_program *before = m->last_training, *p;
    if (m->expected_count == 0)
        FSDP_TRY(agree_on_count(m, loss));
    FSDP_TRY(model_plan(m, t, loss, &p));
    t->program = p->program;
    m->last_training = p;
    FSDP_TRY(events_clear_untrained(m, p->schedule));
    FSDP_TRY(run_program(m, p, t, false));
    m->last_training = before;
    for (int i = 0; i < m->layout->n_units; i++) {
        FSDP_TRY(comm_wait(&m->units[i].reduce, m->compute));
        m->units[i].gradients = GRADIENTS_NONE; /* the next micro-batch is the first of its step */
    }
    return m->dev->stream_synchronize(m->compute);
}

/* The collectives of a step without its computation: events in their order, gradients of zero. */
fsdp_status fsdp_backward_nothing(fsdp_model *m, bool last)
{
    planned_program *p = m->last_training;
    if (!p)
        return error_set(FSDP_ERR_STATE, "a rank has no data for its first step: it cannot know what the others "
                                         "compute; give every rank at least one sample");
    FSDP_TRY(model_may_accumulate(m));
    FSDP_TRY(model_await_gradients(m)); /* of a micro-batch that was called the last */
    event_run events = begin_events(m, p, (micro_batch){.more = m->micro > 0, .last = last, .nothing = true});
    stream_laps_begin(m->laps);
    FSDP_TRY(offload_begin(m));
    FSDP_TRY(events_clear_untrained(m, p->schedule));
    FSDP_TRY(events_before(&events, program_length(p->program)));
    if (m->micro == 0)
        FSDP_TRY(m->dev->zero(m->compute, &m->scalars->totals[1], 2 * sizeof m->scalars->totals[0]));
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
