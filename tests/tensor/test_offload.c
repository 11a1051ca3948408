/* Values that wait for backward in host memory: which of them leave, when their copies start and end, what that saves,
 * and that no bit changes however late the copies happen. */
#include "tensor/late_copies.h"

enum { LAYERS = 8, ROWS = 24, WIDTH = 16, VALUE_BYTES = ROWS * WIDTH * 4 };

typedef struct stack {
    fsdp_parameter *x, *up[LAYERS], *down[LAYERS];
} stack;

static stack make_stack(rig *r)
{
    stack s = {.x = rig_parameter(r, DIMS(ROWS, WIDTH))};
    for (int i = 0; i < LAYERS; i++) {
        s.up[i] = rig_parameter(r, DIMS(2 * WIDTH, WIDTH));
        s.down[i] = rig_parameter(r, DIMS(WIDTH, 2 * WIDTH));
    }
    return s;
}

/* A residual block as one checkpointed region; `also` (or NULL) is read by it, too. */
static fsdp_tensor *block(fsdp_tape *t, const stack *s, int i, fsdp_tensor *h, fsdp_tensor *also)
{
    fsdp_checkpoint_begin(t);
    fsdp_tensor *x = fsdp_silu(t, fsdp_linear(t, h, tape_parameter(t, s->up[i]), NULL));
    if (also)
        h = fsdp_mul(t, h, also);
    h = fsdp_linear_add(t, fsdp_scale(t, x, 0.1f), tape_parameter(t, s->down[i]), NULL, h);
    fsdp_checkpoint_end(t);
    return h;
}

static fsdp_tensor *record_stack(fsdp_tape *t, const stack *s)
{
    fsdp_tensor *h = fsdp_scale(t, tape_parameter(t, s->x), 1);
    for (int i = 0; i < LAYERS; i++)
        h = block(t, s, i, h, NULL);
    return fsdp_sum(t, fsdp_silu(t, h));
}

static plan compile_stack(rig *r, const stack *s, size_t offload_bytes)
{
    fsdp_tape *t = rig_tape(r);
    r->offload_bytes = offload_bytes;
    plan p = rig_compile(r, t, record_stack(t, s), false);
    r->offload_bytes = 0;
    return p;
}

static int count_phase(const plan *p, run_phase phase)
{
    int n = 0;
    for (int i = 0; i < program_length(p->program); i++)
        n += program_at(p->program, i)->phase == phase;
    return n;
}

/* Where the phase of this transfer stands in the program. */
static int place_of(const plan *p, const transfer *moved, run_phase phase)
{
    for (int i = 0; i < program_length(p->program); i++) {
        const instruction *step = program_at(p->program, i);
        if (step->moved == moved && step->phase == phase)
            return i;
    }
    fail_msg("a transfer lacks phase %d", (int)phase);
    return -1;
}

/* The tensor whose memory a transfer moves. */
static const fsdp_tensor *value_of(const plan *p, const transfer *moved)
{
    const fsdp_tape *t = program_tape(p->program);
    for (int i = 0; i < t->n_tensors; i++) {
        if (t->tensors[i]->data == moved->from)
            return t->tensors[i];
    }
    fail_msg("a transfer moves nothing that was recorded");
    return NULL;
}

/* Distinct regions whose nodes run in [first, end). */
static int regions_between(const plan *p, int first, int end)
{
    bool seen[64] = {false};
    int n = 0;
    for (int i = first; i < end; i++) {
        const node *step = program_at(p->program, i)->n;
        if (!step || step->region < 0 || seen[step->region])
            continue;
        seen[step->region] = true;
        n++;
    }
    return n;
}

static bool reads(const node *n, const fsdp_tensor *x)
{
    for (int k = 0; n && k < n->n_inputs; k++) {
        if (n->inputs[k] == x)
            return true;
    }
    return false;
}

static void inputs_of_regions_leave_except_near_the_turn(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan p = compile_stack(r, &s, 1);
    assert_int_equal(count_phase(&p, PHASE_STORE), LAYERS - 2);
    assert_int_equal(p.host_bytes, (LAYERS - 2) * VALUE_BYTES);
    for (int i = 0; i < program_length(p.program); i++) {
        const instruction *step = program_at(p.program, i);
        if (step->phase != PHASE_STORE)
            continue;
        const fsdp_tensor *x = value_of(&p, step->moved);
        int reader = -1;
        for (int k = 0; k < program_tape(p.program)->n_nodes; k++) {
            if (reads(program_tape(p.program)->nodes[k], x))
                reader = program_tape(p.program)->nodes[k]->region;
        }
        assert_in_range(reader, 0, LAYERS - 3);
    }
    rig_free(r, &p);
}

static void a_copy_out_starts_behind_the_last_use_and_has_a_region_of_time(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan p = compile_stack(r, &s, 1);
    int forward = program_forward_length(p.program);
    for (int i = 0; i < program_length(p.program); i++) {
        const instruction *step = program_at(p.program, i);
        if (step->phase != PHASE_STORE)
            continue;
        const fsdp_tensor *x = value_of(&p, step->moved);
        assert_true(reads(program_at(p.program, i - 1)->n, x));
        int stored = place_of(&p, step->moved, PHASE_STORED);
        assert_in_range(stored, i + 1, forward - 1);
        assert_int_equal(regions_between(&p, i, stored), 1);
        for (int k = i; k < forward; k++)
            assert_false(reads(program_at(p.program, k)->n, x));
    }
    rig_free(r, &p);
}

static void a_copy_back_starts_one_region_ahead_and_ends_before_the_first_use(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan p = compile_stack(r, &s, 1);
    for (int i = 0; i < program_length(p.program); i++) {
        const instruction *step = program_at(p.program, i);
        if (step->phase != PHASE_FETCH)
            continue;
        const fsdp_tensor *x = value_of(&p, step->moved);
        int fetched = place_of(&p, step->moved, PHASE_FETCHED);
        assert_true(i >= program_forward_length(p.program));
        assert_int_equal(regions_between(&p, i, fetched), 1);
        assert_true(reads(program_at(p.program, fetched + 1)->n, x));
        assert_true(place_of(&p, step->moved, PHASE_STORED) < i);
        for (int k = place_of(&p, step->moved, PHASE_STORED); k < fetched; k++)
            assert_false(reads(program_at(p.program, k)->n, x));
    }
    rig_free(r, &p);
}

/* At any time at most two of those that leave are there: one that is used, one on its way. */
static void the_slab_shrinks_by_what_is_away(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan kept = compile_stack(r, &s, 0), moved = compile_stack(r, &s, 1);
    assert_int_equal(kept.host_bytes, 0);
    assert_true(moved.slab_bytes + (LAYERS - 2 - 2) * VALUE_BYTES <= kept.slab_bytes);
    rig_free(r, &kept);
    rig_free(r, &moved);
}

static void run_late(rig *r, const plan *p)
{
    device *real = r->dev;
    r->dev = late_copies(real, r->transfers);
    rig_run(r, p);
    r->dev = real;
    assert_int_equal(late.n_copied, late.n_queued);
}

static void no_bit_changes_however_late_copies_happen(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan kept = compile_stack(r, &s, 0), moved = compile_stack(r, &s, 1), later = compile_stack(r, &s, 1);
    int64_t n;
    rig_run(r, &kept);
    float *wanted = rig_gradients(r, &n);
    assert_true(all_finite(wanted, n));
    for (int again = 0; again < 3; again++) {
        rig_run(r, &moved);
        float *at_once = rig_gradients(r, &n);
        run_late(r, &later);
        float *late_ones = rig_gradients(r, &n);
        assert_true(same_bits(at_once, wanted, n));
        assert_true(same_bits(late_ones, wanted, n));
        assert_int_equal(late.n_copied, 2 * (LAYERS - 2));
        free(at_once);
        free(late_ones);
    }
    free(wanted);
    rig_free(r, &kept);
    rig_free(r, &moved);
    rig_free(r, &later);
}

/* As T5: what an encoder's blocks share is away while the decoder works; the encoder's output is read by all of the
 * decoder's blocks, the last one of which is the first in backward. */
static void what_many_regions_read_leaves_once_or_stays(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    int64_t n;
    float *gradients[2];
    for (int offload = 0; offload < 2; offload++) {
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *bias = fsdp_silu(t, tape_parameter(t, s.x)), *h = fsdp_scale(t, tape_parameter(t, s.x), 1);
        for (int i = 0; i < LAYERS / 2; i++)
            h = block(t, &s, i, h, bias);
        fsdp_tensor *encoded = fsdp_silu(t, h);
        h = fsdp_scale(t, encoded, 0.5f);
        for (int i = LAYERS / 2; i < LAYERS; i++)
            h = block(t, &s, i, h, encoded);
        r->offload_bytes = (size_t)offload;
        plan p = rig_compile(r, t, fsdp_sum(t, h), false);
        r->offload_bytes = 0;
        int n_bias = 0, n_encoded = 0;
        for (int i = 0; i < program_length(p.program); i++) {
            const instruction *step = program_at(p.program, i);
            n_bias += step->moved && bias->data == step->moved->from;
            n_encoded += step->moved && encoded->data == step->moved->from;
        }
        assert_int_equal(n_bias, offload ? 4 : 0);
        assert_int_equal(n_encoded, 0);
        rig_run(r, &p);
        gradients[offload] = rig_gradients(r, &n);
        rig_free(r, &p);
    }
    assert_true(all_finite(gradients[0], n));
    assert_true(same_bits(gradients[0], gradients[1], n));
    free(gradients[0]);
    free(gradients[1]);
}

static void small_values_outputs_and_programs_without_backward_stay(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan p = compile_stack(r, &s, VALUE_BYTES + 1);
    assert_int_equal(count_phase(&p, PHASE_STORE), 0);
    assert_int_equal(p.host_bytes, 0);
    rig_free(r, &p);

    r->offload_bytes = 1;
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *h = fsdp_output(t, fsdp_scale(t, tape_parameter(t, s.x), 1)), *first = h;
    for (int i = 0; i < LAYERS; i++)
        h = block(t, &s, i, h, NULL);
    p = rig_compile(r, t, fsdp_sum(t, h), false);
    assert_int_equal(count_phase(&p, PHASE_STORE), LAYERS - 3);
    rig_run(r, &p);
    float *value = rig_output(&p, first);
    assert_true(same_bits(value, s.x->data, s.x->numel));
    free(value);
    rig_free(r, &p);

    t = rig_tape(r);
    fsdp_output(t, record_stack(t, &s));
    p = rig_compile(r, t, NULL, false);
    assert_int_equal(count_phase(&p, PHASE_STORE), 0);
    rig_free(r, &p);
    r->offload_bytes = 0;
}

static void a_run_without_host_memory_is_refused(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan p = compile_stack(r, &s, 1);
    program_run_args arguments = rig_arguments(r, &p);
    arguments.host = NULL;
    assert_status(FSDP_ERR_STATE, program_run(p.program, program_tape(p.program), &arguments));
    arguments = rig_arguments(r, &p);
    arguments.transfers = NULL;
    assert_status(FSDP_ERR_STATE, program_run(p.program, program_tape(p.program), &arguments));
    rig_free(r, &p);
}

/* Units of parameters are gathered by the places where they are read: transfers between shift those, and only those. */
static void parameter_uses_count_the_transfers_as_instructions(void **state)
{
    rig *r = *state;
    stack s = make_stack(r);
    plan p = compile_stack(r, &s, 1);
    int n;
    const parameter_use *uses = program_parameter_uses(p.program, &n);
    for (int i = 0; i < n; i++) {
        const parameter_use *u = &uses[i];
        const int places[] = {u->forward_first, u->forward_last, u->backward_first, u->backward_last};
        for (int k = 0; k < 4; k++) {
            if (places[k] < 0)
                continue; /* the gradient of a product with a number needs no value */
            const node *reader = program_at(p.program, places[k])->n;
            assert_non_null(reader);
            bool found = false;
            for (int m = 0; m < reader->n_inputs; m++)
                found |= reader->inputs[m] && reader->inputs[m]->parameter == u->parameter;
            assert_true(found);
            assert_int_equal(places[k] < program_forward_length(p.program), k < 2);
        }
    }
    rig_free(r, &p);
}

#define claim(test) cmocka_unit_test_teardown(test, rig_reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        claim(inputs_of_regions_leave_except_near_the_turn),
        claim(a_copy_out_starts_behind_the_last_use_and_has_a_region_of_time),
        claim(a_copy_back_starts_one_region_ahead_and_ends_before_the_first_use),
        claim(the_slab_shrinks_by_what_is_away),
        claim(no_bit_changes_however_late_copies_happen),
        claim(what_many_regions_read_leaves_once_or_stays),
        claim(small_values_outputs_and_programs_without_backward_stay),
        claim(a_run_without_host_memory_is_refused),
        claim(parameter_uses_count_the_transfers_as_instructions),
    };
    return cmocka_run_group_tests_name("offload", tests, rig_setup, rig_teardown);
}
