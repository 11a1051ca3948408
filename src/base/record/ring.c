/* The memory of events: taking it up, writing to it, saving it. What may run in a signal handler calls only what is
 * safe there. */
#include "base/record/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host/environment.h"
#include "base/record/pulse.h"

_Static_assert(sizeof(ring_event) == 128, "an event is 16 words");
_Static_assert(sizeof(_Atomic uint64_t) == sizeof(uint64_t), "words can be written as they are");

enum { PAGE_BYTES = 4096 };

#define BEING_WRITTEN UINT64_MAX /* instead of the number at the end of an event; above all numbers */

static ring *_Atomic own;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

ring *ring_own(void)
{
    return atomic_load_explicit(&own, memory_order_acquire);
}

size_t ring_offset(int n)
{
    size_t bytes = (size_t)n * sizeof(pulse);
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* The launcher's memory for us; NULL: there is none. */
static ring *map_given(void)
{
    const char *text = environment_text("FSDP_PULSE");
    struct stat found;
    int fd, number, count;
    if (!text || sscanf(text, "%d:%d:%d", &fd, &number, &count) != 3 || number < 0 || number >= count)
        return NULL;
    size_t at = ring_offset(count) + (size_t)number * sizeof(ring), page = at / PAGE_BYTES * PAGE_BYTES;
    if (fstat(fd, &found) < 0 || !S_ISREG(found.st_mode) || (uint64_t)found.st_size < at + sizeof(ring))
        return NULL; /* the descriptor is another's by now: a program in between has closed ours */
    uint8_t *memory = mmap(NULL, at - page + sizeof(ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)page);
    return memory == MAP_FAILED ? NULL : (ring *)(void *)(memory + (at - page));
}

static ring *map_own(void)
{
    void *memory = mmap(NULL, sizeof(ring), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int64_t real_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void take_up(ring *r)
{
    r->version = RING_VERSION;
    r->header_bytes = offsetof(ring, events);
    r->event_bytes = sizeof(ring_event);
    r->n_events = RING_EVENTS;
    r->process = getpid();
    r->taken_ns = clock_nanoseconds();
    r->taken_at = real_nanoseconds();
    if (gethostname(r->host, sizeof r->host - 1) < 0)
        r->host[0] = 0;
}

void ring_open(int rank, int world_size)
{
    pthread_mutex_lock(&opening);
    ring *r = ring_own();
    if (!r) {
        r = map_given();
        if (!r)
            r = map_own();
        if (r)
            take_up(r);
    } else if (r->process != getpid()) { /* a child of fork: its parent's ring is not its own */
        r = map_own();
        if (r)
            take_up(r);
    }
    if (r) {
        r->rank = rank;
        r->world_size = world_size;
        atomic_store(&r->magic, RING_MAGIC);
    }
    atomic_store(&own, r);
    pthread_mutex_unlock(&opening);
    const char *folder = environment_text("FSDP_FLIGHT_DIR");
    if (folder)
        ring_set_folder(folder);
}

void ring_set_folder(const char *folder)
{
    ring *r = ring_own();
    const char *named = environment_text("FSDP_FLIGHT_DIR");
    char full[RING_FOLDER_BYTES], here[RING_FOLDER_BYTES / 2];
    if (!r)
        return;
    folder = named ? named : folder;
    bool relative = folder[0] != '/' && getcwd(here, sizeof here); /* the launcher's folder may be another */
    int n = snprintf(full, sizeof full, "%s%s%s", relative ? here : "", relative ? "/" : "", folder);
    if (n > 0 && n < (int)sizeof full)
        memcpy(r->folder, full, (size_t)n + 1);
}

void ring_set_group(ring *r, int slot, int serial, int first, int size, const char *name)
{
    if (!r || slot < 0 || slot >= RING_GROUPS)
        return;
    ring_group *g = &r->groups[slot];
    atomic_store(&g->size, 0);
    atomic_store(&g->serial, serial);
    atomic_store(&g->first, first);
    atomic_store(&g->called, 0);
    atomic_store(&g->begun, 0);
    atomic_store(&g->ended, 0);
    memset(g->name, 0, sizeof g->name);
    memcpy(g->name, name, strnlen(name, sizeof g->name - 1));
    atomic_store(&g->size, size);
}

/* The number at the end goes first and comes last: whoever reads from front to end while this is written sees two
 * numbers that differ. A thread that was held up for a whole turn of the ring finds its place taken by a newer event,
 * or is still in it when the next one comes: of the two, the event that comes second is left out. */
void ring_write(ring *r, const ring_event *e)
{
    uint64_t number = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed), words[RING_WORDS];
    _Atomic uint64_t *to = r->events[number % RING_EVENTS];
    uint64_t before = atomic_load_explicit(&to[RING_WORDS - 1], memory_order_relaxed);
    if (before > number || !atomic_compare_exchange_strong(&to[RING_WORDS - 1], &before, BEING_WRITTEN))
        return;
    memcpy(words, e, sizeof words);
    atomic_thread_fence(memory_order_release);
    for (int i = 1; i < RING_WORDS - 1; i++)
        atomic_store_explicit(&to[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&to[0], number + 1, memory_order_release);
    atomic_store_explicit(&to[RING_WORDS - 1], number + 1, memory_order_release);
}

/* ---- files ---- */

static size_t say(char *path, size_t at, const char *text)
{
    while (*text && at + 1 < PAGE_BYTES)
        path[at++] = *text++;
    path[at] = 0;
    return at;
}

static size_t say_number(char *path, size_t at, int value)
{
    char digits[16];
    size_t n = sizeof digits;
    digits[--n] = 0;
    do
        digits[--n] = (char)('0' + value % 10);
    while (value /= 10);
    return say(path, at, digits + n);
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool ring_save(ring *r, const char *folder)
{
    char path[PAGE_BYTES], temporary[PAGE_BYTES];
    size_t at = say(path, 0, folder);
    at = say(path, at, "/flight-");
    at = say_number(path, at, r->rank < 0 ? 0 : r->rank);
    say(path, at, ".bin");
    at = say(temporary, 0, path);
    at = say(temporary, at, ".tmp.");
    say_number(temporary, at, (int)getpid());
    atomic_store(&r->written_ns, clock_nanoseconds());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    bool whole = write_all(fd, r, sizeof *r);
    whole = close(fd) == 0 && whole && rename(temporary, path) == 0;
    if (!whole) {
        int error = errno;
        unlink(temporary);
        errno = error;
    }
    return whole;
}

void ring_set_reason(ring *r, const char *reason)
{
    if (!r->reason[0])
        memcpy(r->reason, reason, strnlen(reason, sizeof r->reason - 1));
}

void ring_save_own(const char *reason)
{
    ring *r = ring_own();
    if (r && reason)
        ring_set_reason(r, reason);
    if (r && r->folder[0] && ring_save(r, r->folder))
        atomic_fetch_add(&r->n_files, 1);
}

static void on_signal(int number)
{
    int error = errno;
    (void)number;
    ring_save_own(NULL);
    errno = error;
}

void ring_save_on_signal(void)
{
    /* On the stack that crash.c sets apart: products may be under way (docs/architecture.md, signals). */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK}, old;
    if (sigaction(SIGUSR2, NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL)
        sigaction(SIGUSR2, &action, NULL);
}
