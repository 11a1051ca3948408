/* Validation: the loss over held-back data, as one mean over all ranks, and for images how many are recognised. */
#include <math.h>

#include "base/checked.h"
#include "base/error.h"
#include "data/loader.h"
#include "train/run.h"
#include "train/record.h"

static fsdp_status open_validation_loader(train_run *run, fsdp_loader **out)
{
    const fsdp_settings *s = run->settings;
    int64_t n = run->validation_info.n_samples, batch = s->val_batch_size * run->n_ranks;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = batch;
    c.shuffle = false;
    c.stop_at_epoch = !run->validation_info.stream; /* a stream ends where its samples were counted to end */
    c.same_rows = run->validation_info.kind != FSDP_DATASET_IMAGES;
    c.end = s->validation_batches > 0 ? min_i64(n, s->validation_batches * batch) : n;
    return fsdp_loader_new(run->world, run->validation, &c, out);
}

fsdp_status run_count_validation(train_run *run)
{
    fsdp_loader *l;
    fsdp_batch *b;
    FSDP_TRY(open_validation_loader(run, &l));
    fsdp_status status = FSDP_OK;
    do
        status = fsdp_loader_next(l, &b);
    while (status == FSDP_OK && b && fsdp_loader_position(l) < loader_epoch_samples(l));
    run->validation_info.n_samples = min_i64(fsdp_loader_position(l), loader_epoch_samples(l));
    fsdp_loader_free(l);
    return status;
}

enum { LOSS, COUNT, RIGHT, N_SUMS };

/* Training counts what is right of images only: of tokens the loss says enough, and counting reads all logits. */
static bool counts_right(const train_run *run)
{
    return run->measures || run->validation_info.kind == FSDP_DATASET_IMAGES;
}

static fsdp_status add_batch(train_run *run, const fsdp_batch *b, double *sums)
{
    fsdp_tape *t = fsdp_begin_evaluation(run->model);
    fsdp_loss loss = record_loss(run, t, b);
    fsdp_tensor *wanted[N_SUMS] = {loss.sum, loss.count, counts_right(run) ? fsdp_loss_right(t, loss) : NULL};
    FSDP_TRY(fsdp_evaluate(t));
    for (int i = 0; i < N_SUMS && wanted[i]; i++) {
        float value;
        FSDP_TRY(fsdp_read(wanted[i], &value, 1));
        sums[i] += value;
    }
    return FSDP_OK;
}

static fsdp_status validate(train_run *run, validation_means *out)
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
    *out = (validation_means){.loss = sums[LOSS] / sums[COUNT],
                              .accuracy = counts_right(run) ? sums[RIGHT] / sums[COUNT] : NAN,
                              .count = sums[COUNT]};
    return FSDP_OK;
}

fsdp_status run_validate(train_run *run, validation_means *out)
{
    if (!(run->settings->ema > 0))
        return validate(run, out);
    FSDP_TRY(fsdp_optimizer_swap_average(run->optimizer));
    FSDP_TRY(validate(run, out)); /* a run whose validation fails ends, and saves nothing */
    return fsdp_optimizer_swap_average(run->optimizer);
}
