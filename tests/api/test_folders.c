/* Folders of ready-made models: a program exports one without describing it, and every reader knows what it is. */
#include "api/support_stack.h"

#include <unistd.h>

#include <fsdp/generate.h>
#include <fsdp/models.h>
#include <fsdp/tokenizer.h>

enum { LLAMA, BIASED_LLAMA, T5, GATED_T5, CNN, MLP, N_MODELS, TEXT = 512 };

static fsdp_status build(int kind, fsdp_module **out)
{
    fsdp_llama_config llama = FSDP_LLAMA_CONFIG_INIT;
    fsdp_t5_config t5 = FSDP_T5_CONFIG_INIT;
    fsdp_cnn_config cnn = FSDP_CNN_CONFIG_INIT;
    fsdp_mlp_config mlp = FSDP_MLP_CONFIG_INIT;
    llama.vocabulary = t5.vocabulary = 270;
    llama.hidden = t5.hidden = 16;
    llama.intermediate = t5.intermediate = 24;
    llama.layers = t5.layers = 2, t5.decoder_layers = 1;
    llama.heads = t5.heads = 4, llama.kv_heads = 2;
    llama.head_dim = t5.head_dim = 6; /* not hidden / heads */
    llama.positions = 64, llama.init_deviation = 0.3f;
    switch (kind) {
    case BIASED_LLAMA:
        llama.attention_bias = llama.mlp_bias = llama.tied = true;
        llama.rope_scaling = FSDP_ROPE_LLAMA3;
        llama.rope_base = 5e5, llama.rope_factor = 8, llama.rope_low_factor = 1, llama.rope_high_factor = 4;
        llama.rope_original_positions = 32;
        /* fall through */
    case LLAMA:
        return fsdp_llama_new(&llama, out);
    case GATED_T5:
        t5.gated = true, t5.tied = false, t5.scale_decoder_outputs = false;
        /* fall through */
    case T5:
        return fsdp_t5_new(&t5, out);
    case CNN:
        cnn.height = 12, cnn.width = 20, cnn.hidden = 7;
        return fsdp_cnn_new(&cnn, out);
    default:
        mlp.inputs = 9, mlp.hidden = 11, mlp.layers = 3;
        return fsdp_mlp_new(&mlp, out);
    }
}

typedef struct job {
    int kind;
    char folder[128], full[128];
} job;

static void append(void *context, const char *text, size_t bytes)
{
    size_t n = strlen(context);
    if (n + bytes < TEXT)
        memcpy((char *)context + n, text, bytes), ((char *)context)[n + bytes] = 0;
}

static fsdp_generate_config drawn(char *text)
{
    fsdp_generate_config c = FSDP_GENERATE_CONFIG_INIT;
    c.prompt = "A model", c.prompt_bytes = 7, c.max_new_tokens = 20, c.temperature = 1;
    c.text = append, c.context = text;
    return c;
}

static fsdp_status open_state(fsdp_model *m, const char *model_json, fsdp_state **out)
{
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    config.model = m;
    config.model_json = model_json;
    return fsdp_state_open(&config, out);
}

/* The folder as a module of its own has the same parameters, and every one of its values is in the folder. */
static fsdp_status read_back(fsdp_world *w, const job *j, const char *folder, fsdp_model *m)
{
    fsdp_config config = ranks_config();
    fsdp_load_report report = FSDP_LOAD_REPORT_INIT;
    fsdp_module *net;
    fsdp_model *again;
    config.seed = 99; /* other initial values */
    FSDP_TRY(fsdp_model_from_config(folder, &net));
    FSDP_TRY(fsdp_shard(w, net, &config, &again));
    EXPECT(w, fsdp_model_parameters(again) == fsdp_model_parameters(m));
    FSDP_TRY(fsdp_weights_load(again, folder, NULL, &report));
    EXPECT(w, report.missing == 0 && report.unexpected == 0);
    if (j->kind <= GATED_T5) {
        char here[TEXT] = "", there[TEXT] = "";
        fsdp_tokenizer *tokenizer;
        fsdp_generate_config a = drawn(here), b = drawn(there);
        FSDP_TRY(fsdp_tokenizer_byte(&tokenizer));
        FSDP_TRY(fsdp_generate_with(m, tokenizer, &a, NULL));
        FSDP_TRY(fsdp_generate_with(again, tokenizer, &b, NULL));
        EXPECT(w, fsdp_world_rank(w) > 0 || (here[0] && strcmp(here, there) == 0));
        fsdp_tokenizer_free(tokenizer);
    }
    fsdp_model_free(again);
    return FSDP_OK;
}

static fsdp_status export_and_read(fsdp_world *w, void *context)
{
    const job *j = context;
    fsdp_config config = ranks_config();
    fsdp_module *net;
    fsdp_model *m;
    fsdp_state *state;
    FSDP_TRY(build(j->kind, &net));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    FSDP_TRY(open_state(m, NULL, &state));
    FSDP_TRY(fsdp_export(state, j->folder));
    FSDP_TRY(fsdp_save_as(state, j->full, FSDP_CKPT_FULL, 3));
    FSDP_TRY(read_back(w, j, j->folder, m));
    FSDP_TRY(read_back(w, j, fsdp_state_path(state), m));
    fsdp_state_close(state);
    fsdp_model_free(m);
    return FSDP_OK;
}

static char *root; /* of all folders of this test */

static void exported_models_say_what_they_are(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_MODELS; kind++) {
        job j = {.kind = kind};
        snprintf(j.folder, sizeof j.folder, "%s/model-%d", root, kind);
        snprintf(j.full, sizeof j.full, "%s/run-%d", root, kind);
        if (!ranks_run(1 + kind % 2, export_and_read, &j))
            fail_msg("model %d", kind);
    }
}

/* Models that the library cannot describe, and one that the program does. */
typedef struct other {
    const char *name, *model_json;
    bool own, added;
} other;

static fsdp_status export_other(fsdp_world *w, void *context)
{
    const other *o = context;
    fsdp_config config = ranks_config();
    fsdp_module *net;
    fsdp_model *m;
    fsdp_state *state;
    char folder[128];
    if (o->own)
        net = stack_new();
    else
        FSDP_TRY(build(MLP, &net));
    if (o->added)
        fsdp_module_add(net, "more", fsdp_linear_new(10, 10, true));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    FSDP_TRY(open_state(m, o->model_json, &state));
    snprintf(folder, sizeof folder, "%s/%s", root, o->name);
    FSDP_TRY(fsdp_export(state, folder));
    fsdp_state_close(state);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void only_models_that_are_known_are_described(void **state)
{
    (void)state;
    other others[] = {{.name = "own", .own = true},
                      {.name = "added", .added = true},
                      {.name = "given", .model_json = "{\"model_type\": \"mine\"}"}};
    for (int i = 0; i < 3; i++) {
        char path[160], text[256] = "";
        assert_true(ranks_run(1, export_other, &others[i]));
        snprintf(path, sizeof path, "%s/%s/config.json", root, others[i].name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        assert_non_null(strstr(text, others[i].model_json ? "\"mine\"" : "\"fsdp-custom\""));
    }
    fsdp_module *net;
    char folder[160];
    snprintf(folder, sizeof folder, "%s/given", root);
    assert_int_not_equal(fsdp_model_from_config(folder, &net), FSDP_OK);
    assert_non_null(strstr(fsdp_last_error(), "mine"));
}

static int make_root(void **state)
{
    static char name[] = "/tmp/fsdp-folders-XXXXXX";
    (void)state;
    root = mkdtemp(name);
    return root ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exported_models_say_what_they_are),
        cmocka_unit_test(only_models_that_are_known_are_described),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
