/* Inputs of each model from each kind of data. */
#include "train/record.h"

#include "base/error.h"

static fsdp_status check_images(const char *what, const model_config *model, const fsdp_dataset_info *data)
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

fsdp_status record_check(const char *what, const model_config *model, const fsdp_dataset_info *data)
{
    static const char *const kinds[] = {
        [FSDP_DATASET_TEXT] = "text", [FSDP_DATASET_PAIRS] = "pairs", [FSDP_DATASET_IMAGES] = "images"};
    fsdp_dataset_kind wanted = model->type == MODEL_DECODER ? FSDP_DATASET_TEXT
                               : model->type == MODEL_T5    ? FSDP_DATASET_PAIRS
                                                            : FSDP_DATASET_IMAGES;
    if (data->kind != wanted)
        return error_set(FSDP_ERR_INPUT, "a %s model works on %s, %s holds %s", model_type_name(model), kinds[wanted],
                         what, kinds[data->kind]);
    if (model->type == MODEL_DECODER && data->width > model->decoder.positions)
        return error_set(FSDP_ERR_INPUT,
                         "%s: samples of %lld tokens are longer than the model's %lld positions: lower "
                         "--max_context_width",
                         what, (long long)data->width, (long long)model->decoder.positions);
    return wanted == FSDP_DATASET_IMAGES ? check_images(what, model, data) : FSDP_OK;
}

static fsdp_tensor *images(const train_run *run, fsdp_tape *t, const fsdp_batch *b)
{
    int64_t flat[] = {b->n, run->model_config.mlp.inputs};
    fsdp_tensor *x = run->model_config.type == MODEL_MLP
                         ? fsdp_input(t, FSDP_F32, 2, flat, fsdp_batch_field(b, "pixels"))
                         : fsdp_batch_input(t, b, "pixels");
    return fsdp_cast(t, x, run->sharding.config.param_dtype);
}

fsdp_loss record_loss(const train_run *run, fsdp_tape *t, const fsdp_batch *b)
{
    fsdp_module *net = fsdp_model_module(run->model);
    if (run->model_config.type == MODEL_DECODER) {
        fsdp_tensor *ids = fsdp_batch_input(t, b, "ids"), *labels = fsdp_batch_input(t, b, "labels");
        if (!fsdp_batch_field(b, "documents"))
            return fsdp_decoder_loss(net, t, ids, labels);
        return fsdp_decoder_loss_packed(net, t, ids, labels, fsdp_batch_input(t, b, "documents"),
                                        fsdp_batch_input(t, b, "positions"));
    }
    if (run->model_config.type == MODEL_T5) {
        fsdp_tensor *ids = fsdp_batch_input(t, b, "ids"), *mask = fsdp_batch_input(t, b, "mask");
        fsdp_tensor *decoder_ids = fsdp_batch_input(t, b, "decoder_ids");
        return fsdp_t5_loss(net, t, ids, mask, decoder_ids, fsdp_batch_input(t, b, "labels"));
    }
    fsdp_tensor *pixels = images(run, t, b);
    return fsdp_classifier_loss(net, t, pixels, fsdp_batch_input(t, b, "classes"));
}
