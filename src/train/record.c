/* Inputs of each model from each kind of data. */
#include "train/record.h"

#include "base/checked.h"
#include "base/error.h"
#include "shard/model.h"

static fsdp_status check_images(const char *what, const model_config *model, const dataset_info *data)
{
    bool cnn = model->type == MODEL_CNN;
    int64_t pixels = data->channels * data->height * data->image_width,
            n_classes = cnn ? model->cnn.classes : model->mlp.outputs;
    if (cnn && (data->channels != model->cnn.channels || data->height != model->cnn.height ||
                data->image_width != model->cnn.width))
        return error_set(FSDP_ERR_INPUT, "%s: images of %lld x %lld x %lld do not fit the model's %lld x %lld x %lld",
                         what, (long long)data->channels, (long long)data->height, (long long)data->image_width,
                         (long long)model->cnn.channels, (long long)model->cnn.height, (long long)model->cnn.width);
    if (!cnn && pixels != model->mlp.inputs)
        return error_set(FSDP_ERR_INPUT, "%s: images of %lld values do not fit the model's %lld inputs", what,
                         (long long)pixels, (long long)model->mlp.inputs);
    if (data->n_classes > n_classes)
        return error_set(FSDP_ERR_INPUT, "%s has %lld classes, the model %lld: raise --num_classes", what,
                         (long long)data->n_classes, (long long)n_classes);
    return FSDP_OK;
}

fsdp_status record_check(const char *what, const model_config *model, const dataset_info *data)
{
    static const char *const kinds[] = {
        [DATASET_TEXT] = "text", [DATASET_PAIRS] = "pairs", [DATASET_IMAGES] = "images"};
    dataset_kind wanted = model->type == MODEL_LLAMA ? DATASET_TEXT
                          : model->type == MODEL_T5  ? DATASET_PAIRS
                                                     : DATASET_IMAGES;
    if (data->kind != wanted)
        return error_set(FSDP_ERR_INPUT, "a %s model works on %s, %s holds %s", model_type_name(model->type),
                         kinds[wanted], what, kinds[data->kind]);
    if (model->type == MODEL_LLAMA && data->width > model->llama.positions)
        return error_set(FSDP_ERR_INPUT,
                         "%s: samples of %lld tokens are longer than the model's %lld positions: lower "
                         "--max_context_width",
                         what, (long long)data->width, (long long)model->llama.positions);
    return wanted == DATASET_IMAGES ? check_images(what, model, data) : FSDP_OK;
}

/* Rows of images that are recorded: those of the fullest rank. Only the short batch at the end of an epoch has fewer
 * than max_rows, and ranks that have fewer still pad it: a rank without a sample takes part in batch norm's sums too.
 */
static int64_t image_rows(const fsdp_model *m, const loader_batch *b)
{
    return min_i64(b->max_rows, ceil_div(b->n_global, m->n_ranks));
}

static fsdp_tensor *classes(const fsdp_model *m, fsdp_tape *t, const loader_batch *b)
{
    int64_t rows = image_rows(m, b);
    return fsdp_input(t, FSDP_I32, 1, &rows, b->classes);
}

static fsdp_tensor *images(fsdp_model *m, fsdp_tape *t, const model_config *model, const dataset_info *data,
                           const loader_batch *b)
{
    int64_t rows = image_rows(m, b), image[] = {rows, data->channels, data->height, data->image_width};
    int64_t flat[] = {rows, data->channels * data->height * data->image_width};
    bool mlp = model->type == MODEL_MLP;
    t->counted_rows = b->n_rows;
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, mlp ? 2 : 4, mlp ? flat : image, b->pixels);
    return fsdp_cast(t, x, m->config.param_dtype);
}

static fsdp_loss image_loss(fsdp_model *m, fsdp_tape *t, const model_config *model, const dataset_info *data,
                            const loader_batch *b)
{
    fsdp_tensor *x = images(m, t, model, data, b);
    return fsdp_classifier_loss(fsdp_model_module(m), t, x, classes(m, t, b));
}

fsdp_loss record_classes(fsdp_model *m, fsdp_tape *t, const model_config *model, const dataset_info *data,
                         const loader_batch *b, fsdp_tensor **logits)
{
    fsdp_tensor *computed = fsdp_call(fsdp_model_module(m), t, images(m, t, model, data, b));
    *logits = fsdp_output(t, fsdp_cast(t, computed, FSDP_F32)); /* so that reading them takes no more memory */
    return fsdp_cross_entropy(t, computed, classes(m, t, b), FSDP_IGNORE);
}

fsdp_loss record_loss(fsdp_model *m, fsdp_tape *t, const model_config *model, const dataset_info *data,
                      const loader_batch *b)
{
    fsdp_module *net = fsdp_model_module(m);
    int64_t source[] = {b->max_rows, data->width}, target[] = {b->max_rows, data->target_width};
    if (data->kind == DATASET_IMAGES)
        return image_loss(m, t, model, data, b);
    fsdp_tensor *ids = fsdp_input(t, FSDP_I32, 2, source, b->ids);
    if (data->kind == DATASET_TEXT)
        return fsdp_llama_loss(net, t, ids, fsdp_input(t, FSDP_I32, 2, source, b->labels));
    return fsdp_t5_loss(net, t, ids, fsdp_input(t, FSDP_I32, 2, source, b->mask),
                        fsdp_input(t, FSDP_I32, 2, target, b->decoder_ids),
                        fsdp_input(t, FSDP_I32, 2, target, b->labels));
}
