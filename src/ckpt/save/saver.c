/* Asynchronous saves: copies the slices to host memory, which is all that training waits for, and lets a thread write
 * and commit the copy. The thread uses no collective; ranks agree on the outcome in start and wait, on the caller's. */
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "base/log.h"
#include "ckpt/save/save_task.h"

/* Copied by one thread at a time. Large, so that memcpy writes past the caches as it does for large blocks. */
#define COPY_NUMEL ((int64_t)8 << 20)

typedef struct snapshot_copy {
    int slice;
    int64_t first, count; /* of the slice */
    int64_t at;           /* element of the snapshot */
} snapshot_copy;

struct ckpt_saver {
    bool local;
    int n_slices;
    snapshot_copy *copies;
    int n_copies;
    float *memory;
    size_t memory_bytes;

    save_task *task; /* NULL: no save is under way */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool part_done;       /* under lock */
    atomic_bool finished; /* the thread has nothing more to do */
    double snapshot_seconds;
};

/* ---- Memory ---- */

static int plan_copies(const ckpt_state *state, bool local, snapshot_copy *copies)
{
    int n = 0;
    int64_t at = 0;
    for (int i = 0; i < state->n_slices; i++) {
        const ckpt_slice *slice = &state->slices[i];
        if (!slice->writes && !local)
            continue;
        for (int64_t done = 0; done < slice->count; done += COPY_NUMEL, n++)
            if (copies)
                copies[n] = (snapshot_copy){i, done, min_i64(COPY_NUMEL, slice->count - done), at + done};
        at += slice->count;
    }
    return n;
}

size_t ckpt_saver_room(int64_t bytes)
{
    return round_up((size_t)bytes + 1, (size_t)2 << 20);
}

static fsdp_status take_memory(ckpt_saver *s, int64_t bytes)
{
    s->memory_bytes = ckpt_saver_room(bytes);
    void *memory = mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set_errno(FSDP_ERR_MEMORY, "no memory for the %.1f MiB snapshot of asynchronous checkpoints",
                               (double)bytes / 1048576);
    (void)madvise(memory, s->memory_bytes, MADV_HUGEPAGE);
    memset(memory, 0, s->memory_bytes); /* resident now, not in the first save */
    s->memory = memory;
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "checkpoint snapshot", NULL, (int64_t)s->memory_bytes, 0);
    return FSDP_OK;
}

fsdp_status ckpt_saver_create(const ckpt_state *state, bool local, ckpt_saver **out)
{
    FSDP_TRY(ckpt_state_check(state));
    ckpt_saver *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "out of memory for asynchronous checkpoints");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->local = local;
    s->n_slices = state->n_slices;
    s->n_copies = plan_copies(state, local, NULL);
    s->copies = malloc(((size_t)s->n_copies + 1) * sizeof *s->copies);
    fsdp_status status = s->copies ? take_memory(s, ckpt_state_bytes(state, local))
                                   : error_set(FSDP_ERR_MEMORY, "out of memory for asynchronous checkpoints");
    if (status != FSDP_OK) {
        ckpt_saver_free(s);
        return status;
    }
    plan_copies(state, local, s->copies);
    *out = s;
    return FSDP_OK;
}

void ckpt_saver_free(ckpt_saver *s)
{
    if (!s)
        return;
    if (s->task) {
        pthread_join(s->thread, NULL);
        save_task_free(s->task);
    }
    if (s->memory) {
        munmap(s->memory, s->memory_bytes);
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "checkpoint snapshot", NULL, -(int64_t)s->memory_bytes, 0);
    }
    free(s->copies);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- The thread ---- */

static void *write_and_commit(void *argument)
{
    ckpt_saver *s = argument;
    save_task *task = s->task;
    fsdp_status status = save_task_write_part(task);
    pthread_mutex_lock(&s->lock);
    s->part_done = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (status == FSDP_OK)
        status = save_task_commit(task);
    if (status == FSDP_OK && task->rank == 0 && !task->committed)
        log_write(FSDP_LOG_INFO, "checkpoint %s saved (%.1f MiB by this rank, %.2f s in the background)", task->final,
                  (double)task->bytes / 1048576, clock_seconds() - task->started);
    atomic_store(&s->finished, true);
    return NULL;
}

/* Signals are the training thread's business. */
static fsdp_status launch(ckpt_saver *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, write_and_commit, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return FSDP_OK;
    errno = failed;
    return error_set_errno(FSDP_ERR_MEMORY, "cannot start a thread for the checkpoint");
}

/* ---- Start ---- */

/* By one thread: neighbours in one call, which for large blocks writes past the caches. */
static void copy_runs(ckpt_saver *s, const ckpt_state *state)
{
    for (int i = 0; i < s->n_copies;) {
        const snapshot_copy *first = &s->copies[i];
        const float *from = state->slices[first->slice].data + first->first;
        int64_t n = 0;
        for (; i < s->n_copies && state->slices[s->copies[i].slice].data + s->copies[i].first == from + n; i++)
            n += s->copies[i].count;
        memcpy(s->memory + first->at, from, (size_t)n * sizeof(float));
    }
}

static fsdp_status take_snapshot(ckpt_saver *s, const ckpt_state *state)
{
    bool all_on_host = true;
    for (int i = 0; i < s->n_copies; i++)
        all_on_host &= state->slices[s->copies[i].slice].data != NULL;
    if (all_on_host && omp_get_max_threads() == 1) {
        copy_runs(s, state);
        return FSDP_OK;
    }
    if (all_on_host) {
#pragma omp parallel for schedule(dynamic)
        for (int i = 0; i < s->n_copies; i++) {
            const snapshot_copy *c = &s->copies[i];
            memcpy(s->memory + c->at, state->slices[c->slice].data + c->first, (size_t)c->count * sizeof(float));
        }
        return FSDP_OK;
    }
    for (int i = 0; i < s->n_copies; i++) {
        const snapshot_copy *c = &s->copies[i];
        const ckpt_slice *slice = &state->slices[c->slice];
        if (slice->data)
            memcpy(s->memory + c->at, slice->data + c->first, (size_t)c->count * sizeof(float));
        else
            FSDP_TRY(state->read(state->context, slice, c->first, c->count, s->memory + c->at));
    }
    return FSDP_OK;
}

static fsdp_status check_same(const ckpt_saver *s, const ckpt_save_config *config, const ckpt_state *state)
{
    if ((config->kind == FSDP_CKPT_LOCAL) == s->local && state->n_slices == s->n_slices &&
        plan_copies(state, s->local, NULL) == s->n_copies &&
        round_up((size_t)ckpt_state_bytes(state, s->local) + 1, (size_t)2 << 20) == s->memory_bytes)
        return FSDP_OK;
    return error_set(FSDP_ERR_STATE,
                     "an asynchronous save has other slices, or another kind, than its saver was made for");
}

/* After begin: from here on a failure of this rank is told to the others in wait, like any failure of its part. */
static void start_writing(ckpt_saver *s, const ckpt_state *state)
{
    save_task *task = s->task;
    fsdp_status status = take_snapshot(s, state);
    task->snapshot = s->memory;
    s->part_done = false;
    atomic_store(&s->finished, false);
    if (status == FSDP_OK)
        status = launch(s);
    if (status != FSDP_OK) {
        save_outcome_set(&task->part, status);
        s->part_done = true;
        atomic_store(&s->finished, true);
        s->thread = pthread_self(); /* nothing to join */
    }
}

fsdp_status ckpt_saver_start(ckpt_saver *s, const ckpt_save_config *config, const ckpt_state *state, comm_group *world)
{
    save_task *task = NULL;
    if (ckpt_saver_wait(s, world, NULL) != FSDP_OK) /* that one's failure is not this one's */
        log_write(FSDP_LOG_ERROR, "the checkpoint before was not saved: %s", fsdp_last_error());
    double began = clock_seconds();
    HOOK(HOOK_PHASE, HOOK_BEGIN, "checkpoint", NULL, 0, 0);
    fsdp_status status = check_same(s, config, state);
    status = status == FSDP_OK ? save_task_start(config, state, false, FSDP_F32, world, &task)
                               : ckpt_agree(world, BEGIN_LABEL, status, fsdp_last_error());
    if (status == FSDP_OK) {
        s->task = task;
        start_writing(s, state);
    }
    s->snapshot_seconds = clock_seconds() - began;
    HOOK(HOOK_PHASE, HOOK_END, "checkpoint", NULL, (int64_t)s->memory_bytes, 0);
    return status;
}

size_t ckpt_saver_bytes(const ckpt_saver *s)
{
    return s->memory_bytes;
}

bool ckpt_saver_active(const ckpt_saver *s)
{
    return s->task != NULL;
}

bool ckpt_saver_done(const ckpt_saver *s)
{
    return !s->task || atomic_load(&s->finished);
}

fsdp_status ckpt_saver_wait(ckpt_saver *s, comm_group *world, ckpt_save_result *result)
{
    if (result)
        *result = (ckpt_save_result){0};
    if (!s->task)
        return FSDP_OK;
    save_task *task = s->task;
    pthread_mutex_lock(&s->lock);
    while (!s->part_done)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    fsdp_status status = ckpt_agree(world, PARTS_LABEL, task->part.status, task->part.message);
    if (status != FSDP_OK)
        atomic_store(&task->cancelled, true); /* rank 0 waits for a part that does not come */
    save_outcome agreed;
    save_outcome_set(&agreed, status);
    if (!pthread_equal(s->thread, pthread_self()))
        pthread_join(s->thread, NULL);
    if (status == FSDP_OK)
        status = ckpt_agree(world, COMMIT_LABEL, task->commit.status, task->commit.message);
    else
        error_set(status, "%s", agreed.message);
    status = save_task_end(task, status, result);
    if (result)
        result->snapshot_seconds = s->snapshot_seconds;
    save_task_free(task);
    s->task = NULL;
    return status;
}
