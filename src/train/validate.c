/* Validation: the loss over held-back data, as one mean over all ranks, and for images how many are recognised. */
#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "train/run.h"
#include "train/record.h"

static fsdp_status open_validation_loader(train_run *run, loader **out)
{
    const fsdp_settings *s = run->settings;
    int64_t n = run->validation_info.n_samples, batch = s->val_batch_size * run->n_ranks;
    loader_config c = LOADER_CONFIG_INIT;
    c.rank = run->rank;
    c.world_size = run->n_ranks;
    c.global_batch = batch;
    c.shuffle = false;
    c.stop_at_epoch = true;
    c.end = s->validation_batches > 0 ? min_i64(n, s->validation_batches * batch) : n;
    return loader_create(run->validation, &c, out);
}

enum { LOSS, COUNT, RIGHT, N_SUMS };

/* Adds the images whose likeliest class is theirs. */
static fsdp_status add_right(const loader_batch *b, fsdp_tensor *logits, double *sums)
{
    int64_t n = fsdp_tensor_numel(logits), n_classes = fsdp_tensor_size(logits, -1);
    float *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return error_set(FSDP_ERR_MEMORY, "validation: out of host memory");
    fsdp_status status = fsdp_read(logits, values, n);
    for (int64_t i = 0; i < b->n_rows && status == FSDP_OK; i++) {
        const float *row = values + i * n_classes;
        int64_t best = 0;
        for (int64_t k = 1; k < n_classes; k++)
            best = row[k] > row[best] ? k : best;
        sums[RIGHT] += best == b->classes[i];
    }
    free(values);
    return status;
}

static fsdp_status add_batch(train_run *run, const loader_batch *b, double *sums)
{
    float sum, count;
    const dataset_info *data = &run->validation_info;
    fsdp_tensor *logits = NULL;
    fsdp_tape *t = fsdp_begin_evaluation(run->model);
    fsdp_loss loss = data->kind == DATASET_IMAGES ? record_classes(run->model, t, &run->model_config, data, b, &logits)
                                                  : record_loss(run->model, t, &run->model_config, data, b);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(loss.sum, &sum, 1));
    FSDP_TRY(fsdp_read(loss.count, &count, 1));
    sums[LOSS] += sum;
    sums[COUNT] += count;
    return logits ? add_right(b, logits, sums) : FSDP_OK;
}

fsdp_status run_validate(train_run *run, double *loss)
{
    loader *l;
    double sums[N_SUMS] = {0};
    FSDP_TRY(open_validation_loader(run, &l));
    fsdp_status status;
    for (;;) {
        const loader_batch *b;
        status = loader_next(l, &b);
        if (status != FSDP_OK || !b)
            break;
        status = add_batch(run, b, sums);
        if (status != FSDP_OK)
            break;
    }
    loader_free(l);
    FSDP_TRY(status);
    FSDP_TRY(comm_all_reduce_f64(comm_world(run->world->comm), "validation loss", run->step, COMM_SUM, sums, N_SUMS));
    if (isnan(sums[COUNT]))
        return error_set(FSDP_ERR_INPUT, "a label of the validation data lies outside the vocabulary");
    if (sums[COUNT] == 0)
        return error_set(FSDP_ERR_INPUT, "the validation data has nothing to predict");
    *loss = sums[LOSS] / sums[COUNT];
    run->result.validation_accuracy = run->validation_info.kind == DATASET_IMAGES ? sums[RIGHT] / sums[COUNT] : NAN;
    return FSDP_OK;
}
