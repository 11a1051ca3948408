/* Schedules: whatever the options, a unit is there while it is read, no more are gathered at a time than allowed, what
 * lives at the same time lies apart, and gradients are reduced once, after their last write. */
#include "shard/stack.h"

#include "shard/step/recorded.h"

static const schedule_options usual = {.parameters = RESIDENT_GATHERED,
                                       .gradients = GRADIENT_BUFFERED,
                                       .param_bytes = 4,
                                       .grad_bytes = 4,
                                       .gather_buffers = 2,
                                       .forward_prefetch = true,
                                       .backward_prefetch = FSDP_PREFETCH_PRE};

typedef struct unit_now {
    bool gathering, full, has_gradients, reducing;
    size_t at, gradients_at;
} unit_now;

static void check_apart(const planned *x, const unit_now *now, const schedule_options *o)
{
    for (int a = 0; a < x->l->n_units; a++) {
        for (int b = 0; b < a; b++) {
            size_t a_bytes = schedule_gathered_bytes(&x->l->units[a], o->param_bytes, false);
            size_t b_bytes = schedule_gathered_bytes(&x->l->units[b], o->param_bytes, false);
            if ((now[a].gathering || now[a].full) && (now[b].gathering || now[b].full))
                assert_true(now[a].at + a_bytes <= now[b].at || now[b].at + b_bytes <= now[a].at);
            a_bytes = schedule_gradient_bytes(&x->l->units[a], o->grad_bytes);
            b_bytes = schedule_gradient_bytes(&x->l->units[b], o->grad_bytes);
            if ((now[a].has_gradients || now[a].reducing) && (now[b].has_gradients || now[b].reducing))
                assert_true(now[a].gradients_at + a_bytes <= now[b].gradients_at ||
                            now[b].gradients_at + b_bytes <= now[a].gradients_at);
        }
    }
}

static void carry_out(const schedule *s, const schedule_event *e, unit_now *now)
{
    unit_now *u = &now[e->unit];
    switch (e->action) {
    case ACTION_GATHER:
        assert_false(u->gathering || u->full);
        u->gathering = true;
        u->at = e->backward ? s->units[e->unit].backward_offset : s->units[e->unit].forward_offset;
        break;
    case ACTION_AWAIT:
        assert_true(u->gathering);
        u->gathering = false;
        u->full = true;
        break;
    case ACTION_RELEASE:
        assert_true(u->full);
        u->full = false;
        break;
    case ACTION_GRADIENTS:
        assert_false(u->has_gradients || u->reducing);
        u->has_gradients = true;
        u->gradients_at = s->units[e->unit].gradient_offset;
        break;
    case ACTION_REDUCE:
        assert_true(u->has_gradients);
        u->has_gradients = false;
        u->reducing = true;
        break;
    case ACTION_REDUCED:
        assert_true(u->reducing);
        u->reducing = false;
        break;
    case ACTION_WIDEN:   /* nothing is kept in 8 bits here, */
    case ACTION_REFRESH: /* nothing is offloaded */
    case ACTION_PRELOAD:
    case ACTION_COUNT:
        fail();
    }
}

/* Walks through the program as step.c does. Returns the most units gathered or being gathered at a time. */
static int walk(const planned *x, const schedule *s, const schedule_options *o)
{
    unit_now now[PLANNED_BLOCKS + 2] = {{.gathering = false}};
    int next = 0, most = 0, n_uses;
    const parameter_use *uses = program_parameter_uses(x->p, &n_uses);
    for (int i = 0; i <= program_length(x->p); i++) {
        for (; next < s->n_events && s->events[next].index <= i; next++) {
            carry_out(s, &s->events[next], now);
            check_apart(x, now, o);
        }
        int held = 0;
        for (int u = 0; u < x->l->n_units; u++)
            held += now[u].gathering || now[u].full;
        most = held > most ? held : most;
        for (int k = 0; k < n_uses; k++) {
            const parameter_use *use = &uses[k];
            if (i == use->forward_first || i == use->forward_last || i == use->backward_first ||
                i == use->backward_last)
                assert_true(now[use->parameter->unit].full);
            if (i == use->grad_first || i == use->grad_last)
                assert_true(now[use->parameter->unit].has_gradients);
        }
    }
    assert_int_equal(next, s->n_events);
    for (int u = 0; u < x->l->n_units; u++)
        assert_false(now[u].gathering || now[u].full || now[u].has_gradients || now[u].reducing);
    return most;
}

static void units_are_there_when_read_whatever_the_options(void **state)
{
    (void)state;
    planned x;
    planned_open(&x, 2, NULL, false);
    for (int buffers = 1; buffers <= 4; buffers++) {
        for (int forward = 0; forward < 2; forward++) {
            for (int backward = FSDP_PREFETCH_PRE; backward <= FSDP_PREFETCH_NONE; backward++) {
                schedule_options o = usual;
                o.gather_buffers = buffers;
                o.forward_prefetch = forward;
                o.backward_prefetch = (fsdp_prefetch)backward;
                schedule *s;
                assert_ok(schedule_build(x.p, x.l, &o, &s));
                /* The root spans the stack: its first layer opens it and its norm closes it. */
                assert_true(walk(&x, s, &o) <= buffers + 1);
                assert_int_equal(s->reductions, x.l->n_units);
                schedule_free(s);
            }
        }
    }
    planned_close(&x);
}

static int count(const schedule *s, schedule_action action, const layout *l, const char *unit_name)
{
    int n = 0;
    for (int i = 0; i < s->n_events; i++)
        n += s->events[i].action == action && strcmp(l->units[s->events[i].unit].name, unit_name) == 0;
    return n;
}

static void a_unit_at_the_turn_is_gathered_once_the_others_twice(void **state)
{
    (void)state;
    planned x;
    schedule *s;
    planned_open(&x, 2, NULL, false);
    assert_ok(schedule_build(x.p, x.l, &usual, &s));
    assert_int_equal(count(s, ACTION_GATHER, x.l, "root"), 1);
    assert_int_equal(count(s, ACTION_GATHER, x.l, "blocks.0"), 2);
    assert_int_equal(count(s, ACTION_GATHER, x.l, "blocks.3"), 2);
    schedule_free(s);
    schedule_options kept = usual;
    kept.parameters = RESIDENT_FORWARD;
    assert_ok(schedule_build(x.p, x.l, &kept, &s));
    for (int u = 0; u < x.l->n_units; u++)
        assert_int_equal(count(s, ACTION_GATHER, x.l, x.l->units[u].name), 1);
    walk(&x, s, &kept);
    schedule_free(s);
    planned_close(&x);
}

/* Instruction before which the unit is gathered, and awaited, the first or the second time. */
static int when(const schedule *s, const layout *l, const char *unit_name, schedule_action action, bool backward)
{
    for (int i = 0; i < s->n_events; i++) {
        if (s->events[i].action == action && s->events[i].backward == backward &&
            strcmp(l->units[s->events[i].unit].name, unit_name) == 0)
            return s->events[i].index;
    }
    return -1;
}

static void prefetch_starts_a_gather_a_unit_ahead_and_without_it_none_is(void **state)
{
    (void)state;
    planned x;
    schedule *ahead, *behind, *none;
    planned_open(&x, 2, NULL, false);
    schedule_options post = usual, no = usual;
    post.backward_prefetch = FSDP_PREFETCH_POST;
    no.backward_prefetch = FSDP_PREFETCH_NONE;
    no.forward_prefetch = false;
    assert_ok(schedule_build(x.p, x.l, &usual, &ahead));
    assert_ok(schedule_build(x.p, x.l, &post, &behind));
    assert_ok(schedule_build(x.p, x.l, &no, &none));
    for (int i = 1; i < PLANNED_BLOCKS - 1; i++) {
        char name[24], before[24], after[24];
        snprintf(name, sizeof name, "blocks.%d", i);
        snprintf(before, sizeof before, "blocks.%d", i - 1);
        snprintf(after, sizeof after, "blocks.%d", i + 1);
        assert_int_equal(when(ahead, x.l, name, ACTION_GATHER, false), when(ahead, x.l, before, ACTION_AWAIT, false));
        assert_int_equal(when(none, x.l, name, ACTION_GATHER, false), when(none, x.l, name, ACTION_AWAIT, false));
        assert_int_equal(when(none, x.l, name, ACTION_GATHER, true), when(none, x.l, name, ACTION_AWAIT, true));
        /* Pre: as the unit behind it begins its backward; post: as that ends. */
        if (i < PLANNED_BLOCKS - 2) {
            assert_int_equal(when(ahead, x.l, name, ACTION_GATHER, true), when(ahead, x.l, after, ACTION_AWAIT, true));
            assert_int_equal(when(behind, x.l, name, ACTION_GATHER, true),
                             when(behind, x.l, after, ACTION_RELEASE, true));
        }
    }
    schedule_free(ahead);
    schedule_free(behind);
    schedule_free(none);
    planned_close(&x);
}

/* "embedding", "layers.0" .., "norm" (of the root) and "head". */
static void open_headed(planned *x, int64_t embedding, int64_t head)
{
    static const char *const names[] = {"embedding", "layers.0", "layers.1", "layers.2", "norm", "head"};
    x->s.root = fsdp_sequential_new();
    for (int i = 0; i < 6; i++)
        fsdp_module_add(x->s.root, names[i],
                        i == 4 ? fsdp_rmsnorm_new(STACK_WIDTH, 1e-5f)
                               : block_new(i == 0   ? embedding
                                           : i == 5 ? head
                                                    : 20));
    assert_ok(module_finish(x->s.root, &x->s.contents));
    planned_compile(x, 2, NULL, false);
}

/* A norm hides nothing, and its own few bytes are no reason to wait for a head before the last layer. */
static void a_head_is_reduced_beside_the_last_layer_where_that_takes_no_more_than_a_norm(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        planned x;
        schedule *s;
        open_headed(&x, large ? 200 : 20, 200);
        assert_ok(schedule_build(x.p, x.l, &usual, &s));
        walk(&x, s, &usual);
        int after = when(s, x.l, large ? "layers.2" : "root", ACTION_REDUCE, true);
        assert_int_equal(when(s, x.l, "head", ACTION_REDUCED, true), after);
        assert_true(when(s, x.l, "root", ACTION_REDUCE, true) < when(s, x.l, "layers.2", ACTION_REDUCE, true));
        schedule_free(s);
        planned_close(&x);
    }
}

static void held_gradients_lie_apart_and_direct_ones_take_no_memory(void **state)
{
    (void)state;
    planned x;
    schedule *s;
    planned_open(&x, 2, NULL, false);
    schedule_options o = usual;
    size_t all = 0;
    for (int u = 0; u < x.l->n_units; u++)
        all += schedule_gradient_bytes(&x.l->units[u], 4);
    o.gradients = GRADIENT_HELD;
    assert_ok(schedule_build(x.p, x.l, &o, &s));
    assert_int_equal(s->gradient_bytes, all);
    schedule_free(s);
    o.gradients = GRADIENT_BUFFERED;
    assert_ok(schedule_build(x.p, x.l, &o, &s));
    assert_true(s->gradient_bytes < all);
    schedule_free(s);
    o.gradients = GRADIENT_DIRECT;
    assert_ok(schedule_build(x.p, x.l, &o, &s));
    assert_int_equal(s->gradient_bytes, 0);
    schedule_free(s);
    planned_close(&x);
}

static void stretches_cover_the_program_and_leave_events_and_peers_outside(void **state)
{
    (void)state;
    planned x;
    schedule *s;
    stretches cut;
    planned_open(&x, 2, NULL, true);
    assert_ok(schedule_build(x.p, x.l, &usual, &s));
    int turn = program_forward_length(x.p);
    assert_ok(stretches_cut(x.p, s, turn, &cut));
    int at = 0, recorded = 0, outside = 0;
    for (int i = 0; i < cut.n; i++) {
        const stretch *part = &cut.list[i];
        assert_int_equal(part->first, at);
        assert_true(part->end > part->first);
        assert_true(part->end <= turn || part->first >= turn); /* forward and backward are timed apart */
        for (int e = 0; e < s->n_events; e++)
            assert_false(s->events[e].index > part->first && s->events[e].index < part->end);
        for (int k = part->first; k < part->end; k++) {
            bool peers = program_at(x.p, k)->n->op->meets_peers;
            outside += peers;
            assert_false(peers && (part->recordable || part->end - part->first > 1));
        }
        recorded += part->recordable ? part->end - part->first : 0;
        at = part->end;
    }
    assert_int_equal(at, program_length(x.p));
    assert_int_equal(outside, 2); /* the gathering of values, and its gradient */
    assert_true(recorded * 2 > program_length(x.p));
    stretches_free(x.r.dev, &cut);
    schedule_free(s);
    planned_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_there_when_read_whatever_the_options),
        cmocka_unit_test(a_unit_at_the_turn_is_gathered_once_the_others_twice),
        cmocka_unit_test(prefetch_starts_a_gather_a_unit_ahead_and_without_it_none_is),
        cmocka_unit_test(a_head_is_reduced_beside_the_last_layer_where_that_takes_no_more_than_a_norm),
        cmocka_unit_test(held_gradients_lie_apart_and_direct_ones_take_no_memory),
        cmocka_unit_test(stretches_cover_the_program_and_leave_events_and_peers_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
