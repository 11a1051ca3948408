#include "device/pacer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/error.h"

/* A request: that it is one, whether it follows another, and nanoseconds. */
#define REQUEST_MARK ((uint32_t)1 << 31)
#define REQUEST_FOLLOWS ((uint32_t)1 << 30)
#define REQUEST_NANOSECONDS (REQUEST_FOLLOWS - 1)

/* How long the thread sleeps between two looks, and how close to the end of a request it no longer does: waking up
 * takes some time, too. */
enum { LOOK_NANOSECONDS = 10000, AWAKE_NANOSECONDS = 40000 };

typedef struct waiter {
    _Atomic uint32_t *word;
    bool taken; /* under the lock */
    bool waits; /* the rest is the thread's */
    int64_t due;
} waiter;

struct pacer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    atomic_int n_waiters; /* those behind were never taken */
    atomic_llong expected;
    atomic_bool quit;
    waiter waiters[PACER_WAITERS];
};

uint32_t pacer_request(double seconds, bool follows)
{
    double nanoseconds = seconds < PACER_MAX_SECONDS ? seconds * 1e9 : PACER_MAX_SECONDS * 1e9;
    uint32_t value = nanoseconds > 0 ? (uint32_t)(nanoseconds + 0.5) : 0;
    return REQUEST_MARK | (follows ? REQUEST_FOLLOWS : 0) | (value & REQUEST_NANOSECONDS);
}

/* Notes a new request, answers one whose time has come. Nanoseconds that are left, INT64_MAX where there is none. */
static int64_t look_at(pacer *p, waiter *w)
{
    uint32_t request = atomic_load_explicit(w->word, memory_order_acquire);
    if (request == 0)
        return INT64_MAX;
    int64_t now = clock_nanoseconds();
    if (!w->waits) {
        w->waits = true;
        w->due = (request & REQUEST_FOLLOWS ? w->due : now) + (int64_t)(request & REQUEST_NANOSECONDS);
    }
    if (now < w->due)
        return w->due - now;
    w->waits = false;
    atomic_store_explicit(w->word, 0, memory_order_release);
    atomic_fetch_sub(&p->expected, 1);
    return INT64_MAX;
}

static void look(pacer *p)
{
    int64_t left = INT64_MAX;
    for (int i = 0; i < atomic_load(&p->n_waiters); i++) {
        int64_t one = look_at(p, &p->waiters[i]);
        left = one < left ? one : left;
    }
    if (left > AWAKE_NANOSECONDS)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NANOSECONDS}, NULL);
}

static void *pacer_main(void *context)
{
    pacer *p = context;
    prctl(PR_SET_TIMERSLACK, 1UL); /* otherwise 50 us are added to every sleep */
    while (!atomic_load(&p->quit)) {
        if (atomic_load(&p->expected) > 0) {
            look(p);
            continue;
        }
        pthread_mutex_lock(&p->lock);
        if (atomic_load(&p->expected) <= 0 && !atomic_load(&p->quit))
            condition_wait_a_second(&p->changed, &p->lock);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

fsdp_status pacer_open(void *memory, pacer **out)
{
    pacer *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "out of host memory for a thread that paces copies");
    for (int i = 0; i < PACER_WAITERS; i++)
        p->waiters[i].word = (_Atomic uint32_t *)((char *)memory + (size_t)i * PACER_STRIDE);
    pthread_mutex_init(&p->lock, NULL);
    condition_init(&p->changed);
    int error = pthread_create(&p->thread, NULL, pacer_main, p);
    if (error != 0) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return error_set(FSDP_ERR_MEMORY, "starting a thread that paces copies: %s; raise the limit on processes",
                         strerror(error));
    }
    *out = p;
    return FSDP_OK;
}

static void wake(pacer *p)
{
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void pacer_close(pacer *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    wake(p);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

_Atomic uint32_t *pacer_take(pacer *p)
{
    _Atomic uint32_t *word = NULL;
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < PACER_WAITERS && !word; i++) {
        if (p->waiters[i].taken)
            continue;
        p->waiters[i].taken = true;
        word = p->waiters[i].word;
        if (i >= atomic_load(&p->n_waiters))
            atomic_store(&p->n_waiters, i + 1);
    }
    pthread_mutex_unlock(&p->lock);
    return word;
}

void pacer_give_back(pacer *p, _Atomic uint32_t *word)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < PACER_WAITERS; i++)
        if (p->waiters[i].word == word)
            p->waiters[i].taken = false;
    pthread_mutex_unlock(&p->lock);
}

void pacer_expect(pacer *p, int n)
{
    if (atomic_fetch_add(&p->expected, n) <= 0)
        wake(p);
}
