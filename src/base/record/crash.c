/* Notes what the process is doing and says it when it crashes. The handler calls only what is safe there: no memory is
 * taken, no lock, no stdio. */
#include "base/record/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/record/pulse.h"
#include "base/record/ring.h"

enum { UNIT_WORDS = 8, TEXT_BYTES = 1024, FRAMES = 64, STACK_BYTES = 256 << 10 };

/* Process-wide, because a signal handler can reach nothing else. A unit's name is kept in words, so that one that is
 * read while it is written is at worst a mixture. */
static _Atomic int64_t current_step;
static const char *_Atomic current_phase, *_Atomic current_operation, *_Atomic current_direction;
static _Atomic uint64_t current_unit[UNIT_WORDS];
static atomic_flag speaking = ATOMIC_FLAG_INIT;

void crash_note_step(int64_t step)
{
    pulse *p = pulse_own();
    atomic_store_explicit(&current_step, step, memory_order_relaxed);
    if (ring_own())
        atomic_store_explicit(&ring_own()->step, step, memory_order_relaxed);
    if (p) {
        atomic_store_explicit(&p->step, step, memory_order_relaxed);
        pulse_beat(p);
    }
}

void crash_note_phase(const char *phase)
{
    pulse *p = pulse_own();
    atomic_store_explicit(&current_phase, phase, memory_order_relaxed);
    if (p) {
        pulse_set_name(p->phase, phase);
        pulse_beat(p);
    }
}

void crash_note_operation(const char *operation, const char *direction)
{
    atomic_store_explicit(&current_operation, operation, memory_order_relaxed);
    atomic_store_explicit(&current_direction, direction, memory_order_relaxed);
    pulse *p = pulse_own();
    if (p) {
        pulse_set_name(p->operation, operation);
        pulse_beat(p);
    }
}

/* This happens at every wait: too often for printf. */
static size_t append(char *text, size_t at, size_t room, const char *more)
{
    size_t n = strnlen(more, room - 1 - at);
    memcpy(text + at, more, n);
    return at + n;
}

void crash_note_wait(const char *collective, const char *subject)
{
    pulse *p = pulse_own();
    char name[sizeof(pulse_name)] = "";
    if (!p)
        return;
    if (collective) {
        size_t n = append(name, 0, sizeof name, collective);
        if (subject)
            append(name, append(name, n, sizeof name, " of "), sizeof name, subject);
        pulse_set_name(p->collective, name);
    }
    atomic_store_explicit(&p->waits, collective != NULL, memory_order_relaxed);
    pulse_beat(p);
}

void crash_note_unit(const char *unit)
{
    uint64_t words[UNIT_WORDS] = {0};
    if (unit)
        memcpy(words, unit, strnlen(unit, sizeof words - 1));
    for (int i = 0; i < UNIT_WORDS; i++)
        atomic_store_explicit(&current_unit[i], words[i], memory_order_relaxed);
    pulse *p = pulse_own();
    if (p) {
        pulse_set_name(p->unit, unit);
        pulse_beat(p);
    }
}

/* ---- the handler ---- */

typedef struct words {
    char text[TEXT_BYTES];
    size_t n;
} words;

static void say(words *w, const char *text)
{
    while (*text && w->n < sizeof w->text)
        w->text[w->n++] = *text++;
}

static void say_number(words *w, uint64_t value, unsigned base)
{
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = 0;
    do
        digits[--at] = "0123456789abcdef"[value % base];
    while (value /= base);
    say(w, digits + at);
}

static void say_name(words *w, const char *what, const char *name)
{
    if (!name || !*name)
        return;
    say(w, what);
    say(w, name);
}

static void say_place(words *w)
{
    char unit[sizeof(uint64_t) * UNIT_WORDS + 1] = "";
    for (int i = 0; i < UNIT_WORDS; i++) {
        uint64_t part = atomic_load_explicit(&current_unit[i], memory_order_relaxed);
        memcpy(unit + sizeof part * (size_t)i, &part, sizeof part);
    }
    int64_t step = atomic_load_explicit(&current_step, memory_order_relaxed);
    const char *operation = atomic_load_explicit(&current_operation, memory_order_relaxed);
    const char *phase = atomic_load_explicit(&current_phase, memory_order_relaxed);
    if (step > 0) {
        say(w, "; step ");
        say_number(w, (uint64_t)step, 10);
    }
    say_name(w, ", phase ", phase ? phase : atomic_load_explicit(&current_direction, memory_order_relaxed));
    say_name(w, ", last operation ", operation);
    if (operation)
        say_name(w, ".", atomic_load_explicit(&current_direction, memory_order_relaxed));
    say_name(w, ", last unit ", unit);
}

static void say_signal(words *w, int number, const siginfo_t *info)
{
    const char *name = sigabbrev_np(number);
    say(w, " died of signal ");
    say_number(w, (uint64_t)number, 10);
    say(w, " (SIG");
    say(w, name ? name : "?");
    say(w, ")");
    if (info->si_code <= 0) { /* somebody sent it */
        if (info->si_pid != getpid()) {
            say(w, " from process ");
            say_number(w, (uint64_t)info->si_pid, 10);
        }
    } else if (number == SIGSEGV || number == SIGBUS) {
        say(w, " at address 0x");
        say_number(w, (uint64_t)(uintptr_t)info->si_addr, 16);
    }
    if (number == SIGBUS && info->si_code == BUS_ADRERR)
        say(w, ": a mapped file was cut short, or its disk or the machine's memory failed");
}

static void put(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t written = write(STDERR_FILENO, text, n);
        if (written <= 0)
            return;
        text += written, n -= (size_t)written;
    }
}

static void on_crash(int number, siginfo_t *info, void *context)
{
    (void)context;
    while (atomic_flag_test_and_set(&speaking))
        pause(); /* another thread reports, and ends the process when it is done */
    words w = {.n = 0};
    say(&w, "fsdp: rank ");
    say_number(&w, (uint64_t)error_rank(), 10);
    say(&w, " of ");
    say_number(&w, (uint64_t)error_world_size(), 10);
    say_signal(&w, number, info);
    say_place(&w);
    say(&w, "\nbacktrace (addr2line -e PROGRAM ADDRESS names a line):\n");
    put(w.text, w.n);
    ring_save_own("the process crashed");
    void *frames[FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
    signal(number, SIG_DFL);
    raise(number); /* blocked inside its handler: delivered when that returns */
}

void fsdp_report_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
    static _Alignas(64) char stack[STACK_BYTES]; /* an overflowed stack has no room to report */
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack}, before;
    void *frame;
    backtrace(&frame, 1); /* loads what it needs now */
    if (sigaltstack(NULL, &before) == 0 && (before.ss_flags & SS_DISABLE))
        sigaltstack(&own, NULL);
    ring_save_on_signal();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK}, old;
        if (sigaction(numbers[i], NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
}
