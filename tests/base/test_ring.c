/* The ring keeps the newest events of all threads whole, outlives the process that wrote it, and is saved complete; the
 * laps of a thread add up to the time that passed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/record/hooks.h"
#include "base/record/laps.h"
#include "base/record/pulse.h"

enum { WRITERS = 4, WRITES = 3 * RING_EVENTS };

/* Every part of an event follows from one number, so that a mixture of two shows. */
static ring_event made(uint64_t seed)
{
    ring_event e = {.time_ns = (int64_t)seed, .bytes = (int64_t)(seed * 3), .step = (int64_t)(seed * 7)};
    snprintf(e.name, sizeof e.name, "n%llu", (unsigned long long)seed);
    snprintf(e.subject, sizeof e.subject, "s%llu", (unsigned long long)seed);
    return e;
}

static bool is_made(const ring_event *e)
{
    ring_event whole = made((uint64_t)e->time_ns);
    return e->bytes == whole.bytes && e->step == whole.step && strcmp(e->name, whole.name) == 0 &&
           strcmp(e->subject, whole.subject) == 0;
}

/* From front to end, as write(2) of a file reads; false: it was being written. */
static bool read_event(const ring *r, int i, ring_event *out)
{
    uint64_t words[RING_WORDS];
    for (int k = 0; k < RING_WORDS; k++)
        words[k] = atomic_load_explicit(&r->events[i][k], memory_order_acquire);
    memcpy(out, words, sizeof *out);
    return out->number != 0 && out->number == out->same_number;
}

static void *write_many(void *context)
{
    static _Atomic uint64_t seed;
    for (int i = 0; i < WRITES; i++) {
        ring_event e = made(atomic_fetch_add(&seed, 1));
        ring_write(context, &e);
    }
    return NULL;
}

static void events_of_many_threads_stay_whole(void **state)
{
    (void)state;
    ring *r = calloc(1, sizeof *r);
    pthread_t threads[WRITERS];
    ring_event e;
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, r), 0);
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < RING_EVENTS; i++)
            if (read_event(r, i, &e))
                assert_true(is_made(&e));
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    uint64_t total = (uint64_t)WRITERS * WRITES;
    assert_int_equal(r->next, total);
    int newest = 0;
    for (int i = 0; i < RING_EVENTS; i++) {
        assert_true(read_event(r, i, &e));
        assert_true(is_made(&e));
        assert_true(e.number <= total);
        newest += e.number > total - RING_EVENTS;
    }
    assert_true(newest >= RING_EVENTS - WRITERS); /* one that was held up for a whole turn may keep one out */
    free(r);
}

static int shared_memory(size_t bytes)
{
    char name[] = "/tmp/fsdp-ring-XXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

/* As a launcher sees it: the second of three ranks is killed without a word. */
static void a_killed_process_leaves_its_events(void **state)
{
    enum { RANKS = 3, RANK = 1 };
    size_t bytes = ring_offset(RANKS) + RANKS * sizeof(ring);
    int fd = shared_memory(bytes), status;
    char text[64];
    (void)state;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    const ring *rings = (const ring *)(const void *)(memory + ring_offset(RANKS));
    snprintf(text, sizeof text, "%d:%d:%d", fd, RANK, RANKS);
    pid_t child = fork();
    if (child == 0) {
        setenv("FSDP_PULSE", text, 1);
        ring_open(RANK, RANKS);
        crash_note_step(12);
        hook_call call = {.slot = 0, .serial = 0, .first = 0, .sequence = 7};
        HOOK_CALL(HOOK_COLLECTIVE, HOOK_BEGIN, "all_gather", "layers.3", 4096, 1, &call);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    const ring *r = &rings[RANK];
    ring_event e;
    assert_true(r->magic == RING_MAGIC && r->rank == RANK && r->world_size == RANKS && r->process == child);
    assert_int_equal(r->next, 1);
    assert_true(read_event(r, 0, &e));
    assert_string_equal(e.name, "all_gather");
    assert_string_equal(e.subject, "layers.3");
    assert_true(e.sequence == 7 && e.bytes == 4096 && e.step == 12 && e.moment == HOOK_BEGIN);
    assert_int_equal(r->groups[0].begun, 7);
    assert_int_equal(rings[0].magic, 0);
    assert_int_equal(rings[2].magic, 0);
    munmap(memory, bytes);
    close(fd);
}

/* Events are written while the signal comes again and again: the file is always whole. */
static void a_signal_writes_the_file_while_work_goes_on(void **state)
{
    char folder[] = "/tmp/fsdp-ring-XXXXXX", *path, *text;
    size_t bytes;
    int status;
    (void)state;
    assert_non_null(mkdtemp(folder));
    path = file_join(folder, "flight-5.bin");
    pid_t child = fork();
    if (child == 0) {
        unsetenv("FSDP_FLIGHT_DIR");
        ring_open(5, 8);
        ring_set_folder(folder);
        ring_save_on_signal();
        for (;;)
            HOOK(HOOK_PHASE, HOOK_BEGIN, "data", NULL, 0, 0);
    }
    for (int i = 0; i < 2000 && !file_exists(path); i++) { /* it may not listen yet: the first signal would end it */
        char line[256];
        snprintf(line, sizeof line, "/proc/%d/status", (int)child);
        FILE *f = fopen(line, "r");
        unsigned long long caught = 0;
        while (f && fgets(line, sizeof line, f))
            sscanf(line, "SigCgt: %llx", &caught);
        if (f)
            fclose(f);
        if (caught >> (SIGUSR2 - 1) & 1)
            kill(child, SIGUSR2);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    for (int i = 0; i < 20; i++) {
        kill(child, SIGUSR2);
        assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
        assert_int_equal(bytes, sizeof(ring));
        assert_int_equal(((const ring *)(const void *)text)->rank, 5);
        free(text);
    }
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(file_remove_tree(folder), FSDP_OK);
    free(path);
}

static void pass(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

static void laps_add_up_to_the_time_that_passed(void **state)
{
    int64_t laps[LAP_COUNT], sum = 0;
    (void)state;
    ring_open(0, 1);
    int64_t before = clock_nanoseconds();
    laps_begin();
    int64_t begun = clock_nanoseconds();
    HOOK(HOOK_PHASE, HOOK_BEGIN, "forward", NULL, 0, 0);
    pass(4);
    HOOK(HOOK_WAIT, HOOK_BEGIN, "all_gather", "layers.1", 0, 0);
    pass(8);
    HOOK(HOOK_WAIT, HOOK_END, "all_gather", "layers.1", 0, 0);
    HOOK(HOOK_PHASE, HOOK_END, "forward", NULL, 0, 0);
    HOOK(HOOK_PHASE, HOOK_BEGIN, "checkpoint", NULL, 0, 0);
    pass(2);
    HOOK(HOOK_PHASE, HOOK_END, "checkpoint", NULL, 0, 0);
    HOOK(HOOK_PHASE, HOOK_BEGIN, "update in host memory", NULL, 0, 2); /* beside the work: takes none of its time */
    pass(1);
    int64_t passed = clock_nanoseconds() - begun;
    laps_take(laps);
    int64_t after = clock_nanoseconds();
    laps_end();
    for (int i = 0; i < LAP_COUNT; i++)
        sum += laps[i];
    assert_true(laps[LAP_FORWARD] >= 4000000 && laps[LAP_ALL_GATHER] >= 8000000 && laps[LAP_SAVE] >= 2000000 &&
                laps[LAP_OTHER] >= 1000000);
    assert_true(laps[LAP_DATA] == 0 && laps[LAP_BACKWARD] == 0 && laps[LAP_EXCHANGE] == 0);
    assert_true(sum >= passed && sum <= after - before);
    laps_take(laps);
    assert_int_equal(laps[LAP_FORWARD], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_of_many_threads_stay_whole),
        cmocka_unit_test(a_killed_process_leaves_its_events),
        cmocka_unit_test(a_signal_writes_the_file_while_work_goes_on),
        cmocka_unit_test(laps_add_up_to_the_time_that_passed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
