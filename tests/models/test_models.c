/* The models' trees: names and shapes as in Hugging Face files, groups, rotary tables, constructors that refuse; and
 * checkpointed blocks that change no bit of a training step. */
#include <dirent.h>
#include <unistd.h>

#include "models/placed_model.h"

#include "base/file.h"

/* The header of a safetensors file: a JSON object from names to shapes. */
static json_t *read_header(const char *path)
{
    uint64_t bytes = 0;
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    assert_int_equal(fread(&bytes, 1, 8, file), 8);
    char *text = malloc(bytes);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, bytes, file), bytes);
    fclose(file);
    json_t *header = json_loadb(text, bytes, 0, NULL);
    free(text);
    assert_non_null(header);
    json_object_del(header, "__metadata__");
    return header;
}

static int64_t size_in(const json_t *header, const char *name, size_t dim)
{
    return json_integer_value(json_array_get(json_object_get(json_object_get(header, name), "shape"), dim));
}

/* The CNN has no config.json: its sizes are those of its weights, and of images that are square. */
static model_config cnn_of(const json_t *header)
{
    model_config c = model_config_default(MODEL_CNN);
    c.cnn.channels = size_in(header, "cnn_stack1.0.weight", 1);
    c.cnn.first = size_in(header, "cnn_stack1.0.weight", 0);
    c.cnn.second = size_in(header, "cnn_stack1.4.weight", 0);
    c.cnn.branch = size_in(header, "cnn_stack2.0.weight", 0);
    c.cnn.hidden = size_in(header, "linear_stack1.1.weight", 0);
    c.cnn.classes = size_in(header, "linear_stack1.3.weight", 0);
    int64_t area = size_in(header, "linear_stack1.1.weight", 1) / c.cnn.second;
    c.cnn.height = c.cnn.width = 4 * (int64_t)lround(sqrt((double)area));
    return c;
}

static bool take(json_t *header, const char *name, int n_dims, const int64_t *shape)
{
    const json_t *wanted = json_object_get(json_object_get(header, name), "shape");
    bool same = wanted && (int)json_array_size(wanted) == n_dims;
    for (int i = 0; same && i < n_dims; i++)
        same = json_integer_value(json_array_get(wanted, (size_t)i)) == shape[i];
    if (!same)
        print_error("%s is not in the file, or has another shape\n", name);
    json_object_del(header, name);
    return same;
}

static bool has_the_tensors_of(const model_config *config, json_t *header)
{
    fsdp_module *m;
    module_contents c;
    assert_ok(model_create(config, &m));
    assert_ok(module_finish(m, &c));
    bool good = true;
    for (int i = 0; i < c.n_parameters; i++)
        good &= take(header, c.parameters[i]->name, c.parameters[i]->n_dims, c.parameters[i]->shape);
    for (int i = 0; i < c.n_buffers; i++)
        good &=
            !c.buffers[i]->persistent || take(header, c.buffers[i]->name, c.buffers[i]->n_dims, c.buffers[i]->shape);
    const char *name;
    json_t *rest;
    json_object_foreach(header, name, rest)
    {
        print_error("%s is in the file only\n", name);
        good = false;
    }
    module_contents_free(&c);
    fsdp_module_free(m);
    return good;
}

static void names_and_shapes_are_those_of_the_golden_files(void **state)
{
    (void)state;
    const char *root = getenv("FSDP_GOLDEN_DIR") ? getenv("FSDP_GOLDEN_DIR") : FSDP_GOLDEN_DEFAULT;
    DIR *folders = opendir(root);
    assert_non_null(folders);
    int compared = 0, bad = 0;
    for (struct dirent *e; (e = readdir(folders));) {
        char weights[1200], folder[1100];
        snprintf(folder, sizeof folder, "%s/%s", root, e->d_name);
        snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
        json_t *header = e->d_name[0] == '.' ? NULL : read_header(weights);
        if (!header)
            continue;
        model_config config;
        snprintf(weights, sizeof weights, "%s/config.json", folder);
        if (file_exists(weights))
            assert_ok(model_config_read(folder, &config));
        else
            config = cnn_of(header);
        compared++;
        if (!has_the_tensors_of(&config, header)) {
            print_error("in %s\n", folder);
            bad++;
        }
        json_decref(header);
    }
    closedir(folders);
    assert_int_equal(bad, 0);
    assert_true(compared > 0);
}

static void check_group(const module_contents *c, int n, const char *const *names)
{
    for (int i = 0; i < n; i++) {
        const fsdp_parameter *p = module_find_parameter(c, names[i]);
        assert_non_null(p);
        assert_ptr_equal(p->group_head, module_find_parameter(c, names[0]));
        assert_ptr_equal(p->group_next, i + 1 < n ? module_find_parameter(c, names[i + 1]) : NULL);
    }
}

static void projections_of_one_input_form_groups(void **state)
{
    (void)state;
    model_config llama = small_llama(), t5 = small_t5();
    llama.decoder.attention_bias = llama.decoder.mlp_bias = t5.t5.gated = true;
    placed_model m;
    place_model(&m, &llama);
    check_group(&m.contents, 3,
                (const char *[]){"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
                                 "model.layers.1.self_attn.v_proj.weight"});
    check_group(&m.contents, 2,
                (const char *[]){"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"});
    check_group(&m.contents, 3,
                (const char *[]){"model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.k_proj.bias",
                                 "model.layers.1.self_attn.v_proj.bias"});
    check_group(&m.contents, 1, (const char *[]){"model.layers.1.mlp.down_proj.weight"});
    free_placed(&m);
    place_model(&m, &t5);
    check_group(&m.contents, 3,
                (const char *[]){"encoder.block.1.layer.0.SelfAttention.q.weight",
                                 "encoder.block.1.layer.0.SelfAttention.k.weight",
                                 "encoder.block.1.layer.0.SelfAttention.v.weight"});
    check_group(&m.contents, 2,
                (const char *[]){"decoder.block.2.layer.1.EncDecAttention.k.weight",
                                 "decoder.block.2.layer.1.EncDecAttention.v.weight"});
    check_group(&m.contents, 2,
                (const char *[]){"decoder.block.0.layer.2.DenseReluDense.wi_0.weight",
                                 "decoder.block.0.layer.2.DenseReluDense.wi_1.weight"});
    assert_null(
        module_find_parameter(&m.contents, "decoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"));
    free_placed(&m);
}

/* Turns per position of the slowest and fastest pair, and one between, against the published formula. */
static double turn_of(const fsdp_llama_config *c, int64_t pair)
{
    double plain = pow(c->rope_base, -2.0 * (double)pair / (double)c->head_dim);
    if (c->rope_scaling == FSDP_ROPE_PLAIN)
        return plain;
    double scaled = plain / c->rope_factor, wavelength = 2 * M_PI / plain;
    double low = c->rope_original_positions / c->rope_low_factor,
           high = c->rope_original_positions / c->rope_high_factor;
    if (c->rope_scaling == FSDP_ROPE_LINEAR || wavelength > low)
        return scaled;
    if (wavelength < high)
        return plain;
    double share =
        (c->rope_original_positions / wavelength - c->rope_low_factor) / (c->rope_high_factor - c->rope_low_factor);
    return (1 - share) * scaled + share * plain;
}

static void rotary_tables_follow_the_scaling(void **state)
{
    (void)state;
    static const fsdp_rope_scaling scalings[] = {FSDP_ROPE_PLAIN, FSDP_ROPE_LINEAR, FSDP_ROPE_LLAMA3};
    for (int k = 0; k < 3; k++) {
        model_config c = small_llama();
        c.decoder.head_dim = 64;
        c.decoder.rope_base = 500000;
        c.decoder.rope_scaling = scalings[k];
        c.decoder.rope_factor = 8;
        c.decoder.rope_low_factor = 1;
        c.decoder.rope_high_factor = 4;
        c.decoder.rope_original_positions = 512;
        placed_model m;
        place_model(&m, &c);
        const fsdp_buffer *cosine = module_find_buffer(&m.contents, "rope.cosine"),
                          *sine = module_find_buffer(&m.contents, "rope.sine");
        assert_non_null(cosine);
        assert_non_null(sine);
        assert_false(cosine->persistent);
        for (int64_t p = 0; p < c.decoder.positions; p++) {
            for (int64_t i = 0; i < 32; i++) {
                double angle = (double)p * turn_of(&c.decoder, i);
                assert_true(fabs((double)cosine->data[p * 32 + i] - cos(angle)) < 1e-6);
                assert_true(fabs((double)sine->data[p * 32 + i] - sin(angle)) < 1e-6);
            }
        }
        free_placed(&m);
    }
}

/* How blocks are run; a step must have the same bits in all of these. */
typedef struct step_way {
    const char *name;
    bool checkpoint, selective, recompute_cheap, staged;
} step_way;

typedef struct step_result {
    float loss[2];
    float *gradients;
    float statistics[64];
    size_t slab_bytes;
} step_result;

static bool set_checkpoint(void *context, fsdp_module *m, const char *path)
{
    const char *block = *(const char **)context;
    (void)path;
    m->checkpoint =
        block ? strcmp(m->module_class->type, block) == 0 : strncmp(path, "cnn_stack", 9) == 0 && !strchr(path, '.');
    return true;
}

static step_result run_step(rig *r, const model_config *config, const step_way *way)
{
    placed_model m;
    small_batch batch;
    step_result out = {.gradients = NULL};
    place_model(&m, config);
    fill_batch(&batch);
    const char *block = model_block_type(config);
    if (way->checkpoint)
        module_walk(m.module, set_checkpoint, &block);
    fsdp_tape *t = rig_tape(r);
    t->selective = way->selective;
    t->recompute_cheap = way->recompute_cheap;
    fsdp_loss loss = record_small_loss(m.module, config->type, t, &batch);
    assert_ok(fsdp_tape_status(t));
    assert_int_equal(t->n_regions > 0, way->checkpoint);
    plan p = rig_compile(r, t, loss.sum, way->staged);
    rig_run(r, &p);
    const fsdp_tensor *parts[] = {loss.sum, loss.count};
    for (int i = 0; i < 2; i++) {
        float *value = rig_output(&p, parts[i]);
        out.loss[i] = value[0];
        free(value);
    }
    for (int i = 0, at = 0; config->type == MODEL_CNN && i < m.contents.n_buffers;
         at += (int)m.contents.buffers[i++]->numel)
        memcpy(out.statistics + at, m.contents.buffers[i]->data, (size_t)m.contents.buffers[i]->numel * sizeof(float));
    assert_true(all_finite(m.gradients, m.numel)); /* all were NaN: every parameter is reached */
    out.slab_bytes = p.slab_bytes;
    out.gradients = m.gradients;
    m.gradients = NULL;
    rig_free(r, &p);
    free_placed(&m);
    return out;
}

static int64_t numel_of_model(const model_config *config)
{
    placed_model m;
    place_model(&m, config);
    int64_t n = m.numel;
    free_placed(&m);
    return n;
}

static int compare_ways(rig *r, const model_config *config, const char *name)
{
    static const step_way ways[] = {{.name = "checkpointed", .checkpoint = true},
                                    {.name = "checkpointed, selective", .checkpoint = true, .selective = true},
                                    {.name = "cheap ones computed again", .recompute_cheap = true},
                                    {.name = "both", .checkpoint = true, .recompute_cheap = true},
                                    {.name = "staged", .checkpoint = true, .staged = true}};
    const step_way plain_way = {.name = "plain"};
    step_result plain = run_step(r, config, &plain_way);
    int64_t n = numel_of_model(config);
    int bad = 0;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        step_result other = run_step(r, config, &ways[i]);
        bool loss = memcmp(plain.loss, other.loss, sizeof plain.loss) == 0,
             gradients = same_bits(plain.gradients, other.gradients, n);
        bool statistics = same_bits(plain.statistics, other.statistics, 64);
        if (!loss || !gradients || !statistics) {
            print_error("%s, %s: %s other bits\n", name, ways[i].name,
                        !loss        ? "the loss has"
                        : !gradients ? "gradients have"
                                     : "statistics have");
            bad++;
        }
        if (ways[i].checkpoint && !ways[i].staged && model_block_type(config))
            assert_true(other.slab_bytes < plain.slab_bytes);
        free(other.gradients);
    }
    free(plain.gradients);
    return bad;
}

static void checkpointed_blocks_change_no_bit_of_loss_and_gradients(void **state)
{
    (void)state;
    rig r;
    int bad = 0;
    rig_open(&r);
    model_config c = small_llama();
    bad += compare_ways(&r, &c, "llama");
    c.decoder.tied = c.decoder.attention_bias = c.decoder.mlp_bias = true;
    bad += compare_ways(&r, &c, "llama, tied, with biases");
    c = small_t5();
    bad += compare_ways(&r, &c, "t5 with dropout");
    c.t5.gated = true;
    c.t5.tied = false;
    c.t5.dropout = 0;
    bad += compare_ways(&r, &c, "t5, gated, untied");
    c = small_cnn();
    bad += compare_ways(&r, &c, "cnn");
    rig_close(&r);
    assert_int_equal(bad, 0);
}

static void wrong_sizes_are_refused_by_the_constructors(void **state)
{
    (void)state;
    fsdp_module *m = NULL;
    model_config c = small_llama();
    c.decoder.kv_heads = 3;
    assert_status(FSDP_ERR_INPUT, model_create(&c, &m));
    assert_non_null(strstr(fsdp_last_error(), "num_key_value_heads"));
    c = small_t5();
    c.t5.head_dim = 0;
    assert_status(FSDP_ERR_INPUT, model_create(&c, &m));
    assert_non_null(strstr(fsdp_last_error(), "d_kv"));
    c = small_cnn();
    c.cnn.height = 3;
    assert_status(FSDP_ERR_INPUT, model_create(&c, &m));
    c = model_config_default(MODEL_MLP);
    c.mlp.layers = 0;
    assert_status(FSDP_ERR_INPUT, model_create(&c, &m));
    c = small_llama(); /* sizes that are fine one by one, but whose product is none */
    c.decoder.hidden = c.decoder.heads = c.decoder.kv_heads = (int64_t)1 << 31;
    c.decoder.head_dim = 2;
    assert_status(FSDP_ERR_INPUT, model_create(&c, &m));
    assert_null(m);
}

static void sequences_longer_than_the_rotary_tables_are_refused(void **state)
{
    (void)state;
    rig r;
    placed_model m;
    static const int32_t ids[2 * 41];
    model_config c = small_llama();
    rig_open(&r);
    place_model(&m, &c);
    fsdp_tape *t = rig_tape(&r);
    assert_null(fsdp_llama_logits(m.module, t, fsdp_input(t, FSDP_I32, DIMS(2, 41), ids)));
    assert_status(FSDP_ERR_INPUT, fsdp_tape_status(t));
    assert_non_null(strstr(fsdp_last_error(), "41"));
    tape_reset(t, false);
    assert_non_null(fsdp_llama_logits(m.module, t, fsdp_input(t, FSDP_I32, DIMS(2, 40), ids)));
    tape_free(t);
    free_placed(&m);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes_are_those_of_the_golden_files),
        cmocka_unit_test(projections_of_one_input_form_groups),
        cmocka_unit_test(rotary_tables_follow_the_scaling),
        cmocka_unit_test(wrong_sizes_are_refused_by_the_constructors),
        cmocka_unit_test(sequences_longer_than_the_rotary_tables_are_refused),
        cmocka_unit_test(checkpointed_blocks_change_no_bit_of_loss_and_gradients),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
