/* Validation: the loss over held-back data, as one mean over all ranks. */
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

static fsdp_status add_batch(train_run *run, const loader_batch *b, double *sums)
{
    float sum, count;
    fsdp_tape *t = fsdp_begin_evaluation(run->model);
    fsdp_loss loss = record_loss(run->model, t, &run->model_config, &run->validation_info, b);
    FSDP_TRY(fsdp_evaluate(t));
    FSDP_TRY(fsdp_read(loss.sum, &sum, 1));
    FSDP_TRY(fsdp_read(loss.count, &count, 1));
    sums[0] += sum;
    sums[1] += count;
    return FSDP_OK;
}

fsdp_status run_validate(train_run *run, double *loss)
{
    loader *l;
    double sums[2] = {0, 0};
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
    FSDP_TRY(comm_all_reduce_f64(comm_world(run->world->comm), "validation loss", run->step, COMM_SUM, sums, 2));
    if (sums[1] == 0)
        return error_set(FSDP_ERR_INPUT, "the validation data has nothing to predict");
    *loss = sums[0] / sums[1];
    return FSDP_OK;
}
