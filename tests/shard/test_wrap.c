/* Wrap policies: which modules become units, what is left to the root, and how small neighbours are merged. */
#include "shard/stack.h"

/* The units' names behind one another. */
static void wrapped_as(stack *s, const fsdp_wrap *policy, int64_t bucket_bytes, const char *wanted)
{
    wrap_result wrapped;
    char names[400] = "";
    assert_ok(wrap_assign(s->root, &s->contents, policy, bucket_bytes, &wrapped));
    for (int i = 0; i < wrapped.n_units; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? " " : "", wrapped.names[i]);
    }
    assert_string_equal(names, wanted);
    for (int i = 0; i < s->contents.n_parameters; i++) {
        int claimed_by = s->contents.parameters[i]->unit;
        assert_in_range(claimed_by, 0, wrapped.n_units - 1);
        const char *name = wrapped.names[claimed_by];
        if (bucket_bytes == 0 && strcmp(name, "root") != 0) /* a parameter is in the unit whose path leads to it */
            assert_int_equal(strncmp(s->contents.parameters[i]->name, name, strlen(name)), 0);
    }
    wrap_result_free(&wrapped);
}

static bool is_second_block(const fsdp_module *m, void *context)
{
    ++*(int *)context;
    return strcmp(m->name, "blocks.1") == 0;
}

static void policies_choose_units_and_the_root_takes_the_rest(void **state)
{
    (void)state;
    int asked = 0;
    const fsdp_wrap by_type = fsdp_wrap_by_type("nothing,block"), by_size = fsdp_wrap_by_size(1000);
    const fsdp_wrap tiny = fsdp_wrap_by_size(1), none = {.kind = FSDP_WRAP_NONE};
    const fsdp_wrap chosen = {.kind = FSDP_WRAP_FUNCTION, .is_unit = is_second_block, .context = &asked};
    stack s;
    stack_open(&s, 2, 20); /* blocks of 24 + 3 * 480 parameters, first 600, norm 24 */
    wrapped_as(&s, &by_type, 0, "blocks.0 blocks.1 root");
    wrapped_as(&s, &by_size, 0, "blocks.0 blocks.1 root");
    wrapped_as(&s, &tiny, 0, "first blocks.0 blocks.1 norm");
    wrapped_as(&s, &chosen, 0, "blocks.1 root");
    wrapped_as(&s, &none, 0, "root");
    assert_int_equal(asked, 4); /* every module but the root */
    stack_close(&s);
}

static void small_neighbours_are_merged_up_to_the_bucket(void **state)
{
    (void)state;
    const fsdp_wrap policy = fsdp_wrap_by_type("block");
    stack s;
    stack_open(&s, 5, 20);
    int64_t block_bytes = 4 * (24 + 3 * 480);
    wrapped_as(&s, &policy, block_bytes, "blocks.0 blocks.1 blocks.2 blocks.3 blocks.4 root");
    wrapped_as(&s, &policy, 2 * block_bytes, "blocks.0 blocks.2 blocks.4");
    wrapped_as(&s, &policy, 100 * block_bytes, "blocks.0");
    stack_close(&s);
}

static void a_large_layer_left_to_the_root_is_a_unit_of_its_own(void **state)
{
    (void)state;
    const fsdp_wrap policy = fsdp_wrap_by_type("block");
    stack s = {.root = fsdp_sequential_new()};
    fsdp_module_add(s.root, "table", fsdp_embedding_new(1 << 17, 8));
    fsdp_module_add(s.root, "small", fsdp_embedding_new((1 << 17) - 1, 8));
    fsdp_module_add(s.root, "block", block_new(4));
    assert_ok(module_finish(s.root, &s.contents));
    wrapped_as(&s, &policy, 0, "block table root");
    stack_close(&s);
}

static void a_type_that_the_model_does_not_have_is_refused(void **state)
{
    (void)state;
    const fsdp_wrap policy = fsdp_wrap_by_type("bloc,locks");
    stack s;
    wrap_result wrapped;
    stack_open(&s, 2, 20);
    assert_status(FSDP_ERR_INPUT, wrap_assign(s.root, &s.contents, &policy, 0, &wrapped));
    assert_non_null(strstr(fsdp_last_error(), "bloc,locks"));
    stack_close(&s);
}

/* Types of which one begins, ends or contains another's name, in any order. */
static void modules_of_every_listed_type_are_checkpointed(void **state)
{
    (void)state;
    static const fsdp_module_class big_class = {.type = "block_big"}, inner_class = {.type = "a_block"};
    const char *const lists[] = {"block_big,block", "block,block_big", "a_block,block_big,block"};
    for (int i = 0; i < 3; i++) {
        fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
        fsdp_config c = FSDP_CONFIG_INIT;
        fsdp_world *w;
        fsdp_model *m;
        fsdp_module *root = fsdp_sequential_new(), *big = fsdp_module_new(&big_class, sizeof *big),
                    *inner = fsdp_module_new(&inner_class, sizeof *inner), *plain = block_new(4);
        fsdp_module_add(root, "big", big);
        fsdp_module_add(root, "inner", inner);
        fsdp_module_add(root, "plain", plain);
        wc.device = "cpu", wc.threads = 1;
        c.wrap = fsdp_wrap_by_type(lists[i]);
        c.checkpointing = FSDP_CHECKPOINT_FULL;
        assert_ok(fsdp_world_open(&wc, &w));
        assert_ok(fsdp_shard(w, root, &c, &m));
        assert_true(big->checkpoint && plain->checkpoint);
        assert_int_equal(inner->checkpoint, i == 2);
        fsdp_model_free(m);
        fsdp_world_close(w);
    }
}

static void a_path_longer_than_a_name_may_be_is_cut(void **state)
{
    (void)state;
    const fsdp_wrap policy = fsdp_wrap_by_type("block");
    char name[301];
    memset(name, 'x', 300);
    name[300] = '\0';
    stack s = {.root = fsdp_sequential_new()};
    fsdp_module *at = s.root;
    for (int i = 0; i < 8; i++)
        at = fsdp_module_add(at, name, fsdp_sequential_new());
    fsdp_module_add(at, "block", block_new(4));
    wrap_result wrapped;
    assert_ok(module_finish(s.root, &s.contents));
    assert_ok(wrap_assign(s.root, &s.contents, &policy, 0, &wrapped));
    assert_int_equal(wrapped.n_units, 1);
    assert_int_equal(strlen(wrapped.names[0]), 1023);
    wrap_result_free(&wrapped);
    stack_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_choose_units_and_the_root_takes_the_rest),
        cmocka_unit_test(small_neighbours_are_merged_up_to_the_bucket),
        cmocka_unit_test(a_large_layer_left_to_the_root_is_a_unit_of_its_own),
        cmocka_unit_test(a_type_that_the_model_does_not_have_is_refused),
        cmocka_unit_test(modules_of_every_listed_type_are_checkpointed),
        cmocka_unit_test(a_path_longer_than_a_name_may_be_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
