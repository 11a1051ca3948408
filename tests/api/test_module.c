/* Modules as a program builds them: initial values of its own, parts that could not be made, and a base that may grow.
 */
#include <math.h>

#include "api/support_ranks.h"

enum { WIDTH = 6 };

/* ---- Initial values ---- */

typedef struct values {
    fsdp_strategy strategy;
    float weight[2][WIDTH * WIDTH], bias[WIDTH];
} values;

static fsdp_status read_initial(fsdp_world *w, void *context)
{
    values *v = context;
    float weight[2][WIDTH * WIDTH], bias[WIDTH];
    fsdp_config config = ranks_config();
    fsdp_model *m;
    fsdp_module *net = fsdp_sequential_new();
    fsdp_module *first = fsdp_module_add(net, "first", fsdp_linear_new(WIDTH, WIDTH, true)),
                *second = fsdp_module_add(net, "second", fsdp_linear_new(WIDTH, WIDTH, false));
    fsdp_parameter_set_init(fsdp_module_weight(first), FSDP_INIT_UNIFORM, 0.25f);
    fsdp_parameter_set_init(fsdp_module_bias(first), FSDP_INIT_ONE, 0);
    fsdp_parameter_set_init(fsdp_module_weight(second), FSDP_INIT_ZERO, 0);
    fsdp_parameter_set_init(fsdp_module_bias(second), FSDP_INIT_ONE, 0); /* it has none: NULL is legal */
    config.strategy = v->strategy;
    config.wrap = fsdp_wrap_by_size(1);
    config.seed = 3;
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    FSDP_TRY(fsdp_parameter_read(m, "first.weight", 0, WIDTH * WIDTH, weight[0]));
    FSDP_TRY(fsdp_parameter_read(m, "second.weight", 0, WIDTH * WIDTH, weight[1]));
    FSDP_TRY(fsdp_parameter_read(m, "first.bias", 0, WIDTH, bias));
    if (fsdp_world_rank(w) == 0) {
        memcpy(v->weight, weight, sizeof weight);
        memcpy(v->bias, bias, sizeof bias);
    }
    fsdp_model_free(m);
    return FSDP_OK;
}

static void layers_begin_as_the_caller_says_however_they_are_sharded(void **state)
{
    (void)state;
    float first[WIDTH * WIDTH], largest = 0;
    for (int strategy = 0; strategy < FSDP_STRATEGY_COUNT; strategy++) {
        values *v = shared_memory(sizeof *v);
        v->strategy = (fsdp_strategy)strategy;
        assert_true(ranks_run(1 + strategy % 3, read_initial, v));
        for (int i = 0; i < WIDTH * WIDTH; i++) {
            assert_true(fabsf(v->weight[0][i]) <= 0.25f && v->weight[1][i] == 0 && v->bias[i % WIDTH] == 1);
            largest = fmaxf(largest, fabsf(v->weight[0][i]));
        }
        if (strategy == 0)
            memcpy(first, v->weight[0], sizeof first);
        assert_memory_equal(first, v->weight[0], sizeof first);
    }
    assert_true(largest > 0.1f);
}

/* ---- Parts that could not be made ---- */

static const fsdp_module_class plain_class = {.type = "plain"};

static void a_part_that_could_not_be_made_is_told_by_the_whole(void **state)
{
    (void)state;
    fsdp_module *net = fsdp_sequential_new(), *inner = fsdp_sequential_new();
    assert_int_equal(fsdp_module_check(net), FSDP_OK);
    fsdp_module_add(inner, "wrong", fsdp_linear_new(-1, 4, true));
    fsdp_module_add(net, "inner", inner);
    assert_int_equal(fsdp_module_check(net), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "-1"));
    fsdp_module_free(net);

    net = fsdp_sequential_new();
    assert_null(fsdp_module_add(net, "large", fsdp_module_new(&plain_class, SIZE_MAX / 4)));
    assert_int_equal(fsdp_module_check(net), FSDP_ERR_MEMORY);
    fsdp_module_free(net);

    net = fsdp_module_new(&plain_class, sizeof *net);
    assert_null(fsdp_module_parameter(net, "p", 2, (int64_t[]){3, 0}, FSDP_INIT_ONE, 0));
    assert_int_equal(fsdp_module_check(net), FSDP_ERR_INPUT);
    fsdp_module_free(net);
    assert_null(fsdp_module_add(NULL, "orphan", fsdp_linear_new(2, 2, true))); /* freed with the parent that is not */
    fsdp_module_free(NULL);
}

/* A broken tree is refused where it would be used, with the reason, and stays the caller's. */
static fsdp_status shard_broken(fsdp_world *w, void *context)
{
    (void)context;
    fsdp_config config = ranks_config();
    fsdp_model *m = NULL;
    fsdp_module *net = fsdp_sequential_new();
    fsdp_module_add(net, "good", fsdp_linear_new(4, 4, true));
    fsdp_module_add(net, "wrong", fsdp_linear_new(4, -7, true));
    EXPECT(w, fsdp_shard(w, net, &config, &m) == FSDP_ERR_INPUT && !m);
    EXPECT(w, strstr(fsdp_last_error(), "-7") != NULL);
    fsdp_module_free(net);
    EXPECT(w, fsdp_shard(w, NULL, &config, &m) != FSDP_OK && !m);
    return FSDP_OK;
}

static void a_broken_tree_is_not_sharded(void **state)
{
    (void)state;
    assert_true(ranks_run(2, shard_broken, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_begin_as_the_caller_says_however_they_are_sharded),
        cmocka_unit_test(a_part_that_could_not_be_made_is_told_by_the_whole),
        cmocka_unit_test(a_broken_tree_is_not_sharded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
