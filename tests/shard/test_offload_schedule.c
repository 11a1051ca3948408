/* Schedules with offloaded units: a copy has come before it is gathered or used, sums of earlier micro-batches start
 * back before their gradients are written, and no memory is given to a second unit while a gradient may still be
 * leaving it. */
#include "shard/stack.h"

enum { UNITS = PLANNED_BLOCKS + 1, SHARDS = 3 };

static void open_planned(planned *x)
{
    const int weights[SHARDS] = {1, 4, 2};
    planned_open(x, SHARDS, weights, false);
    assert_int_equal(x->l->n_units, UNITS);
}

/* Stretches of the gradient arena that a unit may not share now: its full gradient, and where its sum lands. */
typedef struct taken {
    bool full, landing;
    size_t full_at, full_bytes, landing_at, landing_bytes;
} taken;

static bool apart(size_t a, size_t a_bytes, size_t b, size_t b_bytes)
{
    return a + a_bytes <= b || b + b_bytes <= a;
}

static void check_apart(const taken *now)
{
    for (int a = 0; a < UNITS; a++) {
        for (int b = 0; b < UNITS; b++) {
            if (a != b && now[a].full && now[b].full)
                assert_true(apart(now[a].full_at, now[a].full_bytes, now[b].full_at, now[b].full_bytes));
            if (a != b && now[a].landing && now[b].landing)
                assert_true(apart(now[a].landing_at, now[a].landing_bytes, now[b].landing_at, now[b].landing_bytes));
            if (now[a].full && now[b].landing && now[a].full_at != now[b].landing_at)
                assert_true(apart(now[a].full_at, now[a].full_bytes, now[b].landing_at, now[b].landing_bytes));
            if (now[a].full && now[b].landing && now[a].full_at == now[b].landing_at)
                assert_int_equal(a, b); /* only a direct gradient lands where it was written */
        }
    }
}

static size_t largest_shard(const layout_segment *s)
{
    int64_t most = 0;
    for (int r = 0; r < SHARDS; r++)
        most = layout_shard_numel(s, r) > most ? layout_shard_numel(s, r) : most;
    return (size_t)most * sizeof(float);
}

typedef struct seen {
    int refresh, gather, await, preload, gradients, reduce, reduced; /* place in the list of events, -1: none */
} seen;

/* Walks through the events and checks the arena at each; where each unit's first events stand comes back. */
static void walk(const planned *x, const schedule *s, const schedule_options *o, seen *found)
{
    taken now[UNITS] = {{.full = false}};
    bool direct = o->gradients == GRADIENT_DIRECT;
    for (int u = 0; u < UNITS; u++) {
        found[u] = (seen){-1, -1, -1, -1, -1, -1, -1};
        if (schedule_holds(o, u))
            now[u] = (taken){.full = true,
                             .full_at = s->units[u].gradient_offset,
                             .full_bytes = schedule_gradient_bytes(&x->l->units[u], o->grad_bytes)};
    }
    for (int i = 0; i < s->n_events; i++) {
        const schedule_event *e = &s->events[i];
        const schedule_unit *place = &s->units[e->unit];
        const layout_unit *l = &x->l->units[e->unit];
        taken *t = &now[e->unit];
        int *const where[] = {[ACTION_REDUCE] = &found[e->unit].reduce,
                              [ACTION_REDUCED] = &found[e->unit].reduced,
                              [ACTION_RELEASE] = NULL,
                              [ACTION_REFRESH] = &found[e->unit].refresh,
                              [ACTION_GATHER] = &found[e->unit].gather,
                              [ACTION_AWAIT] = &found[e->unit].await,
                              [ACTION_PRELOAD] = &found[e->unit].preload,
                              [ACTION_GRADIENTS] = &found[e->unit].gradients};
        if (where[e->action] && *where[e->action] < 0)
            *where[e->action] = i;
        if (e->action == ACTION_PRELOAD) {
            t->landing = true;
            t->landing_at = place->landing_offset;
            t->landing_bytes = l->whole || direct ? (size_t)l->segments[0].padded * 4 : largest_shard(&l->segments[0]);
        }
        if (e->action == ACTION_GRADIENTS && !(direct && !o->offloaded[e->unit])) {
            t->full = true;
            t->full_at = place->gradient_offset;
            t->full_bytes = schedule_gradient_bytes(l, o->grad_bytes);
        }
        if (e->action == ACTION_REDUCED)
            t->full = schedule_holds(o, e->unit), t->landing = false;
        check_apart(now);
        for (int u = 0; u < UNITS; u++) {
            assert_true(!now[u].full || now[u].full_at + now[u].full_bytes <= s->gradient_bytes);
            assert_true(!now[u].landing || now[u].landing_at + now[u].landing_bytes <= s->gradient_bytes);
        }
    }
}

static schedule_options options_with(const bool *offloaded)
{
    return (schedule_options){.parameters = RESIDENT_GATHERED,
                              .gradients = GRADIENT_BUFFERED,
                              .param_bytes = 4,
                              .grad_bytes = 4,
                              .sum_bytes = sizeof(float),
                              .gather_buffers = 2,
                              .forward_prefetch = true,
                              .offloaded = offloaded};
}

static void what_the_host_sends_is_there_in_time_and_nothing_is_overwritten_while_it_leaves(void **state)
{
    (void)state;
    bool all[UNITS], some[UNITS];
    planned x;
    open_planned(&x);
    for (int u = 0; u < UNITS; u++)
        all[u] = true, some[u] = u % 2 == 0;
    const parameter_residency residencies[] = {RESIDENT_ALIAS, RESIDENT_KEPT, RESIDENT_FORWARD, RESIDENT_GATHERED};
    for (int i = 0; i < 4 * 3 * 2 * 4; i++) {
        schedule_options o = options_with(i % 2 ? all : some);
        parameter_residency by_unit[UNITS];
        seen found[UNITS];
        schedule *s;
        o.parameters = residencies[i / 2 % 4];
        o.gradients = (gradient_residency)(i / 8 % 3);
        o.alias = o.gradients == GRADIENT_DIRECT;
        o.gather_buffers = 1 + i / 24 % 2;
        o.held = i / 24 == 1 ? some : NULL;
        o.residencies = i / 48 ? by_unit : NULL; /* otherwise all units are alike */
        for (int u = 0; u < UNITS; u++) {
            by_unit[u] = residencies[(u * 3 + i / 2) % 4];
            x.l->units[u].whole = (o.residencies ? by_unit[u] : o.parameters) == RESIDENT_ALIAS;
        }
        if (o.residencies)
            o.parameters = RESIDENT_GATHERED;
        assert_ok(schedule_build(x.p, x.l, &o, &s));
        walk(&x, s, &o, found);
        for (int u = 0; u < UNITS; u++) {
            assert_int_equal(found[u].refresh >= 0, o.offloaded[u]);
            assert_int_equal(found[u].preload >= 0, o.offloaded[u]);
            if (!o.offloaded[u])
                continue;
            assert_true(found[u].gather < 0 || o.alias || x.l->units[u].whole || found[u].refresh < found[u].gather);
            assert_true(found[u].await < 0 || found[u].refresh < found[u].await);
            assert_true(found[u].preload < found[u].gradients && found[u].gradients < found[u].reduce);
            assert_true(s->events[found[u].reduced].index >= s->events[found[u].reduce].index);
        }
        schedule_free(s);
    }
    planned_close(&x);
}

static void a_sum_starts_back_while_the_unit_before_computes(void **state)
{
    (void)state;
    bool all[UNITS];
    seen found[UNITS];
    planned x;
    schedule *s;
    open_planned(&x);
    for (int u = 0; u < UNITS; u++)
        all[u] = true;
    schedule_options o = options_with(all);
    o.gradients = GRADIENT_DIRECT;
    o.alias = true;
    assert_ok(schedule_build(x.p, x.l, &o, &s));
    walk(&x, s, &o, found);
    for (int b = 0; b + 2 < PLANNED_BLOCKS; b++) /* backward goes from the last block to the first */
        assert_int_equal(s->events[found[b].preload].index, s->events[found[b + 1].gradients].index);
    /* Three units' gradients at a time: computing, leaving, coming. */
    size_t all_bytes = 0;
    for (int u = 0; u < UNITS; u++)
        all_bytes += schedule_gradient_bytes(&x.l->units[u], 4);
    assert_true(s->gradient_bytes < all_bytes);
    schedule_free(s);
    planned_close(&x);
}

/* A block whose backward begins with a gradient: what that reads is kept. */
static fsdp_tensor *record_block(const block *b, fsdp_tape *t, fsdp_tensor *x)
{
    fsdp_checkpoint_begin(t);
    fsdp_tensor *h = fsdp_rmsnorm(t, x, fsdp_use(t, b->scale), 1e-5f);
    h = fsdp_keep(t, fsdp_swiglu(t, fsdp_linear(t, h, fsdp_use_group(t, b->gate), NULL)));
    x = fsdp_linear_add(t, h, fsdp_use(t, b->down), NULL, x);
    fsdp_checkpoint_end(t);
    return x;
}

/* With blocks computed again, and their inputs of so many bytes or more in host memory meanwhile; 0: none. */
static program *compile_again(planned *x, size_t offload_bytes)
{
    program *p;
    fsdp_tape *t = rig_tape(&x->r);
    program_options options = {.backward = true, .offload_bytes = offload_bytes};
    fsdp_tensor *out = fsdp_input(t, FSDP_F32, DIMS(STACK_ROWS, STACK_WIDTH), NULL);
    t->selective = true;
    for (int i = 0; i < x->s.root->n_children; i++) {
        fsdp_module *m = x->s.root->children[i];
        out = m->module_class == &block_class ? record_block((block *)m, t, out) : fsdp_call(m, t, out);
    }
    fsdp_loss loss = fsdp_mse(t, out, fsdp_input(t, FSDP_F32, DIMS(STACK_ROWS, STACK_WIDTH), NULL));
    assert_ok(fsdp_tape_status(t));
    assert_ok(program_compile(t, loss.sum, &options, &p));
    assert_int_equal(program_transfers(p) > 0, offload_bytes > 0);
    return p;
}

static void expect_same_places(const schedule *a, const schedule *b)
{
    assert_int_equal(a->gather_bytes, b->gather_bytes);
    assert_int_equal(a->gradient_bytes, b->gradient_bytes);
    assert_int_equal(a->n_events, b->n_events);
    for (int i = 0; i < a->n_events; i++)
        assert_true(a->events[i].action == b->events[i].action && a->events[i].unit == b->events[i].unit);
    for (int u = 0; u < UNITS; u++) {
        assert_int_equal(a->units[u].forward_offset, b->units[u].forward_offset);
        assert_int_equal(a->units[u].backward_offset, b->units[u].backward_offset);
        assert_int_equal(a->units[u].gradient_offset, b->units[u].gradient_offset);
        assert_int_equal(a->units[u].landing_offset, b->units[u].landing_offset);
    }
}

/* Ranks whose batches are too small for it run beside others: arenas grow, and collectives come, with all of them. */
static void activations_in_host_memory_move_no_unit(void **state)
{
    (void)state;
    planned x;
    stack_open(&x.s, PLANNED_BLOCKS, 20);
    for (int i = 0; i < x.s.contents.n_parameters; i++) /* gradients of the rest of the root come before the blocks' */
        x.s.contents.parameters[i]->trainable = strncmp(x.s.contents.parameters[i]->name, "first", 5) != 0;
    planned_compile(&x, SHARDS, NULL, false);
    program *programs[] = {compile_again(&x, 0), compile_again(&x, 1)};
    for (int i = 0; i < 4 * 2 * 3 * 4; i++) {
        bool offloaded[UNITS];
        schedule *s[2];
        for (int u = 0; u < UNITS; u++)
            offloaded[u] = i % 4 == 0 || (i % 4 + u) % 3 == 0;
        schedule_options o = options_with(offloaded);
        o.gradients = i / 4 % 2 ? GRADIENT_HELD : GRADIENT_BUFFERED;
        o.backward_prefetch = (fsdp_prefetch)(i / 8 % 3);
        o.gather_buffers = 1 + i / 24;
        for (int k = 0; k < 2; k++)
            assert_ok(schedule_build(programs[k], x.l, &o, &s[k]));
        expect_same_places(s[0], s[1]);
        for (int k = 0; k < 2; k++)
            schedule_free(s[k]);
    }
    for (int k = 0; k < 2; k++)
        program_free(programs[k]);
    planned_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_host_sends_is_there_in_time_and_nothing_is_overwritten_while_it_leaves),
        cmocka_unit_test(a_sum_starts_back_while_the_unit_before_computes),
        cmocka_unit_test(activations_in_host_memory_move_no_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
