/* Kernels that the device chose by timing: rank 0's choices hold for every rank. It shares them after the first
 * optimizer step, in which rank 0 timed the step's kernels while the other ranks chose by rule. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "shard/model.h"

/* Rank 0's part of one round goes to all ranks; the others have nothing to share. */
static fsdp_status hand_round(fsdp_model *m, const char *mine, size_t n, char *all, size_t *all_bytes)
{
    return comm_exchange(comm_world(m->world->comm), "autotuned kernels", mine, n, COMM_EXCHANGE_BYTES, all, all_bytes);
}

/* Rank 0 gives `bytes`; the others receive them, in memory of the caller's. A round that is not full is the last. */
static fsdp_status hand_over(fsdp_model *m, char **bytes, size_t *n)
{
    bool gives = comm_rank(m->world->comm) == 0;
    size_t done = 0, round = COMM_EXCHANGE_BYTES;
    char *all = malloc((size_t)m->n_ranks * COMM_EXCHANGE_BYTES);
    size_t *all_bytes = calloc((size_t)m->n_ranks, sizeof *all_bytes);
    fsdp_status status = all && all_bytes ? FSDP_OK : FSDP_ERR_MEMORY;
    while (status == FSDP_OK && round == COMM_EXCHANGE_BYTES) {
        size_t segment = gives ? (*n - done < round ? *n - done : round) : 0;
        status = hand_round(m, gives ? *bytes + done : "", segment, all, all_bytes);
        if (status != FSDP_OK)
            break;
        round = all_bytes[0];
        char *grown = gives ? *bytes : realloc(*bytes, done + round + 1);
        if (!grown) {
            status = FSDP_ERR_MEMORY;
            break;
        }
        *bytes = grown;
        if (!gives)
            memcpy(grown + done, all, round);
        done += round;
    }
    *n = done;
    free(all);
    free(all_bytes);
    return status == FSDP_ERR_MEMORY ? error_set(status, "autotuned kernels: out of host memory") : status;
}

fsdp_status model_share_autotune(fsdp_model *m)
{
    char *bytes = NULL;
    size_t n = 0;
    if (m->autotune_shared || m->n_ranks == 1 || !m->dev->autotune_export)
        return FSDP_OK;
    m->autotune_shared = true;
    fsdp_status status = FSDP_OK;
    if (!m->dev->awaits_autotune)
        status = m->dev->autotune_export(m->dev, &bytes, &n);
    if (status == FSDP_OK)
        status = hand_over(m, &bytes, &n);
    if (status == FSDP_OK && m->dev->awaits_autotune) {
        status = m->dev->autotune_import(m->dev, "rank 0", bytes, n);
        model_forget_graphs(m); /* they hold the kernels chosen before */
    }
    free(bytes);
    return status;
}
