/* Looks after processes. */
#include "launch/watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/host/core_wait.h"
#include "base/log.h"

enum { SIGNALLED = 128, MISUSED = 2 };

/* After the last rank has ended, a process that left its group may still hold the output open: not waited for longer.
 */
static const double drain_seconds = 1.0;

/* timeout(1) signals a program and then its group: what comes again so soon is the same request. */
static const double same_request_seconds = 1.0;

/* A hung rank may take so long to print its backtrace. */
static const double examine_seconds = 2.0;

/* Launchers that say nothing for long are given up by the store. */
static const double beat_seconds = 1;

/* ---- signals to ranks ---- */

void watch_signal_all(launcher *l, int signal_number, bool with_children)
{
    for (int i = 0; i < l->n; i++)
        if (l->ranks[i].running)
            process_signal(&l->ranks[i], signal_number, with_children);
}

void watch_ask_to_end(launcher *l, int signal_number, double grace)
{
    double end = clock_seconds() + grace;
    watch_signal_all(l, signal_number, true);
    if (l->deadline == 0 || end < l->deadline)
        l->deadline = end;
}

/* ---- ranks that end ---- */

static bool has_failed(int status)
{
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* What a rank leaves running ends with it. Its group is killed before it is reaped: until then its number is taken. */
static bool reap_one(process *p)
{
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid != p->pid)
        return false;
    process_signal(p, SIGKILL, true);
    waitpid(p->pid, &p->status, 0);
    p->running = false;
    return true;
}

/* How likely a rank that ended so is the cause of what others ended with: a signal comes from outside, bad input is
 * found by the rank itself, and most others fail because a rank is gone. */
static int blame(int status)
{
    return WIFSIGNALED(status) ? 3 : WEXITSTATUS(status) == MISUSED ? 2 : 1;
}

/* Several may have ended since we looked. Those that we asked to end are no failure. */
static void reap(launcher *l)
{
    int failed = -1;
    bool ours = l->deadline != 0;
    for (int i = 0; i < l->n; i++) {
        process *p = &l->ranks[i];
        if (!p->running || !reap_one(p))
            continue;
        if (has_failed(p->status) && (failed < 0 || blame(p->status) > blame(l->ranks[failed].status)))
            failed = i;
    }
    if (failed >= 0 && l->failed < 0 && (!ours || l->asked))
        l->failed = failed;
}

int watch_interrupted_by(int status)
{
    static const int requests[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        if (WIFSIGNALED(status) ? WTERMSIG(status) == requests[i] : WEXITSTATUS(status) == SIGNALLED + requests[i])
            return requests[i];
    return 0;
}

bool watch_is_final(int status)
{
    return watch_interrupted_by(status) != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == MISUSED);
}

/* Why a rank that ended so is not started again; "" where nobody would expect it. */
static const char *why_final(const launcher *l, int status)
{
    if (l->attempt.config->max_restarts == 0 || l->asked || !watch_is_final(status))
        return "";
    return watch_interrupted_by(status) ? "; a rank that was asked to end is not restarted"
                                        : "; status 2 means bad input, so there is no restart";
}

/* Processes that the kernel has killed for want of memory; -1: it does not say. */
static long count_oom_kills(void)
{
    char words[128];
    long n = -1;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file && fgets(words, sizeof words, file))
        if (sscanf(words, "oom_kill %ld", &n) == 1)
            break;
    if (file)
        fclose(file);
    return n;
}

void watch_describe_failure(const launcher *l, char *text, size_t bytes, int *exit_code)
{
    const process *p = &l->ranks[l->failed];
    char place[PULSE_TEXT_BYTES], how[128], flights[WATCH_FLIGHTS_BYTES] = "";
    pulse_text(&l->pulses[l->failed], place);
    int request = watch_interrupted_by(p->status);
    if (WIFSIGNALED(p->status)) {
        int number = WTERMSIG(p->status);
        *exit_code = SIGNALLED + number;
        bool memory = number == SIGKILL && l->oom_kills >= 0 && count_oom_kills() > l->oom_kills;
        snprintf(how, sizeof how, "was killed by signal %d (%s%s)", number, strsignal(number),
                 memory ? "; the kernel ended a process because memory ran out" : "");
    } else {
        *exit_code = WEXITSTATUS(p->status);
        if (request)
            snprintf(how, sizeof how, "was asked to end by signal %d (%s) and ended with status %d", request,
                     strsignal(request), *exit_code);
        else
            snprintf(how, sizeof how, "ended with status %d", *exit_code);
    }
    if (!request)
        watch_describe_flights(l, flights, sizeof flights);
    snprintf(text, bytes, "rank %d (process %d) %s%s%s%s%s", p->rank, (int)p->pid, how, why_final(l, p->status),
             place[0] && !request ? "; last at " : "", request ? "" : place, flights);
}

/* The ring is the rank's to write: nothing in it is trusted further than this. */
static bool has_flight(const launcher *l, int i)
{
    const ring *r = &l->rings[i];
    return atomic_load(&r->magic) == RING_MAGIC && memchr(r->folder, 0, sizeof r->folder) && r->folder[0];
}

/* By a signal, or a debugger. */
static bool is_stopped(const launcher *l, int local_rank)
{
    const process *p = &l->ranks[local_rank];
    char state = p->running ? core_wait_state(p->pid) : 0;
    return state == 'T' || state == 't';
}

static void set_reason(const launcher *l, int i)
{
    const process *p = &l->ranks[i];
    char text[128];
    if (is_stopped(l, i))
        snprintf(text, sizeof text, "stopped by a signal, or a debugger");
    else if (!p->running && WIFSIGNALED(p->status))
        snprintf(text, sizeof text, "killed by signal %d (%s)", WTERMSIG(p->status), strsignal(WTERMSIG(p->status)));
    else
        return;
    ring_set_reason(&l->rings[i], text);
}

void watch_save_flights(launcher *l)
{
    for (int i = 0; i < l->n; i++) {
        ring *r = &l->rings[i];
        if (l->saved[i] || !has_flight(l, i))
            continue;
        l->saved[i] = true;
        set_reason(l, i);
        if (atomic_load(&r->n_files) == 0 && !ring_save(r, r->folder))
            log_write(FSDP_LOG_WARNING, "rank %d: the last events could not be written to %s: %s", l->ranks[i].rank,
                      r->folder, strerror(errno));
    }
}

const char *watch_flights_folder(const launcher *l)
{
    for (int i = 0; l->rings && i < l->n; i++)
        if (has_flight(l, i))
            return l->rings[i].folder;
    return "";
}

void watch_describe_flights(const launcher *l, char *text, size_t bytes)
{
    const char *folder = watch_flights_folder(l);
    text[0] = 0;
    if (folder[0])
        snprintf(text, bytes, "; `fsdp debug %s` says where every rank was", folder);
}

/* One that is stopped hears nothing before it is continued. */
void watch_examine(launcher *l, int local_rank)
{
    process *p = &l->ranks[local_rank];
    if (local_rank < 0 || local_rank >= l->n || !p->running)
        return;
    process_signal(p, SIGABRT, false);
    process_signal(p, SIGCONT, true);
    double end = clock_seconds() + examine_seconds;
    while (p->running && clock_seconds() < end)
        watch_wait(l, 0.05);
    if (p->running)
        process_signal(p, SIGKILL, true);
}

/* ---- signals to us ---- */

/* A second Ctrl-C is meant for ranks that do not end. */
static void pass_request_on(launcher *l, int number)
{
    double now = clock_seconds(), before = l->asked_at[number];
    l->asked = number;
    if (before != 0 && now - before < same_request_seconds)
        return;
    l->asked_at[number] = now;
    if (number == SIGINT && before != 0) {
        log_write(FSDP_LOG_WARNING, "second Ctrl-C: all ranks are killed, nothing more is saved");
        watch_signal_all(l, SIGKILL, true);
        return;
    }
    if (number == SIGINT && watch_count_running(l) > 0)
        log_write(FSDP_LOG_WARNING, "Ctrl-C: the ranks are asked to save and end; Ctrl-C again kills them at once");
    watch_ask_to_end(l, number, l->attempt.config->grace_seconds);
}

static void take_signals(launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == SIGUSR1 || number == SIGUSR2)
            watch_signal_all(l, number, false);
        else if (number != SIGCHLD) /* reap() looks anyway */
            pass_request_on(l, number);
    }
}

/* "SIGTERM,SIGUSR1", with or without SIG. */
static fsdp_status read_signals(const char *text, sigset_t *out)
{
    static const struct {
        const char *name;
        int number;
    } known[] = {{"INT", SIGINT},   {"TERM", SIGTERM}, {"HUP", SIGHUP},
                 {"QUIT", SIGQUIT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
    enum { N_KNOWN = sizeof known / sizeof *known };
    sigemptyset(out);
    for (const char *at = text; *(at += strspn(at, " "));) {
        size_t n = strcspn(at, ", "), front = strncmp(at, "SIG", 3) == 0 ? 3 : 0;
        int which = 0;
        while (which < N_KNOWN &&
               (strlen(known[which].name) != n - front || strncmp(at + front, known[which].name, n - front) != 0))
            which++;
        if (which == N_KNOWN)
            return error_set(FSDP_ERR_INPUT,
                             "--signals_to_handle: %.*s cannot be passed on; SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 "
                             "and SIGUSR2 can",
                             (int)n, at);
        sigaddset(out, known[which].number);
        at += n;
        at += strspn(at, " ");
        at += *at == ',';
    }
    return FSDP_OK;
}

fsdp_status watch_take_signals(launcher *l, saved_signals *saved)
{
    const char *asked = l->attempt.config->signals;
    sigset_t set;
    FSDP_TRY(read_signals(asked ? asked : "INT,TERM,HUP,USR1,USR2", &set));
    sigaddset(&set, SIGCHLD);
    l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->signals < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot listen to signals");
    struct sigaction standard = {.sa_handler = SIG_DFL}, ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGCHLD, &standard, &saved->child); /* ignored, it would lose us the ranks' statuses */
    sigaction(SIGPIPE, &ignored, &saved->broken_pipe);
    sigprocmask(SIG_BLOCK, &set, &saved->mask);
    l->attempt.mask = saved->mask;
    return FSDP_OK;
}

void watch_give_signals_back(launcher *l, const saved_signals *saved)
{
    take_signals(l); /* a signal that came at the very end was meant for ranks that are gone */
    close(l->signals);
    sigaction(SIGCHLD, &saved->child, NULL);
    sigaction(SIGPIPE, &saved->broken_pipe, NULL);
    sigprocmask(SIG_SETMASK, &saved->mask, NULL);
}

void watch_attend(launcher *l)
{
    take_signals(l);
    reap(l);
    if (l->deadline != 0 && clock_seconds() >= l->deadline) {
        watch_signal_all(l, SIGKILL, true);
        l->deadline = clock_seconds() + drain_seconds;
    }
}

/* ---- the team ---- */

/* Where the ranks are; without a watchdog only that we are. */
void watch_beat(launcher *l)
{
    wire_body body = {0};
    if (clock_seconds() < l->next_beat)
        return;
    l->next_beat = clock_seconds() + beat_seconds;
    int n = l->attempt.config->watchdog_seconds > 0 ? l->n : 0;
    wire_put_i32(&body, l->attempt.place.round);
    wire_put_i32(&body, n);
    for (int i = 0; i < n; i++) {
        char place[PULSE_TEXT_BYTES], text[ROUNDS_PLACE_BYTES];
        const pulse *at = &l->pulses[i];
        bool stopped = is_stopped(l, i);
        wire_put_i64(&body, l->ranks[i].running ? (int64_t)atomic_load(&at->beats) : 0);
        wire_put_i64(&body, atomic_load(&at->step));
        int own = atomic_load(&at->process); /* a rank may be started by a script */
        wire_put_i64(&body, l->ranks[i].running ? core_watch_look(&l->ranks[i].core, own ? own : l->ranks[i].pid) : 0);
        wire_put_u32(&body, atomic_load(&at->waits) && !stopped);
        snprintf(text, sizeof text, "%.300s%s", pulse_text(at, place), stopped ? ", stopped" : "");
        wire_put_text(&body, text);
    }
    team_beat(&l->team, &body);
    wire_free(&body);
}

/* ---- output ---- */

int watch_count_running(const launcher *l)
{
    int n = 0;
    for (int i = 0; i < l->n; i++)
        n += l->ranks[i].running;
    return n;
}

static int count_streams(const launcher *l)
{
    int n = 0;
    for (int i = 0; i < l->n; i++)
        n += (l->ranks[i].out.from >= 0) + (l->ranks[i].err.from >= 0);
    return n;
}

/* Whoever reads our output may stand still: then so do the ranks, but we still hear what is asked of us. Once somebody
 * asked for an end and the ranks are gone, output that is not taken is dropped. */
static bool wait_to_write(void *context, int fd)
{
    launcher *l = context;
    struct pollfd polls[] = {{.fd = fd, .events = POLLOUT}, {.fd = l->signals, .events = POLLIN}};
    double begun = clock_seconds(), over = 0;
    while (!l->unread && poll(polls, 2, (int)(drain_seconds * 100)) >= 0 && !polls[0].revents) {
        watch_attend(l);
        watch_beat(l);
        if (!l->asked || watch_count_running(l) > 0)
            continue;
        if (over == 0)
            over = clock_seconds() + drain_seconds;
        l->unread = clock_seconds() >= over;
    }
    l->blocked_seconds += clock_seconds() - begun;
    return !l->unread;
}

void watch_wait(launcher *l, double seconds)
{
    int n = 0;
    double left = l->deadline == 0 ? seconds : l->deadline - clock_seconds();
    left = left < seconds ? left : seconds;
    l->polls[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    l->polls[n++] = (struct pollfd){.fd = team_socket(&l->team), .events = POLLIN};
    for (int i = 0; i < l->n; i++) {
        l->polls[n++] = (struct pollfd){.fd = l->ranks[i].out.from, .events = POLLIN};
        l->polls[n++] = (struct pollfd){.fd = l->ranks[i].err.from, .events = POLLIN};
    }
    if (poll(l->polls, (nfds_t)n, left <= 0 ? 0 : (int)(left * 1000) + 1) < 0)
        return;
    watch_attend(l);
    for (int i = 0; i < l->n; i++) {
        line_pipe *streams[] = {&l->ranks[i].out, &l->ranks[i].err};
        for (int k = 0; k < 2; k++)
            if (streams[k]->from >= 0 && l->polls[2 + 2 * i + k].revents)
                line_pipe_drain(streams[k], wait_to_write, l);
    }
}

void watch_begin(launcher *l)
{
    l->failed = -1;
    l->deadline = 0;
    l->oom_kills = count_oom_kills();
    memset(l->pulses, 0, (size_t)l->n * sizeof *l->pulses);
    if (l->rings && madvise(l->rings, (size_t)l->n * sizeof *l->rings, MADV_REMOVE) < 0) /* pages unused cost nothing */
        memset(l->rings, 0, (size_t)l->n * sizeof *l->rings);
    memset(l->saved, 0, (size_t)l->n * sizeof *l->saved);
    for (int i = 0; i < l->n; i++) {
        process *p = &l->ranks[i];
        p->pid = 0;
        p->running = false;
        p->out.from = p->err.from = p->out.file = p->err.file = -1;
    }
}

static void close_stream(line_pipe *p)
{
    if (p->from >= 0)
        close(p->from);
    if (p->file >= 0)
        close(p->file);
    p->from = p->file = -1;
}

void watch_drain(launcher *l)
{
    double limit = clock_seconds() - l->blocked_seconds + drain_seconds;
    while (count_streams(l) > 0 && clock_seconds() - l->blocked_seconds < limit)
        watch_wait(l, drain_seconds);
    for (int i = 0; i < l->n; i++) {
        close_stream(&l->ranks[i].out);
        close_stream(&l->ranks[i].err);
    }
    memset(l->keeper.groups, 0, (size_t)l->n * sizeof *l->keeper.groups);
}
