/* Recording a step from shapes alone. */
#include "plan/workload.h"

#include "base/checked.h"
#include "models/family.h"

static fsdp_tensor *ints(fsdp_tape *t, int64_t rows, int64_t columns)
{
    int64_t shape[] = {rows, columns};
    return fsdp_input(t, FSDP_I32, 2, shape, NULL);
}

typedef struct recording {
    const workload *w;
    fsdp_dtype dtype;
} recording;

typedef struct batch_shape {
    int64_t rows, width, target;
    bool documents;
} batch_shape;

static fsdp_tensor *images(const recording *r, fsdp_tape *t, int64_t rows)
{
    const model_config *model = &r->w->model;
    int64_t image[] = {rows, model->cnn.channels, model->cnn.height, model->cnn.width},
            flat[] = {rows, model->mlp.inputs};
    bool mlp = model->type == MODEL_MLP;
    return fsdp_cast(t, fsdp_input(t, FSDP_F32, mlp ? 2 : 4, mlp ? flat : image, NULL), r->dtype);
}

static fsdp_loss record_text(const recording *r, fsdp_module *net, fsdp_tape *t, batch_shape b)
{
    fsdp_tensor *ids = ints(t, b.rows, b.width);
    if (b.documents)
        return fsdp_decoder_loss_packed(net, t, ids, ints(t, b.rows, b.width), ints(t, b.rows, b.width),
                                        ints(t, b.rows, b.width));
    if (r->w->model.type == MODEL_DECODER)
        return fsdp_decoder_loss(net, t, ids, ints(t, b.rows, b.width));
    return fsdp_t5_loss(net, t, ids, ints(t, b.rows, b.width), ints(t, b.rows, b.target), ints(t, b.rows, b.target));
}

static bool reads_text(const workload *w)
{
    return w->model.type == MODEL_DECODER || w->model.type == MODEL_T5;
}

static fsdp_loss record(void *context, fsdp_module *net, fsdp_tape *t)
{
    const recording *r = context;
    const workload *w = r->w;
    if (reads_text(w))
        return record_text(r, net, t, (batch_shape){w->batch, w->width, w->target, w->documents});
    return fsdp_classifier_loss(net, t, images(r, t, w->batch), fsdp_input(t, FSDP_I32, 1, &w->batch, NULL));
}

/* As validation records it: of images it also counts those that are recognised. */
static fsdp_loss evaluate(void *context, fsdp_module *net, fsdp_tape *t)
{
    const recording *r = context;
    const workload *w = r->w;
    if (reads_text(w))
        return record_text(
            r, net, t,
            (batch_shape){w->validation_batch, w->validation_width, w->validation_target, w->validation_documents});
    fsdp_loss loss = fsdp_classifier_loss(net, t, images(r, t, w->validation_batch),
                                          fsdp_input(t, FSDP_I32, 1, &w->validation_batch, NULL));
    fsdp_loss_right(t, loss);
    return loss;
}

/* What a plan may tell besides its sizes. */
typedef struct plan_wish {
    int rank;
    plan_picture *picture;
    plan_script *script;
} plan_wish;

static fsdp_status make_plan(const workload *w, const fsdp_config *config, const plan_world *world,
                             const plan_wish *wish, memory_plan *out)
{
    recording r = {w, config->param_dtype};
    memory_plan_request request = {.dev = world->dev,
                                   .n_ranks = world->n_ranks,
                                   .ranks_per_node = world->ranks_per_node,
                                   .rank = wish->rank,
                                   .backend = w->backend,
                                   .comm_memory = w->comm_memory,
                                   .accumulation = w->reduce_accumulation,
                                   .moments = w->moments,
                                   .optimizer = w->optimizer,
                                   .half_moments = w->half_moments,
                                   .record = record,
                                   .evaluate = w->validation_batch > 0 ? evaluate : NULL,
                                   .context = &r,
                                   .snapshot = w->snapshot,
                                   .snapshot_of_all = w->snapshot_of_all,
                                   .hot = w->hot,
                                   .picture = wish->picture,
                                   .script = wish->script,
                                   .micro_batches = w->micro_batches};
    fsdp_module *net;
    FSDP_TRY(model_create(&w->model, &net));
    return memory_plan_make(net, config, &request, out);
}

fsdp_status workload_plan_rank(const workload *w, const fsdp_config *config, const plan_world *world, int rank,
                               memory_plan *out)
{
    return make_plan(w, config, world, &(plan_wish){.rank = rank}, out);
}

fsdp_status workload_plan(const workload *w, const fsdp_config *config, const plan_world *world, memory_plan *out)
{
    return make_plan(w, config, world, &(plan_wish){.rank = MEMORY_PLAN_LARGEST}, out);
}

fsdp_status workload_picture(const workload *w, const fsdp_config *config, const plan_world *world, memory_plan *out,
                             plan_picture *picture)
{
    *picture = (plan_picture){.length = 0};
    plan_wish wish = {.rank = MEMORY_PLAN_LARGEST, .picture = picture};
    fsdp_status status = make_plan(w, config, world, &wish, out);
    if (status != FSDP_OK)
        plan_picture_clear(picture);
    return status;
}

fsdp_status workload_script(const workload *w, const fsdp_config *config, const plan_world *world, memory_plan *out,
                            plan_script *script)
{
    *script = (plan_script){.n_items = 0};
    plan_wish wish = {.rank = MEMORY_PLAN_LARGEST, .script = script};
    fsdp_status status = make_plan(w, config, world, &wish, out);
    if (status != FSDP_OK)
        plan_script_clear(script);
    return status;
}

static double decoder_flops(const fsdp_decoder_config *c, double tokens, double width)
{
    double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim), h = (double)c->hidden;
    double layer = h * (q + 2 * kv) + q * h + (family_of(c->family)->ungated ? 2 : 3) * h * (double)c->intermediate;
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
    if (w->model.type == MODEL_DECODER)
        return decoder_flops(&w->model.decoder, samples * (double)w->width, w->documents ? 0 : (double)w->width);
    if (w->model.type == MODEL_T5)
        return t5_flops(&w->model.t5, samples * (double)w->width, samples * (double)w->target);
    return 0;
}
