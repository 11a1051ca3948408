/* A GPT of characters: learns the bytes of a text file, then writes text like it.
 *
 *     fsdp run --standalone --nproc-per-node 2 build/examples/gpt README.md 1000 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/fsdp.h>

enum {
    VOCABULARY = 256,
    CONTEXT = 64,
    WIDTH = 64,
    HEADS = 4,
    LAYERS = 3,
    BATCH = 32,
    SAMPLE = 300,
    MAX_TEXT = 1 << 26
};

/* ---- The model ---- */

typedef struct block {
    fsdp_module base;
    fsdp_module *norm1, *qkv, *out, *norm2, *up, *down;
} block;

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x) /* (B, T, WIDTH) */
{
    block *b = (block *)self;
    fsdp_tensor *qkv = fsdp_call(b->qkv, t, fsdp_call(b->norm1, t, x)); /* (B, T, 3 * WIDTH): queries, keys, values */
    fsdp_attention_config attention = {.q = {qkv, 0},
                                       .k = {qkv, WIDTH},
                                       .v = {qkv, 2 * WIDTH},
                                       .q_heads = HEADS,
                                       .kv_heads = HEADS,
                                       .head_dim = WIDTH / HEADS,
                                       .scale = 1 / sqrtf(WIDTH / HEADS),
                                       .causal = true};
    x = fsdp_add(t, x, fsdp_call(b->out, t, fsdp_attention(t, &attention)));
    fsdp_tensor *hidden = fsdp_gelu(t, fsdp_call(b->up, t, fsdp_call(b->norm2, t, x)));
    return fsdp_add(t, x, fsdp_call(b->down, t, hidden));
}

static const fsdp_module_class block_class = {.type = "block", .forward = block_forward};

static fsdp_module *block_new(void)
{
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
    fsdp_module *tokens, *blocks, *norm, *head;
    fsdp_parameter *positions;
} gpt;

static fsdp_tensor *gpt_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *ids) /* (B, CONTEXT) */
{
    gpt *g = (gpt *)self;
    fsdp_tensor *x = fsdp_add(t, fsdp_call(g->tokens, t, ids), fsdp_use(t, g->positions));
    return fsdp_call(g->head, t, fsdp_call(g->norm, t, fsdp_call(g->blocks, t, x))); /* (B, CONTEXT, VOCABULARY) */
}

static const fsdp_module_class gpt_class = {.type = "gpt", .forward = gpt_forward};

static fsdp_module *gpt_new(void)
{
    gpt *g = fsdp_module_new(&gpt_class, sizeof *g);
    if (!g)
        return NULL;
    g->tokens = fsdp_module_add(g, "tokens", fsdp_embedding_new(VOCABULARY, WIDTH));
    fsdp_parameter_set_init(fsdp_module_weight(g->tokens), FSDP_INIT_NORMAL, 0.02f);
    g->positions = fsdp_module_parameter(g, "positions", 2, (int64_t[]){CONTEXT, WIDTH}, FSDP_INIT_NORMAL, 0.02f);
    g->blocks = fsdp_module_add(g, "blocks", fsdp_sequential_new());
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        fsdp_module_add(g->blocks, name, block_new());
    }
    g->norm = fsdp_module_add(g, "norm", fsdp_layernorm_new(WIDTH, 1e-5f));
    g->head = fsdp_module_add(g, "head", fsdp_linear_new(WIDTH, VOCABULARY, false));
    return &g->base;
}

/* ---- Learning ---- */

typedef struct job {
    fsdp_world *world;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    const unsigned char *text;
    size_t length;
} job;

static uint32_t random_at(uint32_t i) /* number i of a sequence that looks random */
{
    i = (i ^ i >> 16) * 0x7feb352du;
    i = (i ^ i >> 15) * 0x846ca68bu;
    return i ^ i >> 16;
}

/* Gradients of BATCH windows of the text, shared among the ranks. Which windows follows from the step alone: a run that
 * is resumed, on any number of ranks, goes on with the same ones. */
static fsdp_status learn(const job *j, int64_t step)
{
    int rank = fsdp_world_rank(j->world), size = fsdp_world_size(j->world);
    int first = BATCH * rank / size, rows = BATCH * (rank + 1) / size - first;
    int32_t ids[BATCH * CONTEXT], labels[BATCH * CONTEXT]; /* labels: the character that follows */
    for (int64_t i = 0; i < rows * CONTEXT; i++) {
        uint32_t window = random_at((uint32_t)(step * BATCH + first + i / CONTEXT)) % (j->length - CONTEXT);
        ids[i] = j->text[window + i % CONTEXT];
        labels[i] = j->text[window + i % CONTEXT + 1];
    }
    if (rows == 0)
        return fsdp_backward_nothing(j->model, true); /* more ranks than windows */
    fsdp_tape *t = fsdp_begin(j->model);
    fsdp_tensor *in = fsdp_input(t, FSDP_I32, 2, (int64_t[]){rows, CONTEXT}, ids);
    fsdp_tensor *next = fsdp_input(t, FSDP_I32, 2, (int64_t[]){rows, CONTEXT}, labels);
    fsdp_tensor *logits = fsdp_call(fsdp_model_module(j->model), t, in);
    return fsdp_backward(t, fsdp_cross_entropy(t, logits, next, FSDP_IGNORE), true);
}

static fsdp_status train(const job *j, int64_t steps)
{
    fsdp_lr_config schedule = FSDP_LR_CONFIG_INIT;
    schedule.decay = FSDP_DECAY_COSINE;
    schedule.lr = 3e-3;
    schedule.warmup = 10;
    schedule.total = steps;
    for (int64_t step = 0; step < steps; step++) {
        fsdp_step_report report;
        FSDP_TRY(learn(j, step));
        fsdp_optimizer_set_lr(j->optimizer, (float)fsdp_lr_at(&schedule, step));
        FSDP_TRY(fsdp_step(j->optimizer, &report));
        if (fsdp_world_rank(j->world) == 0 && (step % 50 == 0 || step + 1 == steps))
            printf("step %4lld  loss %.4f\n", (long long)step, report.loss);
    }
    return FSDP_OK;
}

/* ---- Writing ---- */

/* Draws from the model's distribution, a little sharpened. */
static unsigned char pick(const float *logits, uint32_t random)
{
    double p[VOCABULARY], sum = 0;
    for (int i = 0; i < VOCABULARY; i++)
        sum += p[i] = exp(logits[i] / 0.7);
    double left = sum * random / 4294967296.0;
    int i = 0;
    while (i < VOCABULARY - 1 && (left -= p[i]) >= 0)
        i++;
    return (unsigned char)i;
}

/* Every rank computes, since every rank holds a part of the parameters; rank 0 picks each character and tells it. */
static fsdp_status write_sample(const job *j)
{
    static float logits[CONTEXT * VOCABULARY];
    int32_t window[CONTEXT] = {'\n'}; /* attention is causal: what comes after the last character has no effect */
    for (int i = 0, last = 0; i < SAMPLE; i++) {
        fsdp_tape *t = fsdp_begin_evaluation(j->model);
        fsdp_tensor *in = fsdp_input(t, FSDP_I32, 2, (int64_t[]){1, CONTEXT}, window);
        fsdp_tensor *out = fsdp_output(t, fsdp_call(fsdp_model_module(j->model), t, in));
        FSDP_TRY(fsdp_evaluate(t));
        FSDP_TRY(fsdp_read(out, logits, CONTEXT * VOCABULARY));
        unsigned char next = pick(logits + last * VOCABULARY, random_at((uint32_t)i));
        FSDP_TRY(fsdp_world_broadcast(j->world, NULL, 0, &next, 1));
        if (fsdp_world_rank(j->world) == 0)
            putchar(i + 1 < SAMPLE ? next : '\n');
        if (++last == CONTEXT)
            memmove(window, window + 1, --last * sizeof *window);
        window[last] = next;
    }
    return FSDP_OK;
}

/* ---- The program ---- */

static fsdp_status run(job *j, int64_t steps)
{
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    config.wrap = fsdp_wrap_by_type("block");
    adam.weight_decay = 0.01f;
    adam.clip = 1;
    FSDP_TRY(fsdp_world_open(NULL, &j->world));
    fsdp_module *net = gpt_new();
    fsdp_status status = fsdp_module_check(net);
    if (status == FSDP_OK)
        status = fsdp_shard(j->world, net, &config, &j->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net); /* the model takes it only when it comes into being */
        return status;
    }
    FSDP_TRY(fsdp_optimizer_new(j->model, &adam, &j->optimizer));
    FSDP_TRY(train(j, steps));
    return write_sample(j);
}

int main(int argc, char **argv)
{
    static unsigned char text[MAX_TEXT]; /* longer files are cut */
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL;
    job j = {.text = text, .length = in ? fread(text, 1, sizeof text, in) : 0};
    if (in)
        fclose(in);
    if (j.length <= CONTEXT) {
        fprintf(stderr, "usage: gpt TEXT STEPS, with a text of more than %d characters\n", CONTEXT);
        return 2;
    }
    fsdp_status status = run(&j, atoll(argv[2]));
    if (status != FSDP_OK) {
        fprintf(stderr, "gpt: %s\n", fsdp_last_error());
        if (j.world)
            fsdp_world_abort(j.world); /* the others need not wait */
    }
    fsdp_optimizer_free(j.optimizer);
    fsdp_model_free(j.model);
    fsdp_world_close(j.world);
    return fsdp_exit_code(status);
}
