/* The watchdog's thread, its queue, and the three messages it knows: groups, calls and failures. */
#include "comm/watch/watchdog.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/watch/ledger.h"
#include "meet/meeting.h"

enum watchdog_kind { WATCHDOG_GROUP = MEET_USER, WATCHDOG_CALLS, WATCHDOG_FAILURE };

/* In one message, which has a limit. */
enum { CALLS_AT_ONCE = 4096 };

/* rank -1: not one rank's failure, the text says it all. */
typedef struct failure_note {
    int32_t rank, status;
    char text[WATCHDOG_TEXT_BYTES];
} failure_note;

struct watchdog {
    watchdog_config config;
    pthread_t thread;
    bool running;
    atomic_bool stop;
    bool failed;          /* watchdog's thread: `fail` was called */
    bool alone;           /* watchdog's thread: rank 0 is done and has left, with the store where that was its own */
    pthread_mutex_t lock; /* of what follows */
    ledger *ledger;       /* rank 0 */
    ledger_call *calls;   /* not yet sent */
    size_t n_calls, room;
};

/* This thread's error without "rank N: " in front: it goes to ranks that put their own there. */
static const char *plain_error(const watchdog *r)
{
    const char *text = fsdp_last_error();
    char front[32];
    int length = snprintf(front, sizeof front, "rank %d: ", r->config.rank);
    return strncmp(text, front, (size_t)length) == 0 ? text + length : text;
}

static void tell(watchdog *r, int rank, fsdp_status status, const char *text, int except)
{
    failure_note note = {.rank = rank, .status = status};
    snprintf(note.text, sizeof note.text, "%s", text);
    meeting_send(r->config.meeting, WATCHDOG_FAILURE, &note, sizeof note, except);
    meeting_flush(r->config.meeting, 0.5);
}

void watchdog_fail(watchdog *r, fsdp_status status, const char *text)
{
    tell(r, r->config.rank, status, text, -1);
}

static void fail_here(watchdog *r, const failure_note *note)
{
    char text[WATCHDOG_TEXT_BYTES + 64];
    if (r->failed)
        return;
    r->failed = true;
    if (note->rank >= 0)
        snprintf(text, sizeof text, "stopped because rank %d failed: %.*s", note->rank, WATCHDOG_TEXT_BYTES - 1,
                 note->text);
    else
        snprintf(text, sizeof text, "%.*s", WATCHDOG_TEXT_BYTES - 1, note->text);
    r->config.fail(r->config.context, (fsdp_status)note->status, text);
}

/* Rank 0 found it: all others are told first. */
static void fail_all(watchdog *r, int rank, fsdp_status status, const char *text, int except)
{
    failure_note note = {.rank = rank, .status = status};
    if (r->failed)
        return;
    snprintf(note.text, sizeof note.text, "%s", text);
    tell(r, rank, status, note.text, except);
    fail_here(r, &note);
}

/* ---- rank 0 ---- */

/* The verdict of one entry into the book. */
#define JUDGE(r, entry)                                                                                                \
    do {                                                                                                               \
        pthread_mutex_lock(&(r)->lock);                                                                                \
        fsdp_status verdict = entry;                                                                                   \
        pthread_mutex_unlock(&(r)->lock);                                                                              \
        if (verdict != FSDP_OK)                                                                                        \
            fail_all(r, -1, verdict, plain_error(r), -1);                                                              \
    } while (0)

static void enter_calls(watchdog *r, int rank, const char *body, size_t bytes)
{
    ledger_call call;
    for (size_t at = 0; at + sizeof call <= bytes && !r->failed; at += sizeof call) {
        memcpy(&call, body + at, sizeof call);
        call.what.unit[sizeof call.what.unit - 1] = call.what.label[sizeof call.what.label - 1] = 0;
        JUDGE(r, ledger_add(r->ledger, rank, &call, clock_seconds()));
    }
}

/* Body: serial number, members... */
static void enter_group(watchdog *r, const char *body, size_t bytes)
{
    int32_t serial;
    size_t n = bytes / sizeof serial;
    int32_t *numbers = n > 1 ? malloc(bytes) : NULL;
    if (!numbers)
        return;
    memcpy(numbers, body, n * sizeof serial);
    JUDGE(r, ledger_add_group(r->ledger, numbers[0], numbers + 1, (int)n - 1));
    free(numbers);
}

static void rank_is_gone(watchdog *r, const meeting_message *m)
{
    char text[WATCHDOG_TEXT_BYTES], place[256] = "";
    if (m->kind == MEET_LEFT && r->ledger)
        JUDGE(r, ledger_leave(r->ledger, m->rank));
    r->alone |= m->kind == MEET_LEFT && !r->ledger;
    if (m->kind != MEET_LOST || r->alone)
        return;
    if (r->config.place)
        r->config.place(r->config.context, m->rank, place, sizeof place);
    else if (r->ledger)
        ledger_place(r->ledger, m->rank, place, sizeof place);
    snprintf(text, sizeof text, "its connection broke: the process ended without a word%s%s", place[0] ? "; it " : "",
             place);
    fail_all(r, m->rank, FSDP_ERR_PEER, text, m->rank);
}

static void listen(void *context, const meeting_message *m)
{
    watchdog *r = context;
    failure_note note;
    switch (m->kind) {
    case WATCHDOG_GROUP:
        if (r->ledger)
            enter_group(r, m->body, m->bytes);
        break;
    case WATCHDOG_CALLS:
        if (r->ledger)
            enter_calls(r, m->rank, m->body, m->bytes);
        break;
    case WATCHDOG_FAILURE:
        if (m->bytes != sizeof note)
            break;
        memcpy(&note, m->body, sizeof note);
        note.text[sizeof note.text - 1] = 0;
        if (note.status == FSDP_OK || strcmp(fsdp_status_name((fsdp_status)note.status), "unknown") == 0)
            note.status = FSDP_ERR_PEER;
        if (r->ledger && !r->failed)
            tell(r, note.rank, (fsdp_status)note.status, note.text, m->rank);
        fail_here(r, &note);
        break;
    default:
        rank_is_gone(r, m);
    }
}

/* ---- the thread ---- */

/* What was called since the last time goes out in one message, or into the book. */
static void send_calls(watchdog *r)
{
    pthread_mutex_lock(&r->lock);
    ledger_call *calls = r->calls;
    size_t n = r->n_calls;
    r->calls = NULL;
    r->n_calls = r->room = 0;
    pthread_mutex_unlock(&r->lock);
    if (n && r->ledger)
        enter_calls(r, 0, (const char *)calls, n * sizeof *calls);
    for (size_t at = 0; at < n && !r->ledger; at += CALLS_AT_ONCE)
        meeting_send(r->config.meeting, WATCHDOG_CALLS, calls + at,
                     (n - at < CALLS_AT_ONCE ? n - at : CALLS_AT_ONCE) * sizeof *calls, -1);
    free(calls);
}

void watchdog_round(watchdog *r, int milliseconds)
{
    send_calls(r);
    meeting_listen(r->config.meeting, milliseconds, listen, r);
    if (r->ledger && !r->failed)
        JUDGE(r, ledger_check(r->ledger, clock_seconds(), r->config.timeout_seconds));
    if (r->config.tick && !r->failed)
        r->config.tick(r->config.context);
}

static void *watchdog_main(void *argument)
{
    watchdog *r = argument;
    while (!atomic_load(&r->stop) && !r->failed)
        watchdog_round(r, WATCHDOG_TICK_MILLISECONDS);
    return NULL;
}

fsdp_status watchdog_open(const watchdog_config *config, watchdog **out)
{
    watchdog *r = calloc(1, sizeof *r);
    if (r && config->rank == 0)
        r->ledger = ledger_new(config->world_size);
    if (!r || (config->rank == 0 && !r->ledger)) {
        free(r);
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", config->world_size);
    }
    r->config = *config;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return FSDP_OK;
}

fsdp_status watchdog_begin(watchdog *r)
{
    int error = pthread_create(&r->thread, NULL, watchdog_main, r);
    if (error)
        return error_set(FSDP_ERR_MEMORY, "cannot start the thread that calls the watchdog: %s", strerror(error));
    r->running = true;
    return FSDP_OK;
}

void watchdog_end(watchdog *r)
{
    atomic_store(&r->stop, true);
    if (r->running)
        pthread_join(r->thread, NULL);
    r->running = false;
}

void watchdog_close(watchdog *r)
{
    if (!r)
        return;
    watchdog_end(r);
    if (!r->ledger)
        send_calls(r); /* rank 0 may not have compared them yet */
    meeting_flush(r->config.meeting, 0.5);
    ledger_free(r->ledger);
    pthread_mutex_destroy(&r->lock);
    free(r->calls);
    free(r);
}

/* ---- the caller ---- */

fsdp_status watchdog_group(watchdog *r, int serial, const int *members, int n)
{
    int32_t *numbers = malloc(((size_t)n + 1) * sizeof *numbers);
    if (!numbers)
        return error_set(FSDP_ERR_MEMORY, "no memory to announce a group of %d ranks", n);
    numbers[0] = serial;
    for (int i = 0; i < n; i++)
        numbers[i + 1] = members[i];
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&r->lock);
    if (r->ledger)
        status = ledger_add_group(r->ledger, serial, numbers + 1, n);
    else
        meeting_send(r->config.meeting, WATCHDOG_GROUP, numbers, ((size_t)n + 1) * sizeof *numbers, -1);
    pthread_mutex_unlock(&r->lock);
    free(numbers);
    return status;
}

static fsdp_status note(watchdog *r, const ledger_call *call)
{
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&r->lock);
    if (r->n_calls == r->room) {
        size_t room = r->room ? 2 * r->room : 64;
        ledger_call *grown = realloc(r->calls, room * sizeof *grown);
        if (grown) {
            r->calls = grown;
            r->room = room;
        }
    }
    if (r->n_calls < r->room)
        r->calls[r->n_calls++] = *call;
    else
        status = error_set(FSDP_ERR_MEMORY, "no memory to note what this rank calls");
    pthread_mutex_unlock(&r->lock);
    return status;
}

fsdp_status watchdog_call(watchdog *r, int serial, int first_member, uint32_t sequence, const signature *what)
{
    return note(r, &(ledger_call){.serial = serial, .first = first_member, .sequence = sequence, .what = *what});
}

fsdp_status watchdog_free_group(watchdog *r, int serial, int first_member, uint32_t sequence)
{
    return note(r, &(ledger_call){.serial = serial, .first = first_member, .sequence = sequence, .frees = 1});
}
