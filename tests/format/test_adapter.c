/* Adapters in folders: written and read again, added to weights of both layouts, and everything that is refused. */
#include "format/scratch.h"

#include <math.h>

#include "format/weights/adapter.h"
#include "format/weights/safetensors_writer.h"

static adapter *example(bool input_major, bool rslora)
{
    adapter_config c = {.lora = FSDP_LORA_CONFIG_INIT, .input_major = input_major};
    adapter *a;
    adapter_pair *pair;
    c.lora.rank = 4, c.lora.alpha = 3, c.lora.dropout = 0.25, c.lora.rslora = rslora;
    snprintf(c.lora.targets, sizeof c.lora.targets, "q_proj,down_proj");
    assert_int_equal(adapter_create(&c, &a), FSDP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(adapter_add_pair(a, i ? "layers.0.q_proj" : "layers.1.down_proj", 5, 7, &pair), FSDP_OK);
        for (int k = 0; k < 4 * 5; k++)
            pair->a[k] = (float)sin(k + i);
        for (int k = 0; k < 7 * 4; k++)
            pair->b[k] = (float)cos(3 * k + i);
    }
    return a;
}

static const char *inside(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", scratch_folder, name);
    return path;
}

static void what_is_written_is_read_again(void **state)
{
    (void)state;
    adapter *a = example(false, true), *b;
    for (int again = 0; again < 2; again++) /* an adapter may be replaced by another */
        assert_int_equal(adapter_write(a, inside("one"), "CAUSAL_LM", "base"), FSDP_OK);
    if (adapter_open(inside("one"), &b) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    assert_string_equal(b->config.lora.targets, "q_proj,down_proj");
    assert_true(b->config.lora.rank == 4 && b->config.lora.alpha == 3 && b->config.lora.dropout == 0.25);
    assert_true(b->config.lora.rslora && !b->config.input_major && b->n_pairs == 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(a->pairs[i].layer, b->pairs[i].layer);
        assert_memory_equal(a->pairs[i].a, b->pairs[i].a, 20 * sizeof(float));
        assert_memory_equal(a->pairs[i].b, b->pairs[i].b, 28 * sizeof(float));
    }
    assert_string_equal(b->pairs[0].layer, "layers.0.q_proj");
    adapter_free(a);
    adapter_free(b);
}

static void the_product_is_added_to_weights_of_both_layouts(void **state)
{
    (void)state;
    for (int major = 0; major < 2; major++) {
        adapter *a = example(major, false);
        const adapter_pair *pair = adapter_find(a, "layers.0.q_proj.weight");
        int64_t shape[] = {major ? 5 : 7, major ? 7 : 5};
        assert_non_null(pair);
        assert_null(adapter_find(a, "layers.0.q_proj.bias"));
        assert_null(adapter_find(a, "layers.0.k_proj.weight"));
        float values[35];
        for (int i = 0; i < 35; i++)
            values[i] = 10;
        for (int64_t first = 0, n; first < 35; first += n) { /* in pieces that are no rows */
            n = first + 9 <= 35 ? 9 : 35 - first;
            assert_int_equal(adapter_add_product(a, pair, shape, first, n, values + first), FSDP_OK);
        }
        for (int output = 0; output < 7; output++) {
            for (int input = 0; input < 5; input++) {
                double sum = 0;
                for (int k = 0; k < 4; k++)
                    sum += (double)pair->b[output * 4 + k] * pair->a[k * 5 + input];
                double got = values[major ? input * 7 + output : output * 5 + input];
                assert_true(fabs(got - (10 + 0.75 * sum)) < 1e-5);
            }
        }
        int64_t other[] = {shape[1], shape[0]};
        assert_int_equal(adapter_add_product(a, pair, other, 0, 1, values), FSDP_ERR_INPUT);
        adapter_free(a);
    }
}

#define FIELDS "\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"q_proj\"]"

static void fields_that_are_not_implemented_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {{"{" FIELDS "}", NULL},
                 {"{" FIELDS ", \"bias\": \"none\", \"modules_to_save\": null, \"rank_pattern\": {}}", NULL},
                 {"{" FIELDS ", \"init_lora_weights\": \"gaussian\", \"something_new\": false}", NULL},
                 {"{" FIELDS ", \"modules_to_save\": [\"lm_head\"]}", "modules_to_save"},
                 {"{" FIELDS ", \"use_dora\": true}", "use_dora"},
                 {"{" FIELDS ", \"bias\": \"all\"}", "bias"},
                 {"{" FIELDS ", \"rank_pattern\": {\"q_proj\": 2}}", "rank_pattern"},
                 {"{" FIELDS ", \"layers_to_transform\": [0]}", "layers_to_transform"},
                 {"{" FIELDS ", \"something_new\": 3}", "something_new"},
                 {"{" FIELDS ", \"init_lora_weights\": \"pissa\"}", "init_lora_weights"},
                 {"{\"peft_type\": \"IA3\", \"r\": 4}", "peft_type"},
                 {"{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 8, \"target_modules\": [\"q\"]}", "r is 0"},
                 {"{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8}", "target_modules"},
                 {"[]", "object"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *object;
        adapter_config c;
        assert_int_equal(json_parse("text", cases[i].text, strlen(cases[i].text), &object), FSDP_OK);
        fsdp_status status = adapter_config_parse("text", object, &c);
        if ((status == FSDP_OK) != (cases[i].says == NULL))
            fail_msg("%s: %s", cases[i].text, status == FSDP_OK ? "accepted" : fsdp_last_error());
        if (cases[i].says && !strstr(fsdp_last_error(), cases[i].says))
            fail_msg("%s: %s", cases[i].text, fsdp_last_error());
        json_decref(object);
    }
}

/* One tensor more or less than pairs, or of another shape. */
static void damaged_folders_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"base_model.model.x.lora_A.weight", "base_model.model.x.lora_B.weight",
                                        "base_model.model.x.lora_magnitude_vector", "base_model.model.y.lora_B.weight",
                                        "x.lora_A.weight"};
    static const int lists[][3] = {{0, -1, -1}, {1, -1, -1}, {0, 1, 2}, {0, 1, 3}, {4, -1, -1}};
    adapter *a = example(false, false);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        safetensors_writer *w;
        float zeros[16] = {0};
        adapter *b;
        assert_int_equal(adapter_write(a, inside("bad"), NULL, NULL), FSDP_OK);
        assert_int_equal(safetensors_writer_create(inside("bad/adapter_model.safetensors"), &w), FSDP_OK);
        for (int k = 0; k < 3 && lists[i][k] >= 0; k++) {
            int64_t shape[] = {4, 4};
            assert_int_equal(safetensors_writer_add(w, names[lists[i][k]], FSDP_F32, 2, shape, NULL), FSDP_OK);
        }
        assert_int_equal(safetensors_writer_begin(w), FSDP_OK);
        for (size_t k = 0; k < 3 && lists[i][k] >= 0; k++)
            assert_int_equal(safetensors_writer_write(w, k, 0, zeros, sizeof zeros), FSDP_OK);
        assert_int_equal(safetensors_writer_commit(w), FSDP_OK);
        assert_true(adapter_open(inside("bad"), &b) != FSDP_OK);
        assert_null(b);
    }
    assert_int_equal(adapter_open(inside("nowhere"), &(adapter *){NULL}), FSDP_ERR_INPUT);
    assert_int_equal(file_write_atomic(inside("bad/model.safetensors"), "x", 1), FSDP_OK);
    assert_int_equal(adapter_write(a, inside("bad"), NULL, NULL), FSDP_ERR_INPUT); /* somebody else's folder */
    adapter_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(the_product_is_added_to_weights_of_both_layouts),
        cmocka_unit_test(fields_that_are_not_implemented_are_refused_by_name),
        cmocka_unit_test(damaged_folders_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
