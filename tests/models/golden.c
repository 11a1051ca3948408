/* One folder of golden data: the model is built from its files, and logits, loss, every gradient and (where there is a
 * curve) training itself are compared with what PyTorch gave. All shapes come from the files.
 *     models_test_golden FOLDER [DEVICE [fp32]]     exit 0: everything within tolerance; 1: not; 2: the folder is refused
 * Logits, loss and gradients are compared in fp32, in bf16, and, of decoders, in bf16 with products in 8 bits; with
 * "fp32", in fp32 alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/lora.h>
#include <fsdp/optim.h>

#include "base/error.h"
#include "base/file.h"
#include "format/weights/safetensors.h"
#include "models/config.h"
#include "shard/model.h"
#include "state/weights.h"

typedef struct golden {
    char folder[1024];
    model_config config;
    bool has_config;
    safetensors *io; /* NULL: a curve only */
    int failures;
} golden;

static void check(golden *g, bool good, const char *what, double got, double allowed)
{
    if (good)
        return;
    g->failures++;
    fprintf(stderr, "FAILED %s: %.3g where %.3g is allowed\n", what, got, allowed);
}

static void must(fsdp_status status)
{
    if (status == FSDP_OK)
        return;
    fprintf(stderr, "FAILED: %s\n", fsdp_last_error());
    exit(fsdp_exit_code(status));
}

static const char *path_of(const golden *g, const char *name, char *out)
{
    snprintf(out, 1200, "%s/%s", g->folder, name);
    return out;
}

static bool exists(const golden *g, const char *name)
{
    char path[1200];
    return file_exists(path_of(g, name, path));
}

static float *read_floats(safetensors *file, const char *name, int64_t *n)
{
    const safetensors_tensor *t;
    must(safetensors_get(file, name, &t));
    float *values = malloc((size_t)t->numel * sizeof *values + 1);
    must(safetensors_read_f32(t, 0, t->numel, values));
    *n = t->numel;
    return values;
}

static int32_t *read_ints(safetensors *file, const char *name, const safetensors_tensor **tensor)
{
    const safetensors_tensor *t;
    must(safetensors_get(file, name, &t));
    int64_t *wide = malloc((size_t)t->numel * sizeof *wide + 1);
    int32_t *values = malloc((size_t)t->numel * sizeof *values + 1);
    must(safetensors_read_i64(t, 0, t->numel, wide));
    for (int64_t i = 0; i < t->numel; i++)
        values[i] = (int32_t)wide[i];
    free(wide);
    *tensor = t;
    return values;
}

/* The CNN has no config.json: its sizes are those of its weights. */
static void cnn_config_from_weights(golden *g)
{
    char path[1200];
    safetensors *weights;
    const safetensors_tensor *first, *second, *branch, *hidden, *classes, *x;
    must(safetensors_open(path_of(g, "model.safetensors", path), &weights));
    must(safetensors_get(weights, "cnn_stack1.0.weight", &first));
    must(safetensors_get(weights, "cnn_stack1.4.weight", &second));
    must(safetensors_get(weights, "cnn_stack2.0.weight", &branch));
    must(safetensors_get(weights, "linear_stack1.1.weight", &hidden));
    must(safetensors_get(weights, "linear_stack1.3.weight", &classes));
    must(safetensors_get(g->io, "x", &x));
    g->config = model_config_default(MODEL_CNN);
    fsdp_cnn_config *c = &g->config.cnn;
    c->channels = first->shape[1];
    c->first = first->shape[0];
    c->second = second->shape[0];
    c->branch = branch->shape[0];
    c->hidden = hidden->shape[0];
    c->classes = classes->shape[0];
    c->height = x->shape[2];
    c->width = x->shape[3];
    safetensors_close(weights);
}

/* What goes into the model, and what loss that makes. */
typedef struct batch {
    int32_t *ids, *mask, *labels, *decoder_ids;
    int32_t *documents, *positions; /* of packed rows */
    float *images;
    int64_t shape[4], label_shape[2];
    int image_dims;
} batch;

static batch read_batch(golden *g)
{
    batch b = {.ids = NULL};
    const safetensors_tensor *t;
    int64_t n;
    if (g->config.type == MODEL_CNN) {
        must(safetensors_get(g->io, "x", &t));
        memcpy(b.shape, t->shape, sizeof b.shape);
        b.image_dims = t->n_dims;
        b.images = read_floats(g->io, "x", &n);
        b.labels = read_ints(g->io, "target", &t);
        return b;
    }
    b.ids = read_ints(g->io, "input_ids", &t);
    memcpy(b.shape, t->shape, 2 * sizeof b.shape[0]);
    memcpy(b.label_shape, t->shape, sizeof b.label_shape);
    if (g->config.type == MODEL_DECODER) { /* labels are one on: the inputs, or those of packed rows */
        bool packed = safetensors_find(g->io, "document_ids") != NULL;
        int32_t *given = packed ? read_ints(g->io, "labels", &t) : b.ids;
        b.labels = malloc((size_t)t->numel * sizeof *b.labels);
        for (int64_t i = 0; i < t->numel; i++)
            b.labels[i] = (i + 1) % t->shape[1] == 0 ? FSDP_IGNORE : given[i + 1];
        if (packed) {
            free(given);
            b.documents = read_ints(g->io, "document_ids", &t);
            b.positions = read_ints(g->io, "position_ids", &t);
        }
        return b;
    }
    b.mask = read_ints(g->io, "attention_mask", &t);
    b.labels = read_ints(g->io, "labels", &t);
    memcpy(b.label_shape, t->shape, sizeof b.label_shape);
    b.decoder_ids = malloc((size_t)t->numel * sizeof *b.decoder_ids);
    for (int64_t i = 0; i < t->numel; i++) { /* shifted right */
        int32_t before = i % t->shape[1] == 0 ? g->config.t5.decoder_start_id : b.labels[i - 1];
        b.decoder_ids[i] = before == FSDP_IGNORE ? g->config.t5.pad_id : before;
    }
    return b;
}

static void free_batch(batch *b)
{
    free(b->ids);
    free(b->mask);
    free(b->labels);
    free(b->decoder_ids);
    free(b->documents);
    free(b->positions);
    free(b->images);
}

static fsdp_tensor *record_logits(fsdp_model *m, fsdp_tape *t, const golden *g, const batch *b)
{
    fsdp_module *net = fsdp_model_module(m);
    if (g->config.type == MODEL_CNN)
        return fsdp_call(
            net, t, fsdp_cast(t, fsdp_input(t, FSDP_F32, b->image_dims, b->shape, b->images), m->config.param_dtype));
    fsdp_tensor *ids = fsdp_input(t, FSDP_I32, 2, b->shape, b->ids);
    if (b->documents)
        return fsdp_decoder_logits_packed(net, t, ids, fsdp_input(t, FSDP_I32, 2, b->shape, b->documents),
                                          fsdp_input(t, FSDP_I32, 2, b->shape, b->positions));
    if (g->config.type == MODEL_DECODER)
        return fsdp_decoder_logits(net, t, ids);
    return fsdp_t5_logits(net, t, ids, fsdp_input(t, FSDP_I32, 2, b->shape, b->mask),
                          fsdp_input(t, FSDP_I32, 2, b->label_shape, b->decoder_ids));
}

static fsdp_loss record_loss(fsdp_model *m, fsdp_tape *t, const golden *g, const batch *b)
{
    fsdp_module *net = fsdp_model_module(m);
    if (g->config.type == MODEL_CNN)
        return fsdp_cross_entropy(t, record_logits(m, t, g, b), fsdp_input(t, FSDP_I32, 1, b->shape, b->labels),
                                  FSDP_IGNORE);
    fsdp_tensor *ids = fsdp_input(t, FSDP_I32, 2, b->shape, b->ids),
                *labels = fsdp_input(t, FSDP_I32, 2, b->label_shape, b->labels);
    if (b->documents)
        return fsdp_decoder_loss_packed(net, t, ids, labels, fsdp_input(t, FSDP_I32, 2, b->shape, b->documents),
                                        fsdp_input(t, FSDP_I32, 2, b->shape, b->positions));
    if (g->config.type == MODEL_DECODER)
        return fsdp_decoder_loss(net, t, ids, labels);
    return fsdp_t5_loss(net, t, ids, fsdp_input(t, FSDP_I32, 2, b->shape, b->mask),
                        fsdp_input(t, FSDP_I32, 2, b->label_shape, b->decoder_ids), labels);
}

/* One file or several with their index. */
static const char *weights_of(const golden *g, char *out)
{
    return exists(g, "model.safetensors") ? path_of(g, "model.safetensors", out) : g->folder;
}

/* Positions as far as the reference's texts reach: what dynamic scaling goes by. */
static void limit_positions(golden *g)
{
    const safetensors_tensor *ids = safetensors_find(g->io, "input_ids");
    if (g->config.type == MODEL_DECODER && ids && !exists(g, "curve.json"))
        decoder_limit_positions(&g->config.decoder, ids->shape[1]);
}

static fsdp_model *open_model(fsdp_world *w, golden *g, fsdp_dtype dtype, fsdp_fp8 fp8, bool decay_vectors)
{
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_module *net;
    fsdp_model *m;
    const char *block = model_block_type(&g->config);
    if (block)
        c.wrap = fsdp_wrap_by_type(block);
    c.param_dtype = dtype;
    c.fp8 = fp8;
    c.decay_vectors = decay_vectors;
    must(model_create(&g->config, &net));
    must(fsdp_shard(w, net, &c, &m));
    char path[1200];
    must(fsdp_weights_load(m, weights_of(g, path), NULL, NULL));
    if (exists(g, "adapter"))
        must(fsdp_adapter_load(m, path_of(g, "adapter", path)));
    return m;
}

typedef struct tolerance {
    double loss, logits; /* relative */
    double together;     /* of all gradients; 0: each tensor by the fp32 rule */
} tolerance;

/* In bf16, three per cent, where the model is conditioned for it. T5 at its initial weights is not: PyTorch's own bf16
 * run of the same files is off by 4 % in the logits and by 8 to 12 % in the gradients. In 8 bits a layer's output is
 * off by 3 % and its gradients by 5 %, and layers add up: at their initial weights the decoders here are off by 8 to 10 %
 * in the logits and by 11 to 18 % in the gradients, T5 by too much for a bound to mean anything. */
static tolerance tolerance_of(model_type type, fsdp_dtype dtype, fsdp_fp8 fp8)
{
    if (dtype == FSDP_F32)
        return (tolerance){1e-5, 1e-4, 0};
    if (fp8 != FSDP_FP8_OFF)
        return (tolerance){1e-2, 0.2, 0.3};
    return type == MODEL_T5 ? (tolerance){3e-2, 5e-2, 0.15} : (tolerance){3e-2, 3e-2, 3e-2};
}

static double norm_of(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

static double distance(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sqrt(sum);
}

static void check_logits(golden *g, fsdp_model *m, const batch *b, double allowed)
{
    int64_t n;
    float *wanted = read_floats(g->io, "logits", &n), *got = malloc((size_t)n * sizeof *got);
    fsdp_tape *t = g->config.type == MODEL_CNN ? fsdp_begin(m) : fsdp_begin_evaluation(m);
    fsdp_tensor *logits = fsdp_output(t, record_logits(m, t, g, b));
    must(fsdp_evaluate(t));
    must(fsdp_read(logits, got, n));
    double error = distance(got, wanted, n) / norm_of(wanted, n);
    check(g, error <= allowed, "logits", error, allowed);
    printf("%s: logits within %.2g\n", g->folder, error);
    free(wanted);
    free(got);
}

/* The reference's norm over all gradients together sets the scale of what rounding may do to those that should be zero.
 */
static double norm_of_all_gradients(golden *g)
{
    double sum = 0;
    for (size_t i = 0; i < safetensors_count(g->io); i++) {
        const safetensors_tensor *t = safetensors_at(g->io, i);
        if (strncmp(t->name, "grad.", 5) != 0)
            continue;
        int64_t n;
        float *values = read_floats(g->io, t->name, &n);
        sum += norm_of(values, n) * norm_of(values, n);
        free(values);
    }
    return sqrt(sum);
}

enum { NAME = 600 };

/* peft's models have names of their own, with that of the adapter, "default", inside. */
static void gradient_name(const fsdp_parameter *p, char out[NAME])
{
    const char *end = strrchr(p->name, '.');
    if (p->adapter)
        snprintf(out, NAME, "grad.base_model.model.%.*s.default%s", (int)(end - p->name), p->name, end);
    else
        snprintf(out, NAME, "grad.%s", p->name);
}

/* fp32: tensor by tensor, as the data's README states. bf16: all gradients together. */
static void check_gradients(golden *g, fsdp_model *m, double count, const tolerance *limit)
{
    double all = norm_of_all_gradients(g), worst = 0, sum = 0;
    int compared = 0;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        char name[NAME];
        int64_t n;
        if (!p->trainable)
            continue;
        gradient_name(p, name);
        float *wanted = read_floats(g->io, name, &n), *got = malloc((size_t)n * sizeof *got);
        if (n != p->numel) {
            fprintf(stderr, "FAILED %s: %lld elements instead of %lld\n", name, (long long)n, (long long)p->numel);
            exit(1);
        }
        must(model_fetch(m, got, p->grad, (size_t)n * sizeof *got));
        for (int64_t k = 0; k < n; k++)
            got[k] = (float)(got[k] * m->expected_count / (m->loss_scale * count));
        double error = distance(got, wanted, n), allowed = 1e-4 * norm_of(wanted, n) + 1e-6 * all;
        if (limit->together == 0)
            check(g, error <= allowed, name, error, allowed);
        worst = fmax(worst, error / fmax(allowed, 1e-30));
        sum += error * error;
        compared++;
        free(wanted);
        free(got);
    }
    double together = sqrt(sum) / all;
    if (limit->together > 0)
        check(g, together <= limit->together, "all gradients together", together, limit->together);
    printf("  %d gradients, together within %.2g, the worst at %.2g of its fp32 tolerance\n", compared, together,
           worst);
}

static void check_io(golden *g, fsdp_world *w, fsdp_dtype dtype, fsdp_fp8 fp8)
{
    tolerance limit = tolerance_of(g->config.type, dtype, fp8);
    batch b = read_batch(g);
    fsdp_model *m = open_model(w, g, dtype, fp8, false);
    const char *name = fp8 == FSDP_FP8_OFF ? fsdp_dtype_name(dtype) : "bf16 and fp8";
    if (g->config.type != MODEL_CNN) /* batch norm in training mode: its logits are checked through the loss */
        check_logits(g, m, &b, limit.logits);
    fsdp_tape *t = fsdp_begin(m);
    fsdp_loss loss = record_loss(m, t, g, &b);
    fsdp_status status = fsdp_backward(t, loss, true);
    if (fp8 != FSDP_FP8_OFF && status == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "no linear layer here has")) {
        printf("%s %s: no layer has such products\n", g->folder, name);
        fsdp_model_free(m);
        free_batch(&b);
        return;
    }
    must(status);
    float sum, count;
    must(fsdp_read(loss.sum, &sum, 1));
    must(fsdp_read(loss.count, &count, 1));
    if (safetensors_find(g->io, "loss")) {
        int64_t n;
        float *wanted = read_floats(g->io, "loss", &n);
        double error = fabs((double)sum / count - wanted[0]) / fmax(1, fabs(wanted[0]));
        check(g, error <= limit.loss, "loss", error, limit.loss);
        free(wanted);
    }
    printf("%s %s: loss %.7f over %g\n", g->folder, name, (double)sum / count, (double)count);
    check_gradients(g, m, count, &limit);
    fsdp_model_free(m);
    free_batch(&b);
}

/* Training curves. */

static double number(const json_t *o, const char *key, double otherwise)
{
    const json_t *value = json_object_get(o, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

typedef struct curve {
    json_t *json, *log;
    fsdp_lr_config lr;
    fsdp_optimizer_config optimizer;
    int64_t steps;
} curve;

static curve read_curve(golden *g)
{
    char path[1200];
    curve c = {.lr = FSDP_LR_CONFIG_INIT, .optimizer = FSDP_OPTIMIZER_CONFIG_INIT};
    must(json_read_file(path_of(g, "curve.json", path), &c.json));
    c.log = json_object_get(c.json, "log");
    c.steps = (int64_t)json_array_size(c.log);
    if (g->config.type == MODEL_CNN) { /* its file tells the recipe in words */
        c.optimizer.kind = FSDP_ADAM;
        c.optimizer.weight_decay = (float)number(c.json, "weight_decay", 1e-4);
        c.optimizer.clip = (float)number(c.json, "clip", 0.1);
        c.lr.lr = number(c.json, "lr", 0.01);
        c.lr.decay = FSDP_DECAY_STEP;
        c.lr.step_size = (int64_t)number(c.json, "step_size", 4);
        c.lr.gamma = number(c.json, "gamma", 0.5);
        return c;
    }
    const json_t *betas = json_object_get(c.json, "betas");
    c.optimizer.beta1 = (float)json_number_value(json_array_get(betas, 0));
    c.optimizer.beta2 = (float)json_number_value(json_array_get(betas, 1));
    c.optimizer.eps = (float)number(c.json, "eps", 1e-8);
    c.optimizer.weight_decay = (float)number(c.json, "weight_decay", 0);
    c.optimizer.clip = (float)number(c.json, "clip", 0);
    c.lr.decay = FSDP_DECAY_COSINE;
    c.lr.lr = number(c.json, "lr", 0);
    c.lr.min_lr = 0.1 * c.lr.lr;
    c.lr.warmup = (int64_t)number(c.json, "warmup_steps", 0);
    c.lr.total = (int64_t)number(c.json, "steps", (double)c.steps);
    return c;
}

static void check_final(golden *g, fsdp_model *m)
{
    char path[1200];
    safetensors *final;
    double worst = 0;
    must(safetensors_open(path_of(g, "final.safetensors", path), &final));
    for (size_t i = 0; i < safetensors_count(final); i++) {
        const char *stored = safetensors_at(final, i)->name,
                   *name = stored + (strncmp(stored, "final.", 6) == 0 ? 6 : 0);
        int64_t n;
        float *wanted = read_floats(final, stored, &n), *got = malloc((size_t)n * sizeof *got);
        fsdp_buffer *b = module_find_buffer(&m->contents, name);
        if (b)
            must(model_fetch(m, got, b->data, (size_t)n * sizeof *got));
        else
            must(fsdp_parameter_read(m, name, 0, n, got));
        double error = distance(got, wanted, n) / fmax(norm_of(wanted, n), 1e-6);
        check(g, error <= 1e-3, name, error, 1e-3);
        worst = fmax(worst, error);
        free(wanted);
        free(got);
    }
    printf("  final weights: worst relative distance %.2g\n", worst);
    safetensors_close(final);
}

static void check_curve(golden *g, fsdp_world *w)
{
    char path[1200];
    curve c = read_curve(g);
    safetensors *data = NULL;
    batch b = {.ids = NULL};
    int32_t *all = NULL;
    const safetensors_tensor *t = NULL;
    fsdp_model *m = open_model(w, g, FSDP_F32, FSDP_FP8_OFF, g->config.type == MODEL_CNN);
    fsdp_optimizer *o;
    must(fsdp_optimizer_new(m, &c.optimizer, &o));
    if (g->config.type == MODEL_CNN) {
        b = read_batch(g);
    } else {
        must(safetensors_open(path_of(g, "data.safetensors", path), &data));
        all = read_ints(data, "data", &t);
        memcpy(b.shape, t->shape + 1, 2 * sizeof b.shape[0]);
        memcpy(b.label_shape, b.shape, sizeof b.label_shape);
        b.labels = malloc((size_t)(b.shape[0] * b.shape[1]) * sizeof *b.labels);
    }
    double worst = 0;
    for (int64_t step = 0; step < c.steps; step++) {
        const json_t *entry = json_array_get(c.log, (size_t)step);
        fsdp_step_report report;
        if (all) {
            int64_t n = b.shape[0] * b.shape[1];
            b.ids = all + step * n;
            for (int64_t i = 0; i < n; i++)
                b.labels[i] = (i + 1) % b.shape[1] == 0 ? FSDP_IGNORE : b.ids[i + 1];
        }
        fsdp_tape *tape = fsdp_begin(m);
        must(fsdp_backward(tape, record_loss(m, tape, g, &b), true));
        fsdp_optimizer_set_lr(o, (float)fsdp_lr_at(&c.lr, step));
        must(fsdp_step(o, &report));
        double error = fabs(report.loss - number(entry, "loss", 0)), norm = number(entry, "grad_norm", 0);
        worst = fmax(worst, error);
        check(g, error <= 1e-4, "loss of a step", error, 1e-4);
        check(g, fabs(report.gradient_norm - norm) <= 1e-3 * norm, "gradient norm of a step",
              fabs(report.gradient_norm - norm), 1e-3 * norm);
    }
    printf("%s: %lld steps, loss within %.2g\n", g->folder, (long long)c.steps, worst);
    check_final(g, m);
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    json_decref(c.json);
    safetensors_close(data);
    if (all)
        b.ids = all;
    free_batch(&b);
}

int main(int argc, char **argv)
{
    golden g = {.failures = 0};
    char path[1200];
    fsdp_world *w;
    if (argc < 2 || argc > 4 || (argc == 4 && strcmp(argv[3], "fp32") != 0)) {
        fprintf(stderr, "usage: %s FOLDER [DEVICE [fp32]]\n", argv[0]);
        return 2;
    }
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    config.device = argc > 2 ? argv[2] : "cpu";
    snprintf(g.folder, sizeof g.folder, "%s", argv[1]);
    must(fsdp_world_open(&config, &w));
    if (exists(&g, "io.safetensors"))
        must(safetensors_open(path_of(&g, "io.safetensors", path), &g.io));
    if (exists(&g, "config.json")) {
        must(model_config_read(g.folder, &g.config));
        must(weights_settle_head(weights_of(&g, path), &g.config));
        g.config.t5.dropout = g.config.decoder.embedding_dropout = g.config.decoder.residual_dropout =
            g.config.decoder.attention_dropout = 0; /* references are computed without */
    } else {
        cnn_config_from_weights(&g);
    }
    if (exists(&g, "adapter")) {
        must(fsdp_adapter_config(path_of(&g, "adapter", path), &g.config.lora));
        g.config.lora.dropout = 0;
    }
    if (g.io) {
        limit_positions(&g);
        check_io(&g, w, FSDP_F32, FSDP_FP8_OFF);
        if (argc < 4)
            check_io(&g, w, FSDP_BF16, FSDP_FP8_OFF);
        if (argc < 4 && g.config.type == MODEL_DECODER)
            check_io(&g, w, FSDP_BF16, FSDP_FP8_HYBRID);
    }
    if (exists(&g, "curve.json"))
        check_curve(&g, w);
    safetensors_close(g.io);
    fsdp_world_close(w);
    printf("%s: %d failures\n", g.folder, g.failures);
    return g.failures ? 1 : 0;
}
