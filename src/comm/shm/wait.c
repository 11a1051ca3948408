/* Waiting for peers through the control page: sleeping and waking, and the four ways a wait ends badly (timeout, a peer
 * that died, one that left, an abort), each with its message. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/shm/control.h"

enum { SPIN_NANOSECONDS = 20000, FIRST_SLICE_MILLISECONDS = 10, SLICE_MILLISECONDS = 50 };

static void futex_wait(shm_word *word, uint32_t seen, double seconds)
{
    struct timespec limit = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

static void futex_wake(shm_word *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A waiter counts itself before it looks at the word a last time; we change the word before we look at the count. */
void shm_publish(shm_channel *mine, shm_word *word, uint32_t value)
{
    atomic_store(word, value);
    if (atomic_load(&mine->waiters))
        futex_wake(word);
}

void shm_set_place(comm *c, const signature *s)
{
    shm_rank *me = shm_rank_of(world_of(c), c->rank);
    atomic_fetch_add(&me->place_version, 1);
    atomic_thread_fence(memory_order_seq_cst);
    me->place = *s;
    atomic_thread_fence(memory_order_seq_cst);
    atomic_fetch_add(&me->place_version, 1);
}

/* A peer that died halfway through a change leaves an odd version: then we take what is there. */
static void get_place(const shm_rank *rank, signature *out)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        uint32_t before = atomic_load(&rank->place_version);
        atomic_thread_fence(memory_order_seq_cst);
        memcpy(out, &rank->place, sizeof *out);
        atomic_thread_fence(memory_order_seq_cst);
        if (!(before & 1) && atomic_load(&rank->place_version) == before)
            break;
    }
    out->unit[sizeof out->unit - 1] = out->label[sizeof out->label - 1] = 0;
}

static const char *place_text(const comm *c, int world_rank, char *text, size_t bytes)
{
    signature place;
    if (!world_of(c)->near[world_rank]) {
        snprintf(text, bytes, "is on another host");
        return text;
    }
    get_place(shm_rank_of(world_of(c), world_rank), &place);
    return signature_place(&place, text, bytes);
}

static bool process_ended(const shm_world *w, int world_rank)
{
    struct pollfd handle = {.fd = w->pidfds[world_rank], .events = POLLIN};
    return handle.fd >= 0 && poll(&handle, 1, 0) > 0 && (handle.revents & (POLLIN | POLLHUP));
}

/* The rank that `world_rank` waits for, followed to one that waits for nobody: the one to blame. A circle means that
 * one of them was stopped inside a wait that has long been over; then `world_rank` itself is what we know. */
static int follow_waits(const comm *c, int world_rank)
{
    int culprit = world_rank;
    for (int hop = 0; hop < c->world_size; hop++) {
        int next = atomic_load(&shm_rank_of(world_of(c), culprit)->waiting_for) - 1;
        if (next < 0 || next >= c->world_size)
            return culprit;
        culprit = next;
        if (!world_of(c)->near[culprit])
            return culprit;
    }
    return world_rank;
}

static fsdp_status aborted(const comm *c, const char *what)
{
    const shm_control *control = shm_control_of(world_of(c));
    if (control->abort_rank == c->rank)
        return error_set(FSDP_ERR_PEER, "%s", control->abort_text);
    return error_set(FSDP_ERR_PEER, "%s%sstopped because rank %d failed: %s", what, *what ? " " : "",
                     control->abort_rank, control->abort_text);
}

static fsdp_status timed_out(const comm *c, const char *what, int world_rank)
{
    char place[256], detour[64] = "";
    int culprit = follow_waits(c, world_rank);
    if (culprit != world_rank)
        snprintf(detour, sizeof detour, "rank %d waits for rank %d: ", world_rank, culprit);
    return error_set(FSDP_ERR_TIMEOUT, "%s timed out after %g s: %srank %d %s", what, c->config.timeout_seconds, detour,
                     culprit, place_text(c, culprit, place, sizeof place));
}

/* The word was looked at after `gone` was found out, so nothing that the peer still managed to do is missed. */
static fsdp_status examine(const comm *c, const char *what, int world_rank, const shm_word *word, uint32_t target,
                           double deadline)
{
    const shm_world *w = world_of(c);
    char place[256];
    if (atomic_load(&shm_control_of(w)->abort_state) == SHM_ABORT_SET)
        return aborted(c, what);
    if (atomic_load(&c->failed))
        return engine_failure((comm *)c);
    if (atomic_load(&c->stop))
        return error_set(FSDP_ERR_STATE, "%s was dropped: this rank closed its connection", what);
    bool left = atomic_load(&shm_rank_of(w, world_rank)->state) == SHM_RANK_LEFT;
    bool ended = process_ended(w, world_rank);
    if ((left || ended) && !reached(atomic_load(word), target))
        return error_set(FSDP_ERR_PEER, "%s failed: rank %d %s; it %s", what, world_rank,
                         left ? "has left the job" : "has ended (killed or exited)",
                         place_text(c, world_rank, place, sizeof place));
    if (clock_seconds() > deadline && !reached(atomic_load(word), target))
        return timed_out(c, what, world_rank);
    return FSDP_OK;
}

static bool spin(const shm_world *w, const shm_word *word, uint32_t target)
{
    if (!w->spin)
        return false;
    int64_t end = clock_nanoseconds() + SPIN_NANOSECONDS;
    do {
        for (int i = 0; i < 32; i++) {
            if (reached(atomic_load_explicit(word, memory_order_acquire), target))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (clock_nanoseconds() < end);
    return false;
}

fsdp_status shm_wait(comm_group *g, const signature *s, int rank, shm_word *word, uint32_t target)
{
    comm *c = g->comm;
    shm_world *w = world_of(c);
    if (reached(atomic_load(word), target) || spin(w, word, target))
        return FSDP_OK;
    int world_rank = g->members[rank];
    shm_rank *me = shm_rank_of(w, c->rank);
    shm_channel *peer = channel_of(g, rank);
    double start = clock_seconds(), deadline = start + c->config.timeout_seconds;
    char what[256];
    signature_text(s, what, sizeof what);

    fsdp_status status = FSDP_OK;
    int slice = FIRST_SLICE_MILLISECONDS;
    atomic_store(&me->waiting_for, world_rank + 1);
    atomic_fetch_add(&peer->waiters, 1);
    for (;;) {
        uint32_t seen = atomic_load(word);
        if (reached(seen, target))
            break;
        status = examine(c, what, world_rank, word, target, deadline);
        if (status != FSDP_OK)
            break;
        double left = deadline - clock_seconds(), seconds = slice * 1e-3;
        futex_wait(word, seen, left < seconds ? (left > 1e-4 ? left : 1e-4) : seconds);
        slice = SLICE_MILLISECONDS;
    }
    atomic_fetch_sub(&peer->waiters, 1);
    atomic_store(&me->waiting_for, 0);
    return status;
}

/* The first message stays. Waiters are woken where they sleep; one that falls asleep just now finds it at its next
 * slice. */
void shm_abort(comm *c, const char *message)
{
    shm_world *w = world_of(c);
    if (!w || !w->shares)
        return;
    shm_control *control = shm_control_of(w);
    uint32_t none = SHM_ABORT_NONE;
    if (!atomic_compare_exchange_strong(&control->abort_state, &none, SHM_ABORT_WRITING))
        return;
    control->abort_rank = c->rank;
    snprintf(control->abort_text, sizeof control->abort_text, "%s", message);
    atomic_store(&control->abort_state, SHM_ABORT_SET);
    for (int rank = 0; rank < c->world_size; rank++) {
        for (int slot = 0; w->near[rank] && slot <= COMM_MAX_GROUPS; slot++) {
            shm_channel *channel = &shm_rank_of(w, rank)->channels[slot];
            if (!atomic_load(&channel->waiters))
                continue;
            futex_wake(&channel->arrived);
            futex_wake(&channel->produced);
            futex_wake(&channel->done);
            futex_wake(&channel->consumed);
        }
    }
}

fsdp_status shm_check(comm *c)
{
    const shm_world *w = world_of(c);
    if (atomic_load(&shm_control_of(w)->abort_state) == SHM_ABORT_SET)
        return aborted(c, "");
    for (int rank = 0; rank < c->world_size; rank++)
        if (rank != c->rank && process_ended(w, rank) && atomic_load(&shm_rank_of(w, rank)->state) != SHM_RANK_LEFT) {
            char place[256];
            return error_set(FSDP_ERR_PEER, "rank %d has ended (killed or exited); it %s", rank,
                             place_text(c, rank, place, sizeof place));
        }
    return FSDP_OK;
}
