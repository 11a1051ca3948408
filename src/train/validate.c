/* Validation: the loss over held-back data, as one mean over all ranks, and for images how many are recognised. */
#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "train/run.h"
#include "train/record.h"

static fsdp_status open_validation_loader(train_run *run, fsdp_loader **out)
{
    const fsdp_settings *s = run->settings;
    int64_t n = run->validation_info.n_samples, batch = s->val_batch_size * run->n_ranks;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = batch;
    c.shuffle = false;
    c.same_rows = run->validation_info.kind != FSDP_DATASET_IMAGES;
    c.end = s->validation_batches > 0 ? min_i64(n, s->validation_batches * batch) : n;
    return fsdp_loader_new(run->world, run->validation, &c, out);
}

enum { LOSS, COUNT, RIGHT, N_SUMS };

/* Adds the images whose likeliest class is theirs. */
static fsdp_status add_right(const fsdp_batch *b, fsdp_tensor *logits, double *sums)
{
    int64_t n = fsdp_tensor_numel(logits), n_classes = fsdp_tensor_size(logits, -1);
    float *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return error_set(FSDP_ERR_MEMORY, "validation: out of host memory");
    const int32_t *classes = fsdp_batch_field(b, "classes");
    fsdp_status status = fsdp_read(logits, values, n);
    for (int64_t i = 0; i < b->counted && status == FSDP_OK; i++) {
        const float *row = values + i * n_classes;
        int64_t best = 0;
        for (int64_t k = 1; k < n_classes; k++)
            best = row[k] > row[best] ? k : best;
        sums[RIGHT] += best == classes[i];
    }
    free(values);
    return status;
}

static fsdp_status add_batch(train_run *run, const fsdp_batch *b, double *sums)
{
    float sum, count;
    fsdp_tensor *logits = NULL;
    fsdp_tape *t = fsdp_begin_evaluation(run->model);
    fsdp_loss loss =
        run->validation_info.kind == FSDP_DATASET_IMAGES ? record_classes(run, t, b, &logits) : record_loss(run, t, b);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(loss.sum, &sum, 1));
    FSDP_TRY(fsdp_read(loss.count, &count, 1));
    sums[LOSS] += sum;
    sums[COUNT] += count;
    return logits ? add_right(b, logits, sums) : FSDP_OK;
}

static fsdp_status validate(train_run *run, double *loss)
{
    fsdp_loader *l;
    double sums[N_SUMS] = {0};
    FSDP_TRY(open_validation_loader(run, &l));
    fsdp_status status;
    for (;;) {
        fsdp_batch *b;
        status = fsdp_loader_next(l, &b);
        if (status != FSDP_OK || !b)
            break;
        status = add_batch(run, b, sums);
        if (status != FSDP_OK)
            break;
    }
    fsdp_loader_free(l);
    FSDP_TRY(status);
    FSDP_TRY(
        comm_all_reduce_f64(comm_world(run->world->comm), "validation loss", run->step, FSDP_REDUCE_SUM, sums, N_SUMS));
    if (isnan(sums[COUNT]))
        return error_set(FSDP_ERR_INPUT, "a label of the validation data lies outside the vocabulary");
    if (sums[COUNT] == 0)
        return error_set(FSDP_ERR_INPUT, "the validation data has nothing to predict");
    *loss = sums[LOSS] / sums[COUNT];
    run->result.validation_accuracy =
        run->validation_info.kind == FSDP_DATASET_IMAGES ? sums[RIGHT] / sums[COUNT] : NAN;
    return FSDP_OK;
}

fsdp_status run_validate(train_run *run, double *loss)
{
    if (!(run->settings->ema > 0))
        return validate(run, loss);
    FSDP_TRY(fsdp_optimizer_swap_average(run->optimizer));
    FSDP_TRY(validate(run, loss)); /* a run whose validation fails ends, and saves nothing */
    return fsdp_optimizer_swap_average(run->optimizer);
}
