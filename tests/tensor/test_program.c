/* What a compiled recording promises: gradients overwritten first and added after, outputs that survive, memory given
 * up as soon as nobody reads it, and signatures that tell recordings apart. */
#include "tensor/rig.h"

/* Bits of `add` for the gradient of `p`, in the order in which backward writes it. */
static int adds_to(const plan *p, const fsdp_parameter *parameter, bool *adds, int capacity)
{
    int n = 0;
    for (int i = program_forward_length(p->program); i < program_length(p->program); i++) {
        const instruction *step = program_at(p->program, i);
        for (int k = 0; step->phase == PHASE_BACKWARD && k < step->n->n_inputs; k++) {
            const fsdp_tensor *x = step->n->inputs[k];
            if (x && x->parameter == parameter && node_wants_grad(step->n, k) && n < capacity)
                adds[n++] = step->add >> k & 1;
        }
    }
    return n;
}

static void a_parameter_used_three_times_is_overwritten_once_and_added_to_twice(void **state)
{
    rig *r = *state;
    fsdp_parameter *w = rig_parameter(r, DIMS(5, 5)), *x = rig_parameter(r, DIMS(3, 5));
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *y = tape_parameter(t, x);
    for (int i = 0; i < 3; i++)
        y = fsdp_silu(t, fsdp_linear(t, y, tape_parameter(t, w), NULL));
    plan p = rig_compile(r, t, fsdp_sum(t, y), false);
    bool adds[8];
    assert_int_equal(adds_to(&p, w, adds, 8), 3);
    assert_false(adds[0]);
    assert_true(adds[1] && adds[2]);
    rig_run(r, &p);
    assert_true(all_finite(w->grad, w->numel)); /* the buffer was NaN */
    rig_free(r, &p);
}

static void a_tied_weight_gets_both_gradients(void **state)
{
    rig *r = *state;
    enum { WORDS = 7, WIDTH = 5, ROWS = 9 };
    static const int32_t ids[ROWS] = {0, 3, 3, 6, 1, 0, 5, 2, 2}, labels[ROWS] = {3, 3, 6, -100, 0, 5, 2, 2, 4};
    fsdp_parameter *tied = rig_parameter(r, DIMS(WORDS, WIDTH)), *table = rig_parameter(r, DIMS(WORDS, WIDTH)),
                   *head = rig_parameter(r, DIMS(WORDS, WIDTH));
    memcpy(table->data, tied->data, (size_t)tied->numel * sizeof(float));
    memcpy(head->data, tied->data, (size_t)tied->numel * sizeof(float));
    for (int apart = 0; apart < 2; apart++) {
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *x =
            fsdp_embedding(t, fsdp_input(t, FSDP_I32, DIMS(ROWS), ids), tape_parameter(t, apart ? table : tied));
        fsdp_tensor *y = fsdp_input(t, FSDP_I32, DIMS(ROWS), labels);
        plan p = rig_compile(
            r, t, fsdp_linear_cross_entropy(t, fsdp_silu(t, x), tape_parameter(t, apart ? head : tied), y, -100).sum,
            false);
        program_run_args arguments = rig_arguments(r, &p);
        assert_ok(program_run(p.program, program_tape(p.program), &arguments));
        rig_free(r, &p);
    }
    float sum[WORDS * WIDTH];
    for (int i = 0; i < WORDS * WIDTH; i++)
        sum[i] = ((float *)table->grad)[i] + ((float *)head->grad)[i];
    assert_true(relative_distance(tied->grad, sum, WORDS * WIDTH) < 1e-6);
}

/* q|k|v as one product and as three. */
static void a_group_gets_the_gradients_of_its_members(void **state)
{
    rig *r = *state;
    static const int64_t rows[] = {6, 2, 2};
    fsdp_parameter *x = rig_parameter(r, DIMS(3, 5)), *group = rig_parameter(r, DIMS(10, 5)), *members[3];
    float *weights = rig_constant(r, 3 * 10 * sizeof *weights), wanted[10 * 5], alone[3 * 5];
    rng_fill_normal(rng_key_make(4), 0, 30, 0, 1, weights);
    for (int i = 0, first = 0; i < 3; first += (int)rows[i++]) {
        members[i] = rig_parameter(r, DIMS(rows[i], 5));
        memcpy(members[i]->data, (float *)group->data + first * 5, (size_t)members[i]->numel * sizeof(float));
    }
    for (int together = 0; together < 2; together++) {
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *in = tape_parameter(t, x), *parts[3], *y;
        if (together) {
            fsdp_parameter *head = members[0]; /* lies where `group` does, as members of a unit do */
            members[0]->group_next = members[1];
            members[1]->group_next = members[2];
            free(head->data);
            head->data = group->data;
            free(head->grad);
            head->grad = group->grad;
            y = fsdp_linear(t, in, tape_parameter_group(t, head), NULL);
            assert_int_equal(fsdp_tensor_size(y, -1), 10);
        } else {
            for (int i = 0; i < 3; i++)
                parts[i] = fsdp_linear(t, in, tape_parameter(t, members[i]), NULL);
            y = fsdp_concat(t, parts, 3, -1);
        }
        plan p = rig_compile(r, t, fsdp_sum(t, fsdp_mul(t, y, fsdp_input(t, FSDP_F32, DIMS(3, 10), weights))), false);
        program_run_args arguments = rig_arguments(r, &p);
        assert_ok(program_run(p.program, program_tape(p.program), &arguments));
        int n;
        program_parameter_uses(p.program, &n);
        assert_int_equal(n, 4); /* x and each member */
        if (!together) {
            for (int i = 0, first = 0; i < 3; first += (int)rows[i++])
                memcpy(wanted + first * 5, members[i]->grad, (size_t)members[i]->numel * sizeof(float));
            memcpy(alone, x->grad, sizeof alone);
        }
        rig_free(r, &p);
    }
    assert_true(relative_distance(group->grad, wanted, 50) < 1e-6);
    assert_true(relative_distance(x->grad, alone, 15) < 1e-6);
    members[0]->data = members[0]->grad = NULL; /* group's */
}

static void a_member_used_beside_its_group_is_refused(void **state)
{
    rig *r = *state;
    fsdp_parameter *x = rig_parameter(r, DIMS(3, 5)), *head = rig_parameter(r, DIMS(5, 5)),
                   *next = rig_parameter(r, DIMS(5, 5));
    head->group_next = next;
    next->group_head = head;
    head->name = "q_proj.weight";
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *in = tape_parameter(t, x), *both = fsdp_linear(t, in, tape_parameter_group(t, head), NULL);
    fsdp_tensor *one =
        fsdp_linear(t, fsdp_slice(t, both, 1, 0, 5), tape_parameter(t, head), NULL); /* first in backward */
    program *p;
    program_options options = {.backward = true};
    assert_status(FSDP_ERR_UNSUPPORTED, program_compile(t, fsdp_sum(t, one), &options, &p));
    assert_non_null(strstr(fsdp_last_error(), "q_proj.weight"));
    tape_free(t);
}

static void a_residual_stream_is_one_buffer_of_gradient(void **state)
{
    rig *r = *state;
    enum { ROWS = 64, WIDTH = 32, BLOCKS = 6 };
    size_t bytes[2];
    for (int i = 0; i < 2; i++) { /* gradients pass along the stream, so more blocks need no more of them */
        rig_clear(r);
        fsdp_parameter *x = rig_parameter(r, DIMS(ROWS, WIDTH)), *w = rig_parameter(r, DIMS(WIDTH, WIDTH));
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *h = fsdp_scale(t, tape_parameter(t, x), 1);
        for (int k = 0; k < (i ? BLOCKS : 2); k++)
            h = fsdp_add(t, h, fsdp_scale(t, fsdp_linear(t, h, tape_parameter(t, w), NULL), 0.1f));
        plan p = rig_compile(r, t, fsdp_sum(t, h), false);
        rig_run(r, &p);
        assert_true(all_finite(x->grad, x->numel) && all_finite(w->grad, w->numel));
        bytes[i] = p.slab_bytes;
        rig_free(r, &p);
    }
    assert_true(bytes[1] - bytes[0] <=
                (BLOCKS - 2) * ROWS * WIDTH * sizeof(float) + 4096); /* each block keeps its input only */
}

static void what_is_recorded_without_gradients_gets_none(void **state)
{
    rig *r = *state;
    fsdp_parameter *a = rig_parameter(r, DIMS(3, 5)), *b = rig_parameter(r, DIMS(3, 5));
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *x = fsdp_silu(t, tape_parameter(t, a));
    fsdp_no_grad_begin(t);
    fsdp_no_grad_begin(t);
    fsdp_tensor *y = fsdp_silu(t, tape_parameter(t, b));
    fsdp_no_grad_end(t);
    fsdp_tensor *z = fsdp_scale(t, x, 2);
    fsdp_no_grad_end(t);
    plan p = rig_compile(r, t, fsdp_sum(t, fsdp_mul(t, fsdp_add(t, x, z), y)), false);
    rig_run(r, &p);
    assert_true(isnan(((float *)b->grad)[0])); /* untouched */
    for (int i = 0; i < 15; i++) {             /* only the way through x counts: y silu'(a) */
        double v = (double)((float *)a->data)[i], s = 1 / (1 + exp(-v)), u = (double)((float *)b->data)[i];
        double wanted = u / (1 + exp(-u)) * (s + v * s * (1 - s));
        assert_true(fabs((double)((float *)a->grad)[i] - wanted) < 1e-5);
    }
    rig_free(r, &p);
}

static void a_loss_without_trainable_parameters_is_refused(void **state)
{
    rig *r = *state;
    fsdp_parameter *a = rig_parameter(r, DIMS(3, 5));
    a->trainable = false;
    fsdp_tape *t = rig_tape(r);
    program *p;
    program_options options = {.backward = true};
    assert_status(FSDP_ERR_INPUT, program_compile(t, fsdp_sum(t, tape_parameter(t, a)), &options, &p));
    assert_status(FSDP_ERR_INPUT, program_compile(t, NULL, &options, &p));
    tape_free(t);
}

static void outputs_survive_and_others_cannot_be_read(void **state)
{
    rig *r = *state;
    fsdp_parameter *a = rig_parameter(r, DIMS(17, 33));
    fsdp_tape *t = rig_tape(r);
    fsdp_tensor *steps[12];
    fsdp_tensor *x = tape_parameter(t, a);
    for (int i = 0; i < 12; i++) {
        x = steps[i] = fsdp_scale(t, x, 0.5f); /* in place, were it not for the outputs */
        if (i % 3 == 0)
            fsdp_output(t, x);
    }
    plan p = rig_compile(r, t, fsdp_sum(t, x), false);
    rig_run(r, &p);
    for (int i = 0; i < 12; i++) {
        buffer b;
        if (i % 3) {
            assert_status(FSDP_ERR_STATE, program_output(p.program, steps[i], p.slab, &b));
            continue;
        }
        float *out = rig_output(&p, steps[i]);
        for (int k = 0; k < a->numel; k++)
            assert_true(out[k] == ldexpf(((float *)a->data)[k], -(i + 1)));
        free(out);
    }
    rig_free(r, &p);
}

/* Recorded again, a tensor of the new recording names the old one's output. */
static void an_output_is_found_through_another_recording(void **state)
{
    rig *r = *state;
    float data[2][3] = {{1, 2, 3}, {4, 5, 6}};
    fsdp_tape *tapes[2];
    fsdp_tensor *out[2];
    for (int i = 0; i < 2; i++) {
        tapes[i] = rig_tape(r);
        out[i] = fsdp_output(tapes[i], fsdp_scale(tapes[i], fsdp_input(tapes[i], FSDP_F32, DIMS(3), data[i]), 2));
    }
    assert_true(tapes[0]->signature == tapes[1]->signature);
    plan p = rig_compile(r, tapes[0], NULL, true);
    program_run_args arguments = rig_arguments(r, &p);
    assert_ok(program_run(p.program, tapes[1], &arguments));
    float *values = rig_output(&p, out[1]);
    assert_true(values[0] == 8 && values[1] == 10 && values[2] == 12);
    free(values);
    tape_free(tapes[1]);
    rig_free(r, &p);
}

static const storage *memory_of(const fsdp_tensor *x)
{
    const storage *s = x->data;
    while (s->shared)
        s = s->shared;
    return s;
}

/* In place only where the value is read once: a product that reads what it overwrites would read its own result. */
static void a_residual_that_is_also_multiplied_keeps_its_memory(void **state)
{
    rig *r = *state;
    static const float data[3 * 5];
    for (int itself = 0; itself < 2; itself++) {
        rig_clear(r);
        fsdp_parameter *w = rig_parameter(r, DIMS(5, 5));
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *x = fsdp_scale(t, fsdp_input(t, FSDP_F32, DIMS(3, 5), data), 2);
        fsdp_tensor *h = itself ? x : fsdp_silu(t, x);
        fsdp_tensor *y = fsdp_output(t, fsdp_linear_add(t, h, tape_parameter(t, w), NULL, x));
        plan p = rig_compile(r, t, NULL, false);
        assert_int_equal(memory_of(x) == memory_of(y), !itself);
        rig_free(r, &p);
    }
}

static size_t chain_bytes(rig *r, int length, bool in_place)
{
    fsdp_tape *t = rig_tape(r);
    static float data[1000];
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, DIMS(1000), data);
    for (int i = 0; i < length; i++)
        x = in_place ? fsdp_scale(t, x, 1) : fsdp_silu(t, x);
    fsdp_output(t, x);
    plan p = rig_compile(r, t, NULL, false);
    rig_run(r, &p);
    size_t bytes = p.slab_bytes;
    rig_free(r, &p);
    return bytes;
}

static void a_chain_without_backward_needs_two_buffers_however_long(void **state)
{
    const size_t buffer_bytes = 4096; /* 1000 fp32, rounded */
    assert_int_equal(chain_bytes(*state, 3, false), 2 * buffer_bytes);
    assert_int_equal(chain_bytes(*state, 100, false), 2 * buffer_bytes);
    assert_int_equal(chain_bytes(*state, 100, true), buffer_bytes); /* in place: one */
}

static void training_keeps_few_gradients_at_a_time_and_checkpoints_keep_few_values(void **state)
{
    rig *r = *state;
    enum { LAYERS = 8, ROWS = 64, WIDTH = 64 };
    size_t bytes[2], values = 0;
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        rig_clear(r);
        fsdp_parameter *x = rig_parameter(r, DIMS(ROWS, WIDTH)), *w = rig_parameter(r, DIMS(WIDTH, WIDTH)),
                       *g = rig_parameter(r, DIMS(WIDTH));
        fsdp_tape *t = rig_tape(r);
        fsdp_tensor *h = tape_parameter(t, x);
        for (int i = 0; i < LAYERS; i++) {
            if (checkpointed)
                fsdp_checkpoint_begin(t);
            fsdp_tensor *y = fsdp_rmsnorm(t, h, tape_parameter(t, g), 1e-5f);
            y = fsdp_silu(t, fsdp_linear(t, y, tape_parameter(t, w), NULL));
            h = fsdp_linear_add(t, y, tape_parameter(t, w), NULL, h);
            if (checkpointed)
                fsdp_checkpoint_end(t);
        }
        fsdp_tensor *loss = fsdp_sum(t, h);
        values = 0;
        for (int i = 0; i < t->n_tensors; i++)
            values += t->tensors[i]->kind == TENSOR_VALUE ? tensor_bytes(t->tensors[i]) : 0;
        plan p = rig_compile(r, t, loss, false);
        rig_run(r, &p);
        assert_true(all_finite(w->grad, w->numel));
        bytes[checkpointed] = p.slab_bytes;
        rig_free(r, &p);
    }
    assert_true(bytes[0] <= values + 4 * ROWS * WIDTH *
                                         sizeof(float)); /* of 33 gradients, those alive at one time, and workspace */
    assert_true(bytes[1] < bytes[0] / 2);
}

/* Keeping attention's result keeps what its backward reads besides: it does not run again. */
static void selective_checkpoints_do_not_repeat_what_they_keep(void **state)
{
    rig *r = *state;
    fsdp_parameter *x = rig_parameter(r, DIMS(2, 5, 18)), *w = rig_parameter(r, DIMS(6, 6));
    for (int selective = 0; selective < 2; selective++) {
        fsdp_tape *t = rig_tape(r);
        t->selective = selective;
        fsdp_checkpoint_begin(t);
        fsdp_tensor *qkv = fsdp_scale(t, tape_parameter(t, x), 1);
        fsdp_attention_config a = {
            .q = {qkv, 0}, .k = {qkv, 6}, .v = {qkv, 12}, .q_heads = 3, .kv_heads = 3, .head_dim = 2, .scale = 1};
        fsdp_tensor *heads = fsdp_keep(t, fsdp_attention(t, &a));
        fsdp_tensor *y = fsdp_silu(t, fsdp_linear(t, heads, tape_parameter(t, w), NULL));
        fsdp_checkpoint_end(t);
        plan p = rig_compile(r, t, fsdp_sum(t, y), false);
        int repeated = 0;
        for (int i = 0; i < program_length(p.program); i++)
            repeated += program_at(p.program, i)->phase == PHASE_REPLAY &&
                        strcmp(program_at(p.program, i)->n->op->name, "attention") == 0;
        assert_int_equal(repeated, selective ? 0 : 1);
        rig_run(r, &p);
        assert_true(all_finite(x->grad, x->numel));
        rig_free(r, &p);
    }
}

static void the_count_of_a_loss_is_there_for_those_who_read_it(void **state)
{
    rig *r = *state;
    static const int32_t labels[] = {1, -100, 0, 2};
    fsdp_parameter *x = rig_parameter(r, DIMS(4, 5)), *w = rig_parameter(r, DIMS(3, 5));
    fsdp_tape *t = rig_tape(r);
    fsdp_loss loss = fsdp_linear_cross_entropy(t, tape_parameter(t, x), tape_parameter(t, w),
                                               fsdp_input(t, FSDP_I32, DIMS(4), labels), -100);
    fsdp_tensor *twice = fsdp_output(t, fsdp_scale(t, loss.count, 2));
    plan p = rig_compile(r, t, loss.sum, false);
    rig_run(r, &p);
    float *count = rig_output(&p, loss.count), *doubled = rig_output(&p, twice);
    assert_true(count[0] == 3);
    assert_true(doubled[0] == 6);
    free(count);
    free(doubled);
    rig_free(r, &p);
}

static uint64_t signature_of(rig *r, int64_t rows, int variant)
{
    static const int32_t ids[64];
    fsdp_tape *t = rig_tape(r);
    if (variant == 1)
        tape_reset(t, false);
    fsdp_tensor *x =
        fsdp_embedding(t, fsdp_input(t, FSDP_I32, 1, &rows, ids), tape_parameter(t, &r->parameters[variant == 2]));
    if (variant == 3)
        fsdp_checkpoint_begin(t);
    if (variant == 4)
        fsdp_no_grad_begin(t);
    fsdp_tensor *y = variant == 5 ? fsdp_gelu(t, x) : fsdp_silu(t, x);
    y = fsdp_scale(t, y, variant == 6 ? 0.5f : 0.25f);
    if (variant == 7)
        fsdp_output(t, y);
    fsdp_sum(t, variant == 8 ? x : y);
    if (variant == 3)
        fsdp_checkpoint_end(t);
    assert_ok(fsdp_tape_status(t));
    uint64_t signature = t->signature;
    tape_free(t);
    return signature;
}

static void the_same_recording_has_the_same_signature_and_every_other_another(void **state)
{
    rig *r = *state;
    enum { VARIANTS = 9 };
    uint64_t seen[VARIANTS + 1];
    rig_parameter(r, DIMS(3, 4));
    rig_parameter(r, DIMS(3, 4));
    for (int i = 0; i < VARIANTS; i++) {
        seen[i] = signature_of(r, 7, i);
        assert_true(seen[i] == signature_of(r, 7, i));
    }
    seen[VARIANTS] = signature_of(r, 8, 0);
    for (int i = 0; i <= VARIANTS; i++) {
        for (int k = 0; k < i; k++)
            assert_true(seen[i] != seen[k]);
    }
}

static void parameter_uses_say_where_values_are_read_and_gradients_written(void **state)
{
    rig *r = *state;
    fsdp_parameter *x = rig_parameter(r, DIMS(3, 5)), *w = rig_parameter(r, DIMS(5, 5)),
                   *unused = rig_parameter(r, DIMS(2));
    fsdp_tape *t = rig_tape(r);
    tape_parameter(t, unused);
    fsdp_tensor *h = fsdp_silu(t, tape_parameter(t, x));             /* 0 */
    h = fsdp_linear(t, h, tape_parameter(t, w), NULL);               /* 1 */
    h = fsdp_linear(t, fsdp_silu(t, h), tape_parameter(t, w), NULL); /* 2, 3 */
    plan p = rig_compile(r, t, fsdp_sum(t, h), false); /* 4; backward 5 sum, 6 linear, 7 silu, 8 linear, 9 silu */
    int n;
    const parameter_use *uses = program_parameter_uses(p.program, &n);
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++) {
        const parameter_use *u = &uses[i];
        const int got[] = {u->forward_first, u->forward_last, u->backward_first,
                           u->backward_last, u->grad_first,   u->grad_last};
        const int of_x[] = {0, 0, 9, 9, 9, 9}, of_w[] = {1, 3, 6, 8, 6, 8}, of_unused[] = {-1, -1, -1, -1, -1, -1};
        assert_memory_equal(got, u->parameter == x ? of_x : u->parameter == w ? of_w : of_unused, sizeof got);
    }
    rig_free(r, &p);
}

static fsdp_status fail_at_two(void *context, int index)
{
    int *calls = context;
    assert_int_equal(index, (*calls)++);
    return index == 2 ? FSDP_ERR_PEER : FSDP_OK;
}

static void a_hook_that_fails_stops_the_run(void **state)
{
    rig *r = *state;
    fsdp_parameter *x = rig_parameter(r, DIMS(3, 5));
    fsdp_tape *t = rig_tape(r);
    plan p = rig_compile(r, t, fsdp_sum(t, fsdp_silu(t, fsdp_silu(t, tape_parameter(t, x)))), false);
    int calls = 0;
    program_run_args arguments = rig_arguments(r, &p);
    arguments.before = fail_at_two;
    arguments.before_context = &calls;
    assert_status(FSDP_ERR_PEER, program_run(p.program, program_tape(p.program), &arguments));
    assert_int_equal(calls, 3);
    rig_free(r, &p);
}

static void an_input_without_data_is_refused(void **state)
{
    rig *r = *state;
    fsdp_tape *t = rig_tape(r);
    fsdp_output(t, fsdp_silu(t, fsdp_input(t, FSDP_F32, DIMS(3), NULL)));
    plan p = rig_compile(r, t, NULL, false);
    program_run_args arguments = rig_arguments(r, &p);
    assert_status(FSDP_ERR_STATE, program_run(p.program, program_tape(p.program), &arguments));
    rig_free(r, &p);
}

#define claim(test) cmocka_unit_test_teardown(test, rig_reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        claim(a_parameter_used_three_times_is_overwritten_once_and_added_to_twice),
        claim(a_tied_weight_gets_both_gradients),
        claim(a_group_gets_the_gradients_of_its_members),
        claim(a_member_used_beside_its_group_is_refused),
        claim(a_residual_stream_is_one_buffer_of_gradient),
        claim(what_is_recorded_without_gradients_gets_none),
        claim(a_loss_without_trainable_parameters_is_refused),
        claim(outputs_survive_and_others_cannot_be_read),
        claim(an_output_is_found_through_another_recording),
        claim(a_residual_that_is_also_multiplied_keeps_its_memory),
        claim(a_chain_without_backward_needs_two_buffers_however_long),
        claim(training_keeps_few_gradients_at_a_time_and_checkpoints_keep_few_values),
        claim(selective_checkpoints_do_not_repeat_what_they_keep),
        claim(the_count_of_a_loss_is_there_for_those_who_read_it),
        claim(the_same_recording_has_the_same_signature_and_every_other_another),
        claim(parameter_uses_say_where_values_are_read_and_gradients_written),
        claim(a_hook_that_fails_stops_the_run),
        claim(an_input_without_data_is_refused),
    };
    return cmocka_run_group_tests_name("program", tests, rig_setup, rig_teardown);
}
