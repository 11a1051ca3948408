/* A GPT of characters: learns the bytes of a text file, then writes text like it.
 *
 *     fsdp run --standalone --nproc-per-node 2 build/examples/gpt README.md 1000 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <fsdp/fsdp.h>
#include <fsdp/generate.h>

enum { VOCABULARY = 256, CONTEXT = 64, WIDTH = 64, HEADS = 4, LAYERS = 3, BATCH = 32, SAMPLE = 300 };

typedef struct block {
    fsdp_module base;
    fsdp_module *norm1, *qkv, *out, *norm2, *up, *down;
} block;

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x) /* (B, T, WIDTH) */
{
    block *b = (block *)self;
    fsdp_tensor *qkv = fsdp_call(b->qkv, t, fsdp_call(b->norm1, t, x)); /* (B, T, 3 * WIDTH): queries, keys, values */
    fsdp_attention_config a = {.q = {qkv, 0}, .k = {qkv, WIDTH}, .v = {qkv, 2 * WIDTH}, .causal = true};
    a.q_heads = a.kv_heads = HEADS, a.head_dim = WIDTH / HEADS, a.scale = 1 / sqrtf(WIDTH / HEADS);
    x = fsdp_add(t, x, fsdp_call(b->out, t, fsdp_attention(t, &a)));
    fsdp_tensor *hidden = fsdp_gelu(t, fsdp_call(b->up, t, fsdp_call(b->norm2, t, x)));
    return fsdp_add(t, x, fsdp_call(b->down, t, hidden));
}

static fsdp_module *block_new(void)
{
    static const fsdp_module_class block_class = {.type = "block", .forward = block_forward};
    block *b = fsdp_module_new(&block_class, sizeof *b);
    if (!b)
        return NULL;
    b->norm1 = fsdp_module_add(b, "norm1", fsdp_layernorm_new(WIDTH, 1e-5f));
    b->qkv = fsdp_module_add(b, "qkv", fsdp_linear_new(WIDTH, 3 * WIDTH, true));
    b->out = fsdp_module_add(b, "out", fsdp_linear_new(WIDTH, WIDTH, true));
    b->norm2 = fsdp_module_add(b, "norm2", fsdp_layernorm_new(WIDTH, 1e-5f));
    b->up = fsdp_module_add(b, "up", fsdp_linear_new(WIDTH, 4 * WIDTH, true));
    b->down = fsdp_module_add(b, "down", fsdp_linear_new(4 * WIDTH, WIDTH, true));
    return &b->base;
}

typedef struct gpt {
    fsdp_module base;
    fsdp_parameter *tokens, *positions;
    fsdp_module *layers; /* the blocks, a norm and the head, one after another */
} gpt;

static fsdp_tensor *gpt_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *ids) /* (B, CONTEXT) */
{
    gpt *g = (gpt *)self;
    fsdp_tensor *x = fsdp_add(t, fsdp_embedding(t, ids, fsdp_use(t, g->tokens)), fsdp_use(t, g->positions));
    return fsdp_call(g->layers, t, x); /* (B, CONTEXT, VOCABULARY) */
}

static fsdp_module *gpt_new(void)
{
    static const fsdp_module_class gpt_class = {.type = "gpt", .forward = gpt_forward};
    gpt *g = fsdp_module_new(&gpt_class, sizeof *g);
    if (!g)
        return NULL;
    g->tokens = fsdp_module_parameter(g, "tokens", 2, (int64_t[]){VOCABULARY, WIDTH}, FSDP_INIT_NORMAL, 0.02f);
    g->positions = fsdp_module_parameter(g, "positions", 2, (int64_t[]){CONTEXT, WIDTH}, FSDP_INIT_NORMAL, 0.02f);
    g->layers = fsdp_module_add(g, "layers", fsdp_sequential_new());
    for (int i = 0; i < LAYERS; i++)
        fsdp_module_add(g->layers, (char[]){(char)('0' + i), 0}, block_new());
    fsdp_module_add(g->layers, "norm", fsdp_layernorm_new(WIDTH, 1e-5f));
    fsdp_module_add(g->layers, "head", fsdp_linear_new(WIDTH, VOCABULARY, false));
    return &g->base;
}

static fsdp_status train(fsdp_world *w, fsdp_model *m, fsdp_loader *loader, int64_t steps)
{
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_lr_config schedule = FSDP_LR_CONFIG_INIT;
    fsdp_optimizer *optimizer;
    adam.weight_decay = 0.01f, adam.clip = 1;
    schedule.decay = FSDP_DECAY_COSINE, schedule.lr = 3e-3, schedule.warmup = 10, schedule.total = steps;
    FSDP_TRY(fsdp_optimizer_new(m, &adam, &optimizer));
    for (int64_t step = 0; step < steps; step++) {
        fsdp_batch *b;
        fsdp_step_report report;
        FSDP_TRY(fsdp_loader_next(loader, &b));
        fsdp_tape *t = fsdp_begin(m);
        fsdp_tensor *logits = fsdp_call(fsdp_model_module(m), t, fsdp_batch_input(t, b, "ids"));
        fsdp_loss loss = fsdp_cross_entropy(t, logits, fsdp_batch_input(t, b, "labels"), FSDP_IGNORE);
        FSDP_TRY(fsdp_backward(t, loss, true));
        fsdp_optimizer_set_lr(optimizer, (float)fsdp_lr_at(&schedule, step));
        FSDP_TRY(fsdp_step(optimizer, &report));
        if (fsdp_world_rank(w) == 0 && (step % 50 == 0 || step + 1 == steps))
            printf("step %4lld  loss %.4f\n", (long long)step, report.loss);
    }
    fsdp_optimizer_free(optimizer);
    return FSDP_OK;
}

static void print_text(void *context, const char *text, size_t bytes) /* the library calls it on rank 0 alone */
{
    fwrite(text, 1, bytes, context);
}

static fsdp_status run(fsdp_world **w, const char *path, int64_t steps)
{
    fsdp_config sharding = FSDP_CONFIG_INIT;
    fsdp_model *model;
    sharding.wrap = fsdp_wrap_by_type("block");
    FSDP_TRY(fsdp_world_open(NULL, w)); /* one process alone, or all that `fsdp run` started */
    FSDP_TRY(fsdp_shard(*w, gpt_new(), &sharding, &model));

    fsdp_dataset_config text = FSDP_DATASET_CONFIG_INIT; /* windows of the text; labels are the bytes that follow */
    fsdp_loader_config batches = FSDP_LOADER_CONFIG_INIT;
    fsdp_tokenizer *bytes;
    fsdp_dataset *windows;
    fsdp_loader *loader;
    FSDP_TRY(fsdp_tokenizer_byte(&bytes)); /* a byte is a token */
    text.names = &path, text.n_names = 1, text.tokenizer = bytes, text.width = CONTEXT;
    FSDP_TRY(fsdp_dataset_open(&text, &windows));
    batches.batch = BATCH, batches.stop_at_epoch = false; /* BATCH of all ranks together: each gets its share */
    FSDP_TRY(fsdp_loader_new(*w, windows, &batches, &loader));
    fsdp_loader_attach(loader, model);
    FSDP_TRY(train(*w, model, loader, steps));

    fsdp_generate_config sample = FSDP_GENERATE_CONFIG_INIT; /* on every rank: each holds a part of the parameters */
    sample.prompt = "\n", sample.prompt_bytes = 1, sample.max_new_tokens = SAMPLE, sample.temperature = 0.7;
    sample.logits = fsdp_call, sample.window = CONTEXT, sample.text = print_text, sample.context = stdout;
    FSDP_TRY(fsdp_generate_with(model, bytes, &sample, NULL));

    fsdp_loader_free(loader);
    fsdp_dataset_free(windows);
    fsdp_tokenizer_free(bytes);
    fsdp_model_free(model);
    fsdp_world_close(*w);
    return FSDP_OK; /* after a failure the process ends: that frees the rest */
}

int main(int argc, char **argv)
{
    fsdp_world *world = NULL;
    if (argc != 3) {
        fprintf(stderr, "usage: gpt TEXT STEPS\n");
        return 2;
    }
    fsdp_status status = run(&world, argv[1], atoll(argv[2]));
    if (status != FSDP_OK) {
        fprintf(stderr, "gpt: %s\n", fsdp_last_error());
        fsdp_world_abort(world); /* the others need not wait */
    }
    return fsdp_exit_code(status);
}
