/* Watches over the ranks of this host: passes output and signals on, ends all when one fails, starts again where that
 * is wanted, and says how it went. Starting a single rank is left to process.c. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fsdp/launch.h>

#include "base/clock.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sized.h"
#include "launch/process.h"

enum { MOST_RANKS = 4096, NOT_FOUND = 127, NOT_RUNNABLE = 126, SIGNALLED = 128 };

/* After the last rank has ended, a process that left its group may still hold the output open: not waited for longer.
 */
static const double drain_seconds = 1.0;

/* timeout(1) signals a program and then its group: what comes again so soon is the same request. */
static const double same_request_seconds = 1.0;

typedef struct launcher {
    attempt attempt;
    keeper keeper;
    process *ranks;
    int n, signals;         /* signals: a signalfd */
    int failed;             /* index of the first rank that failed, or -1 */
    bool asked;             /* a signal to end came from outside: no restart after it */
    double asked_at[NSIG];  /* when each was last passed on; 0: never */
    double deadline;        /* when ranks that were asked to end are killed; 0: nobody was asked */
    double blocked_seconds; /* spent waiting for whoever reads our output */
    bool unread;            /* given up: what ranks still say is dropped */
} launcher;

/* ---- configuration ---- */

static fsdp_status check_config(const fsdp_launch_config *c)
{
    if (!c->command || !c->command[0])
        return error_set(FSDP_ERR_INPUT, "there is no program to run");
    if (c->n_ranks < 1 || c->n_ranks > MOST_RANKS)
        return error_set(FSDP_ERR_INPUT, "%d ranks on a host are not possible; 1 to %d are", c->n_ranks, MOST_RANKS);
    if (c->n_nodes < 1 || c->node < 0 || c->node >= c->n_nodes)
        return error_set(FSDP_ERR_INPUT, "node %d of %d is not possible; nodes count from 0", c->node, c->n_nodes);
    if (c->n_nodes > 1 && (!c->master_address || !c->master_port))
        return error_set(FSDP_ERR_INPUT, "with several nodes, the address and port of the first must be given");
    if (c->master_port < 0 || c->master_port > 65535)
        return error_set(FSDP_ERR_INPUT, "%d is not a port", c->master_port);
    if (c->max_restarts < 0 || c->grace_seconds < 0)
        return error_set(FSDP_ERR_INPUT, "restarts and grace seconds cannot be negative");
    return FSDP_OK;
}

static fsdp_status free_port(int *out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&address, length) < 0 ||
        getsockname(s, (struct sockaddr *)&address, &length) < 0) {
        fsdp_status status = error_set_errno(FSDP_ERR_IO, "cannot find a free port");
        if (s >= 0)
            close(s);
        return status;
    }
    close(s);
    *out = ntohs(address.sin_port);
    return FSDP_OK;
}

/* Address, port and token of this attempt: fresh ones each time, so that leftovers of the last cannot be met. */
static fsdp_status prepare_attempt(attempt *a)
{
    const fsdp_launch_config *c = a->config;
    const char *token = c->job_token ? c->job_token : environment_text("FSDP_JOB_TOKEN");
    a->master_address = c->master_address ? c->master_address : "127.0.0.1";
    a->master_port = c->master_port;
    if (a->master_port == 0)
        FSDP_TRY(free_port(&a->master_port));
    if (token) {
        snprintf(a->token, sizeof a->token, a->restart ? "%.100s-%d" : "%.100s", token, a->restart);
    } else if (c->n_nodes == 1) {
        uint64_t random[2] = {(uint64_t)getpid(), (uint64_t)clock_nanoseconds()};
        if (getrandom(random, sizeof random, 0) < 0)
            random[1] ^= (uint64_t)(uintptr_t)a;
        snprintf(a->token, sizeof a->token, "%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
    }
    return FSDP_OK;
}

/* ---- watching ---- */

static void signal_all(launcher *l, int signal_number, bool with_children)
{
    for (int i = 0; i < l->n; i++)
        if (l->ranks[i].running)
            process_signal(&l->ranks[i], signal_number, with_children);
}

static void ask_to_end(launcher *l, int signal_number)
{
    signal_all(l, signal_number, true);
    if (l->deadline == 0)
        l->deadline = clock_seconds() + l->attempt.config->grace_seconds;
}

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

/* Several may have ended since we looked; one killed by a signal is more likely the cause than one that exited. */
static void reap(launcher *l)
{
    int failed = -1;
    for (int i = 0; i < l->n; i++) {
        process *p = &l->ranks[i];
        if (!p->running || !reap_one(p))
            continue;
        if (has_failed(p->status) && (failed < 0 || (WIFSIGNALED(p->status) && !WIFSIGNALED(l->ranks[failed].status))))
            failed = i;
    }
    if (failed < 0 || l->failed >= 0)
        return;
    l->failed = failed;
    ask_to_end(l, SIGTERM);
}

/* A second Ctrl-C is meant for ranks that do not end. */
static void pass_request_on(launcher *l, int number)
{
    double now = clock_seconds(), before = l->asked_at[number];
    l->asked = true;
    if (before != 0 && now - before < same_request_seconds)
        return;
    l->asked_at[number] = now;
    if (number == SIGINT && before != 0)
        signal_all(l, SIGKILL, true);
    else
        ask_to_end(l, number);
}

static void take_signals(launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        int number = (int)info.ssi_signo;
        if (number == SIGUSR1 || number == SIGUSR2)
            signal_all(l, number, false);
        else if (number != SIGCHLD) /* reap() looks anyway */
            pass_request_on(l, number);
    }
}

/* Signals, ranks that have ended, and those that were asked to and did not: looked after whatever we wait for. */
static void attend(launcher *l)
{
    take_signals(l);
    reap(l);
    if (l->deadline != 0 && clock_seconds() >= l->deadline) {
        signal_all(l, SIGKILL, true);
        l->deadline = clock_seconds() + drain_seconds;
    }
}

static int count_running(const launcher *l)
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
        attend(l);
        if (!l->asked || count_running(l) > 0)
            continue;
        if (over == 0)
            over = clock_seconds() + drain_seconds;
        l->unread = clock_seconds() >= over;
    }
    l->blocked_seconds += clock_seconds() - begun;
    return !l->unread;
}

/* Waits for output, a signal or `deadline` (0: none), and passes on what came. A rank that writes without pause is
 * heard in turn with everything else. */
static void pass_on(launcher *l, struct pollfd *polls, double deadline)
{
    int n = 0;
    polls[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    for (int i = 0; i < l->n; i++) {
        polls[n++] = (struct pollfd){.fd = l->ranks[i].out.from, .events = POLLIN};
        polls[n++] = (struct pollfd){.fd = l->ranks[i].err.from, .events = POLLIN};
    }
    double left = deadline - clock_seconds();
    int limit = deadline == 0 ? -1 : left <= 0 ? 0 : (int)(left * 1000) + 1;
    if (poll(polls, (nfds_t)n, limit) < 0)
        return;
    attend(l);
    for (int i = 0; i < l->n; i++) {
        line_pipe *streams[] = {&l->ranks[i].out, &l->ranks[i].err};
        for (int k = 0; k < 2; k++)
            if (streams[k]->from >= 0 && polls[1 + 2 * i + k].revents)
                line_pipe_drain(streams[k], wait_to_write, l);
    }
}

/* To the end of all ranks, then of what they left. */
static void watch(launcher *l, struct pollfd *polls)
{
    while (count_running(l) > 0)
        pass_on(l, polls, l->deadline);
    double limit = clock_seconds() - l->blocked_seconds + drain_seconds;
    while (count_streams(l) > 0 && clock_seconds() - l->blocked_seconds < limit)
        pass_on(l, polls, clock_seconds() + drain_seconds);
}

static void close_streams(launcher *l)
{
    for (int i = 0; i < l->n; i++) {
        if (l->ranks[i].out.from >= 0)
            close(l->ranks[i].out.from);
        if (l->ranks[i].err.from >= 0)
            close(l->ranks[i].err.from);
    }
}

/* ---- one attempt ---- */

static fsdp_status start_all(launcher *l, int *exit_code)
{
    for (int i = 0; i < l->n; i++) {
        int error;
        fsdp_status status = process_start(&l->attempt, i, &l->ranks[i], &error);
        if (status != FSDP_OK) {
            *exit_code = error == ENOENT ? NOT_FOUND : error ? NOT_RUNNABLE : fsdp_exit_code(status);
            signal_all(l, SIGKILL, true);
            return status;
        }
        l->keeper.groups[i] = l->ranks[i].pid;
    }
    return FSDP_OK;
}

/* The signal that asked a rank to end, whether it obeyed at once or saved first and said so by its status; 0: none. */
static int interrupted_by(int status)
{
    static const int requests[] = {SIGINT, SIGTERM, SIGUSR1};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        if (WIFSIGNALED(status) ? WTERMSIG(status) == requests[i] : WEXITSTATUS(status) == SIGNALLED + requests[i])
            return requests[i];
    return 0;
}

static fsdp_status judge(const launcher *l, int *exit_code)
{
    *exit_code = 0;
    if (l->failed < 0)
        return FSDP_OK;
    const process *p = &l->ranks[l->failed];
    if (WIFSIGNALED(p->status)) {
        int number = WTERMSIG(p->status);
        *exit_code = SIGNALLED + number;
        return error_set(FSDP_ERR_PEER, "rank %d (process %d) was killed by signal %d (%s)", p->rank, (int)p->pid,
                         number, strsignal(number));
    }
    *exit_code = WEXITSTATUS(p->status);
    int request = interrupted_by(p->status);
    if (request)
        return error_set(FSDP_ERR_PEER,
                         "rank %d (process %d) was asked to end by signal %d (%s) and ended with status %d", p->rank,
                         (int)p->pid, request, strsignal(request), *exit_code);
    return error_set(FSDP_ERR_PEER, "rank %d (process %d) ended with status %d", p->rank, (int)p->pid, *exit_code);
}

/* Ranks that did their work, but whose output was lost, did not succeed. */
static fsdp_status judge_output(const launcher *l, int *exit_code)
{
    for (int i = 0; i < l->n; i++) {
        int out = l->ranks[i].out.refused, refused = out ? out : l->ranks[i].err.refused;
        if (refused && *exit_code == 0) {
            *exit_code = 1;
            return error_set(FSDP_ERR_IO, "what rank %d said could not be written to standard %s: %s", i,
                             out ? "output" : "error", strerror(refused));
        }
    }
    return FSDP_OK;
}

static fsdp_status run_attempt(launcher *l, struct pollfd *polls, int *exit_code)
{
    FSDP_TRY(prepare_attempt(&l->attempt));
    l->failed = -1;
    l->deadline = 0;
    for (int i = 0; i < l->n; i++) {
        process *p = &l->ranks[i];
        p->pid = 0;
        p->running = false;
        p->out.from = p->err.from = -1;
    }
    fsdp_status status = start_all(l, exit_code);
    watch(l, polls);
    memset(l->keeper.groups, 0, (size_t)l->n * sizeof *l->keeper.groups);
    close_streams(l);
    FSDP_TRY(status);
    FSDP_TRY(judge(l, exit_code));
    return judge_output(l, exit_code);
}

static fsdp_status run_attempts(launcher *l, int *exit_code)
{
    const fsdp_launch_config *config = l->attempt.config;
    struct pollfd *polls = calloc((size_t)(2 * l->n + 1), sizeof *polls);
    if (!polls)
        return error_set(FSDP_ERR_MEMORY, "no memory to watch %d ranks", l->n);
    fsdp_status status;
    for (;;) {
        status = run_attempt(l, polls, exit_code);
        if (status != FSDP_ERR_PEER || l->asked || l->attempt.restart == config->max_restarts ||
            (l->failed >= 0 && interrupted_by(l->ranks[l->failed].status)))
            break;
        l->attempt.restart++;
        log_write(FSDP_LOG_WARNING, "%s; starting all ranks again (%d of %d)", fsdp_last_error(), l->attempt.restart,
                  config->max_restarts);
    }
    free(polls);
    return status;
}

/* ---- signals ---- */

typedef struct saved_signals {
    sigset_t mask;
    struct sigaction child, broken_pipe;
} saved_signals;

static fsdp_status take_over_signals(launcher *l, saved_signals *saved)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        sigaddset(&set, taken[i]);
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

static void give_back_signals(launcher *l, const saved_signals *saved)
{
    take_signals(l); /* a signal that came at the very end was meant for ranks that are gone */
    close(l->signals);
    sigaction(SIGCHLD, &saved->child, NULL);
    sigaction(SIGPIPE, &saved->broken_pipe, NULL);
    sigprocmask(SIG_SETMASK, &saved->mask, NULL);
}

fsdp_status fsdp_launch(const fsdp_launch_config *config, int *exit_code)
{
    *exit_code = fsdp_exit_code(FSDP_ERR_INPUT);
    SIZED_READ(fsdp_launch_config, FSDP_LAUNCH_CONFIG_INIT, full, config);
    launcher l = {.attempt.config = &full, .n = full.n_ranks};
    core_list cores = {0};
    saved_signals saved;
    fsdp_status status = check_config(&full);
    *exit_code = fsdp_exit_code(status);
    if (status != FSDP_OK)
        return status;
    *exit_code = 1;
    l.ranks = calloc((size_t)l.n, sizeof *l.ranks);
    if (!l.ranks)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", l.n);
    TRY_OR(done, core_list_read(&cores));
    l.attempt.cores = &cores;
    TRY_OR(done, take_over_signals(&l, &saved));
    status = keeper_start(l.n, &l.keeper);
    if (status == FSDP_OK)
        status = run_attempts(&l, exit_code);
    keeper_stop(&l.keeper);
    give_back_signals(&l, &saved);
done:
    core_list_free(&cores);
    free(l.ranks);
    return status;
}
