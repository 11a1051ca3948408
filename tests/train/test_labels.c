/* Labels outside the vocabulary are an error on every device: where the host sees them, when the loss is computed;
 * elsewhere with the step's figures, of which the count is then no number. Nothing has changed either way. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <fsdp/fsdp.h>

enum { ROWS = 4, WIDTH = 6, CLASSES = 3 };

typedef struct rig {
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    float images[ROWS * WIDTH];
} rig;

static void open_rig(rig *r)
{
    fsdp_world_config world = FSDP_WORLD_CONFIG_INIT;
    fsdp_mlp_config shape = FSDP_MLP_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config optimizer = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_module *net;
    world.device = "cpu";
    world.threads = 1;
    shape.inputs = WIDTH;
    shape.hidden = 5;
    shape.layers = 1;
    shape.outputs = CLASSES;
    for (int i = 0; i < ROWS * WIDTH; i++)
        r->images[i] = (float)(i % 7) / 7;
    assert_int_equal(fsdp_world_open(&world, &r->world), FSDP_OK);
    assert_int_equal(fsdp_mlp_new(&shape, &net), FSDP_OK);
    assert_int_equal(fsdp_shard(r->world, net, &config, &r->model), FSDP_OK);
    assert_int_equal(fsdp_optimizer_new(r->model, &optimizer, &r->optimizer), FSDP_OK);
}

static void close_rig(rig *r)
{
    fsdp_optimizer_free(r->optimizer);
    fsdp_model_free(r->model);
    fsdp_world_close(r->world);
}

static fsdp_loss record(rig *r, fsdp_tape *t, const int32_t *labels)
{
    int64_t shape[] = {ROWS, WIDTH}, rows = ROWS;
    return fsdp_classifier_loss(fsdp_model_module(r->model), t, fsdp_input(t, FSDP_F32, 2, shape, r->images),
                                fsdp_input(t, FSDP_I32, 1, &rows, labels));
}

static void a_label_outside_is_an_error_where_the_host_sees_it(void **state)
{
    (void)state;
    rig r;
    open_rig(&r);
    const int32_t labels[][ROWS] = {{0, 1, 2, 3}, {0, -1, 1, 1}, {0, FSDP_IGNORE, 2, 1}};
    for (int i = 0; i < 3; i++) {
        fsdp_tape *t = fsdp_begin(r.model);
        fsdp_status status = fsdp_backward(t, record(&r, t, labels[i]), true);
        assert_int_equal(status, i < 2 ? FSDP_ERR_INPUT : FSDP_OK);
        if (i < 2)
            assert_non_null(strstr(fsdp_last_error(), i == 0 ? "label 3 of row 3" : "label -1 of row 1"));
    }
    close_rig(&r);
}

/* As a GPU says it: the kernel makes the count NaN. */
static void a_count_that_is_no_number_is_the_error_of_the_step_and_changes_nothing(void **state)
{
    (void)state;
    rig r;
    const int32_t labels[ROWS] = {0, 1, 2, 0};
    const float nothing = NAN;
    const char *name = "0.weight";
    float before[5 * WIDTH], after[5 * WIDTH];
    int64_t one = 1;
    open_rig(&r);
    assert_int_equal(fsdp_parameter_read(r.model, name, 0, 5 * WIDTH, before), FSDP_OK);
    fsdp_tape *t = fsdp_begin(r.model);
    fsdp_loss loss = record(&r, t, labels);
    loss.count = fsdp_output(t, fsdp_scale(t, fsdp_input(t, FSDP_F32, 1, &one, &nothing), 1));
    assert_int_equal(fsdp_backward(t, loss, true), FSDP_OK);
    assert_int_equal(fsdp_step(r.optimizer, NULL), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "outside the vocabulary"));
    assert_int_equal(fsdp_parameter_read(r.model, name, 0, 5 * WIDTH, after), FSDP_OK);
    assert_memory_equal(before, after, sizeof before);
    /* The next step is none the worse for it. */
    t = fsdp_begin(r.model);
    assert_int_equal(fsdp_backward(t, record(&r, t, labels), true), FSDP_OK);
    assert_int_equal(fsdp_step(r.optimizer, NULL), FSDP_OK);
    assert_int_equal(fsdp_parameter_read(r.model, name, 0, 5 * WIDTH, after), FSDP_OK);
    assert_true(memcmp(before, after, sizeof before) != 0);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_label_outside_is_an_error_where_the_host_sees_it),
        cmocka_unit_test(a_count_that_is_no_number_is_the_error_of_the_step_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
