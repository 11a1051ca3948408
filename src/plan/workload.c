/* Recording a step from shapes alone. */
#include "plan/workload.h"

#include "base/checked.h"

static fsdp_tensor *ints(fsdp_tape *t, int64_t rows, int64_t columns)
{
    int64_t shape[] = {rows, columns};
    return fsdp_input(t, FSDP_I32, 2, shape, NULL);
}

typedef struct recording {
    const workload *w;
    fsdp_dtype dtype;
} recording;

static fsdp_loss record(void *context, fsdp_module *net, fsdp_tape *t)
{
    const recording *r = context;
    const workload *w = r->w;
    if (w->model.type == MODEL_LLAMA)
        return fsdp_llama_loss(net, t, ints(t, w->batch, w->width), ints(t, w->batch, w->width));
    if (w->model.type == MODEL_T5)
        return fsdp_t5_loss(net, t, ints(t, w->batch, w->width), ints(t, w->batch, w->width),
                            ints(t, w->batch, w->target), ints(t, w->batch, w->target));
    const fsdp_cnn_config *c = &w->model.cnn;
    int64_t image[] = {w->batch, c->channels, c->height, c->width}, flat[] = {w->batch, w->model.mlp.inputs};
    bool mlp = w->model.type == MODEL_MLP;
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, mlp ? 2 : 4, mlp ? flat : image, NULL);
    return fsdp_classifier_loss(net, t, fsdp_cast(t, x, r->dtype), fsdp_input(t, FSDP_I32, 1, &w->batch, NULL));
}

fsdp_status workload_plan(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                          memory_plan *out)
{
    recording r = {w, config->param_dtype};
    memory_plan_request request = {.dev = dev,
                                   .n_ranks = n_ranks,
                                   .ranks_per_node = ranks_per_node,
                                   .shard_rank = MEMORY_PLAN_LARGEST,
                                   .backend = w->backend,
                                   .moments = w->moments,
                                   .record = record,
                                   .context = &r};
    fsdp_module *net;
    FSDP_TRY(model_create(&w->model, &net));
    return memory_plan_make(net, config, &request, out);
}

static double llama_flops(const fsdp_llama_config *c, double tokens, double width)
{
    double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim), h = (double)c->hidden;
    double layer = h * (q + 2 * kv) + q * h + 3 * h * (double)c->intermediate;
    double parameters = (double)c->layers * layer + h * (double)c->vocabulary;
    return (6 * parameters + 6 * (double)c->layers * width * q) * tokens;
}

static double t5_flops(const fsdp_t5_config *c, double source, double target)
{
    double inner = (double)(c->heads * c->head_dim), h = (double)c->hidden;
    double attention = 4 * h * inner, feed_forward = (c->gated ? 3 : 2) * h * (double)c->intermediate;
    double encoder = (double)c->layers * (attention + feed_forward) * source;
    double decoder = (double)c->decoder_layers * ((1.5 * attention + feed_forward) * target + 0.5 * attention * source);
    return 6 * (encoder + decoder + h * (double)c->vocabulary * target);
}

double workload_flops(const workload *w)
{
    double samples = (double)w->batch;
    if (w->model.type == MODEL_LLAMA)
        return llama_flops(&w->model.llama, samples * (double)w->width, (double)w->width);
    if (w->model.type == MODEL_T5)
        return t5_flops(&w->model.t5, samples * (double)w->width, samples * (double)w->target);
    return 0;
}
