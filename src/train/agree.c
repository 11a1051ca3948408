/* Every rank gives the values that all must have in common; everybody compares with rank 0's. */
#include "train/agree.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* A number of the settings (or of the data), as the message shows it. */
typedef struct agreed {
    const char *name;
    double value; /* whole numbers below 2^53 exactly */
} agreed;

enum { MOST_AGREED = 32 };

/* When a run ends is each rank's own affair: it is told when one has left. */
static int list_agreed(const train_run *run, agreed *list)
{
    const fsdp_settings *s = run->settings;
    const agreed all[] = {
        {"--train_batch_size", (double)s->train_batch_size},
        {"--val_batch_size", (double)s->val_batch_size},
        {"--gradient_accumulation_steps", (double)s->gradient_accumulation_steps},
        {"--max_context_width", (double)run->info.width},
        {"--max_target_width", (double)run->info.target_width},
        {"--dataset, samples", (double)run->info.n_samples},
        {"--validation_dataset, samples", (double)run->validation_info.n_samples},
        {"--validation_freq", (double)s->validation_freq},
        {"--validation_batches", (double)s->validation_batches},
        {"--checkpoint_freq", (double)s->checkpoint_freq},
        {"--checkpoint_kind", s->checkpoint_kind},
        {"--sample_tokens", (double)s->sample_tokens},
        {"--shuffle", s->shuffle},
        {"--seed", (double)s->seed},
        {"--optimizer", s->optimizer},
        {"--lr", s->lr},
        {"--min_lr", s->min_lr},
        {"--lr_decay_style", s->lr_decay_style},
        {"--lr_decay_iters", (double)s->lr_decay_iters},
        {"--warmup", s->warmup},
        {"--weight_decay", s->weight_decay},
        {"--momentum", s->momentum},
        {"--beta1", s->beta1},
        {"--beta2", s->beta2},
        {"--eps", s->eps},
        {"--grad_clip", s->grad_clip},
    };
    _Static_assert(sizeof all / sizeof *all <= MOST_AGREED, "more values than there is room for");
    memcpy(list, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static fsdp_status compare(const agreed *mine, int n, const double *all, int n_ranks)
{
    for (int r = 1; r < n_ranks; r++)
        for (int i = 0; i < n; i++)
            if (all[r * n + i] != all[i])
                return error_set(FSDP_ERR_PEER,
                                 "rank %d was started with %s %g, rank 0 with %g: start all ranks with the same flags",
                                 r, mine[i].name, all[r * n + i], all[i]);
    return FSDP_OK;
}

fsdp_status run_agree(const train_run *run)
{
    if (run->n_ranks == 1)
        return FSDP_OK;
    agreed list[MOST_AGREED];
    int n = list_agreed(run, list);
    double mine[MOST_AGREED];
    for (int i = 0; i < n; i++)
        mine[i] = list[i].value;
    size_t size = (size_t)n * sizeof *mine;
    double *all = malloc((size_t)run->n_ranks * size);
    size_t *bytes = malloc((size_t)run->n_ranks * sizeof *bytes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!all || !bytes)
        error_set(status, "comparing the ranks' settings: out of host memory");
    else
        status = comm_exchange(comm_world(run->world->comm), "settings", mine, size, size, all, bytes);
    if (status == FSDP_OK)
        status = compare(list, n, all, run->n_ranks);
    free(bytes);
    free(all);
    return status;
}
