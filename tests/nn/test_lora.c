/* Which layers get adapters, by which names, and what becomes of the rest of the tree. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "nn/lora.h"

/* a.up, a.down, b.up, b.down: linear layers; a.norm; table. */
static fsdp_module *tree(void)
{
    fsdp_module *root = fsdp_sequential_new();
    fsdp_module_add(root, "table", fsdp_embedding_new(10, 8));
    for (const char *name = "ab"; *name; name++) {
        fsdp_module *part = fsdp_module_add(root, (char[]){*name, 0}, fsdp_sequential_new());
        fsdp_module_add(part, "up", fsdp_linear_new(8, 12, true));
        fsdp_module_add(part, "down", fsdp_linear_new(12, 8, false));
        fsdp_module_add(part, "norm", fsdp_rmsnorm_new(8, 1e-5f));
    }
    return root;
}

static fsdp_lora_config config(const char *targets)
{
    fsdp_lora_config c = FSDP_LORA_CONFIG_INIT;
    c.rank = 2, c.alpha = 6;
    snprintf(c.targets, sizeof c.targets, "%s", targets);
    return c;
}

static void layers_are_chosen_by_name_and_all_else_is_frozen(void **state)
{
    (void)state;
    static const struct {
        const char *targets, *resolved;
        int layers;
    } cases[] = {{"up", "up", 2},
                 {"a.up", "a.up", 1},
                 {"all-linear", "up,down", 4},
                 {"a.*", "a.up,a.down", 2},
                 {"d*n, up", "up,down", 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_module *root = tree();
        fsdp_lora_config c = config(cases[i].targets);
        module_contents contents;
        int n = 0;
        if (lora_apply(root, &c) != FSDP_OK)
            fail_msg("%s: %s", cases[i].targets, fsdp_last_error());
        assert_string_equal(c.targets, cases[i].resolved);
        assert_int_equal(module_finish(root, &contents), FSDP_OK);
        for (int k = 0; k < contents.n_parameters; k++) {
            const fsdp_parameter *p = contents.parameters[k];
            assert_true(p->trainable == p->adapter);
            if (!p->lora.b)
                continue;
            n++;
            assert_true(p->lora.scale == 3 && p->lora.a->shape[0] == 2 && p->lora.b->shape[1] == 2);
            assert_true(p->lora.a->shape[1] == p->shape[1] && p->lora.b->shape[0] == p->shape[0]);
            assert_true(p->lora.b->init == FSDP_INIT_ZERO && p->lora.a->init == FSDP_INIT_UNIFORM);
        }
        assert_int_equal(n, cases[i].layers);
        module_contents_free(&contents);
        fsdp_module_free(root);
    }
}

static void matrices_are_named_after_their_layer(void **state)
{
    (void)state;
    fsdp_module *root = tree();
    fsdp_lora_config c = config("a.up");
    module_contents contents;
    assert_int_equal(lora_apply(root, &c), FSDP_OK);
    assert_int_equal(module_finish(root, &contents), FSDP_OK);
    assert_non_null(module_find_parameter(&contents, "a.up.lora_A.weight"));
    assert_non_null(module_find_parameter(&contents, "a.up.lora_B.weight"));
    module_contents_free(&contents);
    fsdp_module_free(root);
}

static void what_cannot_be_adapted_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *targets, *says;
    } cases[] = {{"up,sideways", "no linear layer is called \"sideways\"; there are up, down"},
                 {"table", "no linear layer"},
                 {",", "no names of layers"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_module *root = tree();
        fsdp_lora_config c = config(cases[i].targets);
        assert_true(lora_apply(root, &c) != FSDP_OK);
        if (!strstr(fsdp_last_error(), cases[i].says))
            fail_msg("%s: %s", cases[i].targets, fsdp_last_error());
        fsdp_module_free(root);
    }
    fsdp_module *root = tree();
    fsdp_lora_config c = config("up"), zero = config("up");
    zero.rank = 0;
    assert_int_equal(lora_apply(root, &zero), FSDP_ERR_INPUT);
    assert_int_equal(lora_apply(root, &c), FSDP_OK);
    assert_int_equal(lora_apply(root, &c), FSDP_ERR_STATE); /* twice */
    fsdp_module_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_chosen_by_name_and_all_else_is_frozen),
        cmocka_unit_test(matrices_are_named_after_their_layer),
        cmocka_unit_test(what_cannot_be_adapted_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
