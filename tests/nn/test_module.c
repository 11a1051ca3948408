/* Module trees: names, construction that fails, initial values, calls. */
#include "nn/module.h"

#include "base/error.h"
#include "tensor/rig.h"

static const fsdp_module_class box_class = {.type = "box"};

static fsdp_module *box(void)
{
    return fsdp_module_new(&box_class, sizeof(fsdp_module));
}

/* norm, then two blocks of a linear layer each, under names with dots in them. */
static fsdp_module *small_tree(void)
{
    fsdp_module *root = box();
    fsdp_module_parameter(root, "scale", DIMS(3), FSDP_INIT_ONE, 0);
    fsdp_module_add(root, "norm", fsdp_layernorm_new(4, 1e-5f));
    for (int i = 0; i < 2; i++) {
        char name[20];
        snprintf(name, sizeof name, "blocks.%d", i);
        fsdp_module *block = fsdp_module_add(root, name, box());
        fsdp_module_add(block, "up", fsdp_linear_new(4, 5, true));
    }
    fsdp_module_add(root, "bn", fsdp_batchnorm2d_new(2, 1e-5f, 0.1f));
    return root;
}

static void names_are_paths_in_tree_order(void **state)
{
    (void)state;
    static const char *const wanted[] = {"scale",
                                         "norm.weight",
                                         "norm.bias",
                                         "blocks.0.up.weight",
                                         "blocks.0.up.bias",
                                         "blocks.1.up.weight",
                                         "blocks.1.up.bias",
                                         "bn.weight",
                                         "bn.bias"};
    fsdp_module *root = small_tree();
    module_contents c;
    assert_ok(module_finish(root, &c));
    assert_int_equal(c.n_parameters, 9);
    for (int i = 0; i < 9; i++) {
        assert_string_equal(c.parameters[i]->name, wanted[i]);
        assert_int_equal(c.parameters[i]->index, i);
        assert_ptr_equal(module_find_parameter(&c, wanted[i]), c.parameters[i]);
        assert_int_equal(c.parameters[i]->decay, c.parameters[i]->n_dims >= 2);
        assert_true(c.parameters[i]->trainable);
    }
    assert_int_equal(c.n_buffers, 2);
    assert_string_equal(c.buffers[0]->name, "bn.running_mean");
    assert_string_equal(c.buffers[1]->name, "bn.running_var");
    assert_true(c.buffers[0]->persistent && c.buffers[0]->initial[1] == 0 && c.buffers[1]->initial[1] == 1);
    assert_ptr_equal(module_find_buffer(&c, "bn.running_var"), c.buffers[1]);
    assert_null(module_find_parameter(&c, "up.weight"));
    assert_null(module_find_buffer(&c, "bn.weight"));
    module_contents_free(&c);
    fsdp_module_free(root);
}

typedef struct walk_state {
    char seen[400];
    int left;
} walk_state;

static bool note_path(void *context, fsdp_module *m, const char *path)
{
    walk_state *w = context;
    size_t used = strlen(w->seen);
    snprintf(w->seen + used, sizeof w->seen - used, "%s:%s ", path, m->module_class->type);
    return --w->left > 0;
}

static void a_walk_sees_parents_first_and_stops_when_told(void **state)
{
    (void)state;
    fsdp_module *root = small_tree();
    walk_state all = {.left = 100}, few = {.left = 3};
    assert_true(module_walk(root, note_path, &all));
    assert_string_equal(
        all.seen,
        ":box norm:layernorm blocks.0:box blocks.0.up:linear blocks.1:box blocks.1.up:linear bn:batchnorm2d ");
    assert_false(module_walk(root, note_path, &few));
    assert_string_equal(few.seen, ":box norm:layernorm blocks.0:box ");
    fsdp_module_free(root);
}

/* Construction that fails. */

static void two_parameters_of_one_name_are_refused_by_name(void **state)
{
    (void)state;
    module_contents c;
    fsdp_module *root = box();
    fsdp_module_add(root, "up", fsdp_linear_new(4, 5, false));
    fsdp_module_add(root, "up", fsdp_linear_new(4, 5, false));
    assert_status(FSDP_ERR_INPUT, module_finish(root, &c));
    assert_non_null(strstr(fsdp_last_error(), "up.weight"));
    assert_null(c.parameters);
    fsdp_module_free(root);
    /* Also when the dots fall elsewhere, and between a parameter and a buffer. */
    root = box();
    fsdp_module_parameter(root, "a.b", DIMS(3), FSDP_INIT_ONE, 0);
    fsdp_module_buffer(fsdp_module_add(root, "a", box()), "b", DIMS(3), NULL, true);
    assert_status(FSDP_ERR_INPUT, module_finish(root, &c));
    assert_non_null(strstr(fsdp_last_error(), "a.b"));
    fsdp_module_free(root);
}

static void a_size_that_is_not_positive_breaks_the_tree_by_name(void **state)
{
    (void)state;
    fsdp_module *layers[] = {fsdp_linear_new(0, 5, true),
                             fsdp_linear_new(4, -5, true),
                             fsdp_embedding_new(INT64_MAX, INT64_MAX),
                             fsdp_rmsnorm_new(0, 1e-5f),
                             fsdp_layernorm_new(-1, 1e-5f),
                             fsdp_conv2d_new(3, 4, (fsdp_window){0, 3, 1, 1, 0, 0}, false),
                             fsdp_batchnorm2d_new(0, 1e-5f, 0.1f)};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        fsdp_module *root = box();
        module_contents c;
        fsdp_module_add(fsdp_module_add(root, "inner", box()), "layer", layers[i]);
        assert_status(FSDP_ERR_INPUT, fsdp_module_check(root));
        assert_status(FSDP_ERR_INPUT, module_finish(root, &c));
        fsdp_module_free(root);
    }
    fsdp_module *layer = fsdp_linear_new(0, 5, true);
    assert_status(FSDP_ERR_INPUT, fsdp_module_check(layer));
    assert_non_null(strstr(fsdp_last_error(), "weight of a linear"));
    assert_non_null(strstr(fsdp_last_error(), "positive"));
    fsdp_module_free(layer);
}

static void a_missing_child_breaks_its_parent(void **state)
{
    (void)state;
    fsdp_module *root = box(), *inner = fsdp_module_add(root, "inner", box());
    assert_ok(fsdp_module_check(root));
    fsdp_module_free(fsdp_linear_new(0, 5, true)); /* other failures, before and after */
    assert_null(fsdp_module_add(inner, "layer", NULL));
    error_set(FSDP_ERR_IO, "something else");
    assert_status(FSDP_ERR_INPUT, fsdp_module_check(root));
    assert_non_null(strstr(fsdp_last_error(), "layer of a box"));
    fsdp_module_free(root);
    /* Without a parent the child is freed, and everything accepts what is not there. */
    assert_null(fsdp_module_add(NULL, "layer", box()));
    assert_null(fsdp_module_parameter(NULL, "weight", DIMS(3), FSDP_INIT_ONE, 0));
    assert_null(fsdp_module_buffer(NULL, "mean", DIMS(3), NULL, true));
    assert_null(fsdp_module_weight(NULL));
    assert_int_not_equal(fsdp_module_check(NULL), FSDP_OK);
    fsdp_parameter *members[] = {NULL, NULL};
    fsdp_parameter_group(members, 2);
    fsdp_module_free(NULL);
}

/* What the child failed of is what the tree failed of, however much fails after it. */
static void the_first_failure_of_a_tree_is_the_one_it_tells_of(void **state)
{
    (void)state;
    const fsdp_module_class huge = {.type = "huge"};
    fsdp_module *root = box(), *inner = fsdp_module_add(root, "inner", box());
    assert_null(fsdp_module_add(inner, "large", fsdp_module_new(&huge, SIZE_MAX / 2)));
    assert_null(fsdp_module_add(inner, "small", fsdp_module_new(&huge, sizeof(fsdp_module) - 1)));
    error_set(FSDP_ERR_IO, "something else");
    for (int i = 0; i < 2; i++) {
        assert_status(FSDP_ERR_MEMORY, fsdp_module_check(root));
        assert_non_null(strstr(fsdp_last_error(), "large of a box: creating a huge: out of host memory"));
    }
    fsdp_module_free(root);
    root = box();
    assert_null(fsdp_module_add(root, "small", fsdp_module_new(&huge, sizeof(fsdp_module) - 1)));
    fsdp_module_parameter(root, "weight", DIMS(-1), FSDP_INIT_ONE, 0);
    assert_status(FSDP_ERR_INPUT, fsdp_module_check(root));
    assert_non_null(strstr(fsdp_last_error(), "small of a box: creating a huge of"));
    fsdp_module_free(root);
}

static void a_module_has_one_place_in_one_tree(void **state)
{
    (void)state;
    fsdp_module *root = box(), *inner = fsdp_module_add(root, "inner", box()), *other = box();
    assert_null(fsdp_module_add(other, "again", inner));
    assert_status(FSDP_ERR_INPUT, fsdp_module_check(other));
    assert_non_null(strstr(fsdp_last_error(), "again of a box is part of a tree already, as inner"));
    assert_ok(fsdp_module_check(root));
    assert_null(fsdp_module_add(root, "itself", root));
    assert_status(FSDP_ERR_INPUT, fsdp_module_check(root));
    assert_null(fsdp_module_add(other, NULL, box()));
    fsdp_module_free(other);
    fsdp_module_free(root);
}

/* Initial values. */

static void values_of(fsdp_module *root, const char *name, uint64_t seed, float *out, int64_t n)
{
    module_contents c;
    assert_ok(module_finish(root, &c));
    const fsdp_parameter *p = module_find_parameter(&c, name);
    assert_non_null(p);
    assert_int_equal(p->numel, n);
    parameter_initial_values(p, seed, 0, n, out);
    module_contents_free(&c);
    fsdp_module_free(root);
}

static void initial_values_follow_the_name_not_the_order(void **state)
{
    (void)state;
    float a[20], b[20], c[20], d[20];
    fsdp_module *first = box(), *second = box(), *other = box(), *third = box();
    fsdp_module_add(first, "up", fsdp_linear_new(4, 5, false));
    fsdp_module_add(first, "down", fsdp_linear_new(4, 5, false));
    fsdp_module_add(second, "norm", fsdp_rmsnorm_new(9, 1e-5f));
    fsdp_module_add(second, "down", fsdp_linear_new(4, 5, false));
    fsdp_module_add(second, "up", fsdp_linear_new(4, 5, false));
    fsdp_module_add(other, "up", fsdp_linear_new(4, 5, false));
    fsdp_module_add(third, "down", fsdp_linear_new(4, 5, false));
    values_of(first, "up.weight", 1, a, 20);
    values_of(second, "up.weight", 1, b, 20);
    values_of(other, "up.weight", 2, c, 20);
    values_of(third, "down.weight", 1, d, 20);
    assert_memory_equal(a, b, sizeof a);
    assert_false(same_bits(a, c, 20)); /* another seed */
    assert_false(same_bits(a, d, 20)); /* another name */
}

static void initial_values_are_the_same_however_they_are_cut(void **state)
{
    (void)state;
    enum { N = 1003 };
    static const fsdp_init kinds[] = {FSDP_INIT_ZERO, FSDP_INIT_ONE, FSDP_INIT_NORMAL, FSDP_INIT_UNIFORM};
    for (int k = 0; k < 4; k++) {
        fsdp_module *root = box();
        const fsdp_parameter *p = fsdp_module_parameter(root, "weight", DIMS(N), kinds[k], 0.5f);
        float whole[N], parts[N];
        parameter_initial_values(p, 9, 0, N, whole);
        for (int64_t first = 0, n = 1; first < N; first += n, n = n * 2 + 1)
            parameter_initial_values(p, 9, first, n < N - first ? n : N - first, parts + first);
        assert_memory_equal(whole, parts, sizeof whole);
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            sum += (double)whole[i];
            squares += (double)whole[i] * whole[i];
            assert_true(kinds[k] != FSDP_INIT_UNIFORM || (whole[i] >= -0.5f && whole[i] < 0.5f));
        }
        const double variance[] = {0, 1, 0.25, 0.25 / 3}, mean[] = {0, 1, 0, 0};
        assert_true(fabs(sum / N - mean[k]) < 0.06);
        assert_true(fabs(squares / N - variance[k]) < 0.03);
        fsdp_module_free(root);
    }
}

static void layers_are_initialised_as_in_pytorch(void **state)
{
    (void)state;
    fsdp_module *linear = fsdp_linear_new(16, 5, true),
                *conv = fsdp_conv2d_new(4, 5, (fsdp_window){2, 2, 1, 1, 0, 0}, true);
    fsdp_module *embedding = fsdp_embedding_new(7, 5), *norm = fsdp_rmsnorm_new(5, 1e-5f);
    assert_true(fsdp_module_weight(linear)->init == FSDP_INIT_UNIFORM &&
                fsdp_module_weight(linear)->init_scale == 0.25f);
    assert_true(linear->parameters[1]->init == FSDP_INIT_UNIFORM && linear->parameters[1]->init_scale == 0.25f);
    assert_true(fsdp_module_weight(conv)->init_scale == 0.25f); /* 1 / sqrt(4 * 2 * 2) */
    assert_true(fsdp_module_weight(embedding)->init == FSDP_INIT_NORMAL &&
                fsdp_module_weight(embedding)->init_scale == 1);
    assert_true(fsdp_module_weight(norm)->init == FSDP_INIT_ONE);
    assert_null(fsdp_module_weight((fsdp_module[]){{.module_class = &box_class}}));
    fsdp_module_free(linear);
    fsdp_module_free(conv);
    fsdp_module_free(embedding);
    fsdp_module_free(norm);
}

/* Calls. */

static void pair_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                         int n_out)
{
    (void)self;
    assert_int_equal(n_in, 2);
    assert_int_equal(n_out, 2);
    out[0] = fsdp_add(t, in[0], in[1]);
    out[1] = fsdp_mul(t, in[0], in[1]);
}

static fsdp_tensor *twice_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    return fsdp_scale(t, self->n_children ? fsdp_call(self->children[0], t, x) : x, 2);
}

static const fsdp_module_class pair_class = {.type = "pair", .forward_list = pair_forward};
static const fsdp_module_class twice_class = {.type = "twice", .forward = twice_forward};

static void modules_take_and_return_several_tensors(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    float a[] = {1, 2, 3}, b[] = {4, 5, 6};
    fsdp_module *pair = fsdp_module_new(&pair_class, sizeof *pair);
    fsdp_tape *t = rig_tape(&r);
    fsdp_tensor *in[] = {fsdp_input(t, FSDP_F32, DIMS(3), a), fsdp_input(t, FSDP_F32, DIMS(3), b)}, *out[2];
    fsdp_call_list(pair, t, in, 2, out, 2);
    fsdp_output(t, out[0]);
    fsdp_output(t, out[1]);
    plan p = rig_compile(&r, t, NULL, false);
    rig_run(&r, &p);
    float *sum = rig_output(&p, out[0]), *product = rig_output(&p, out[1]);
    assert_true(sum[0] == 5 && sum[2] == 9 && product[0] == 4 && product[2] == 18);
    free(sum);
    free(product);
    rig_free(&r, &p);
    fsdp_module_free(pair);
    rig_close(&r);
}

static void the_wrong_number_of_tensors_is_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    float a[] = {1, 2, 3};
    fsdp_module *twice = fsdp_module_new(&twice_class, sizeof *twice);
    fsdp_tape *t = rig_tape(&r);
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, DIMS(3), a), *in[] = {x, x}, *out[1] = {x};
    fsdp_call_list(twice, t, in, 2, out, 1);
    assert_null(out[0]);
    assert_status(FSDP_ERR_INPUT, fsdp_tape_status(t));
    assert_non_null(strstr(fsdp_last_error(), "twice"));
    assert_null(fsdp_call(twice, t, x)); /* the tape has failed */
    tape_reset(t, true);
    assert_null(fsdp_call(twice, t, NULL));
    assert_null(fsdp_call(NULL, t, fsdp_input(t, FSDP_F32, DIMS(3), a)));
    assert_null(fsdp_use(t, NULL));
    assert_null(fsdp_use_group(t, NULL));
    assert_null(fsdp_use_buffer(t, NULL));
    tape_free(t);
    fsdp_module_free(twice);
    rig_close(&r);
}

static void a_checkpointed_module_is_a_region_in_training_only_and_may_hold_others(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    float a[] = {1, 2, 3};
    fsdp_module *outer = fsdp_module_new(&twice_class, sizeof *outer);
    fsdp_module *inner = fsdp_module_add(outer, "inner", fsdp_module_new(&twice_class, sizeof *inner));
    outer->checkpoint = inner->checkpoint = true;
    for (int training = 0; training < 2; training++) {
        fsdp_tape *t = rig_tape(&r);
        tape_reset(t, training);
        fsdp_tensor *y = fsdp_call(outer, t, fsdp_input(t, FSDP_F32, DIMS(3), a));
        y = fsdp_call(outer, t, y);
        assert_ok(fsdp_tape_status(t));
        assert_int_equal(t->n_regions, training ? 2 : 0);
        assert_int_equal(y->producer->region, training ? 1 : -1);
        assert_int_equal(t->region, -1);
        tape_free(t);
    }
    fsdp_module_free(outer);
    rig_close(&r);
}

static void a_group_is_read_as_one_matrix(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    fsdp_module *root = box();
    fsdp_parameter *members[] = {fsdp_module_parameter(root, "q", DIMS(6, 5), FSDP_INIT_ONE, 0),
                                 fsdp_module_parameter(root, "k", DIMS(2, 5), FSDP_INIT_ONE, 0),
                                 fsdp_module_parameter(root, "v", DIMS(2, 5), FSDP_INIT_ONE, 0)};
    fsdp_parameter *odd[] = {fsdp_module_parameter(root, "a", DIMS(6, 5), FSDP_INIT_ONE, 0),
                             fsdp_module_parameter(root, "b", DIMS(6, 4), FSDP_INIT_ONE, 0)};
    fsdp_parameter_group(members, 3);
    fsdp_parameter_group(odd, 2);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(members[i]->group_head, members[0]);
        assert_ptr_equal(members[i]->group_next, i < 2 ? members[i + 1] : NULL);
    }
    fsdp_tape *t = rig_tape(&r);
    fsdp_tensor *all = fsdp_use_group(t, members[0]), *one = fsdp_use(t, members[1]);
    assert_int_equal(fsdp_tensor_size(all, 0), 10);
    assert_int_equal(fsdp_tensor_size(all, 1), 5);
    assert_int_equal(fsdp_tensor_size(one, 0), 2);
    assert_null(fsdp_use_group(t, odd[0]));
    assert_status(FSDP_ERR_INPUT, fsdp_tape_status(t));
    assert_non_null(strstr(fsdp_last_error(), "a and b"));
    tape_free(t);
    fsdp_module_free(root);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_paths_in_tree_order),
        cmocka_unit_test(a_walk_sees_parents_first_and_stops_when_told),
        cmocka_unit_test(two_parameters_of_one_name_are_refused_by_name),
        cmocka_unit_test(a_size_that_is_not_positive_breaks_the_tree_by_name),
        cmocka_unit_test(a_missing_child_breaks_its_parent),
        cmocka_unit_test(the_first_failure_of_a_tree_is_the_one_it_tells_of),
        cmocka_unit_test(a_module_has_one_place_in_one_tree),
        cmocka_unit_test(initial_values_follow_the_name_not_the_order),
        cmocka_unit_test(initial_values_are_the_same_however_they_are_cut),
        cmocka_unit_test(layers_are_initialised_as_in_pytorch),
        cmocka_unit_test(modules_take_and_return_several_tensors),
        cmocka_unit_test(the_wrong_number_of_tensors_is_refused),
        cmocka_unit_test(a_checkpointed_module_is_a_region_in_training_only_and_may_hold_others),
        cmocka_unit_test(a_group_is_read_as_one_matrix),
    };
    return cmocka_run_group_tests_name("module", tests, NULL, NULL);
}
