/* A launcher's life: joins a round, starts its ranks, tells the others how they fare, does what was decided, and says
 * how it went. Watching processes is left to watch.c, the words between launchers to team.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fsdp/launch.h>

#include "base/clock.h"
#include "base/host/environment.h"
#include "base/host/torch_variables.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sized.h"
#include "launch/watch.h"

enum { MAX_RANKS = 4096, NOT_FOUND = 127, NOT_RUNNABLE = 126, SIGNALLED = 128 };

/* Ranks of a round that failed have nothing to finish. */
static const double failed_grace_seconds = 3;

/* What became of a round. */
typedef enum outcome {
    OUTCOME_OPEN,
    OUTCOME_FINISHED,
    OUTCOME_AGAIN, /* another round follows */
    OUTCOME_OVER,  /* none does */
    OUTCOME_LOST,  /* the store is gone: it may come back */
} outcome;

typedef struct progress {
    outcome outcome;
    round_stop stop; /* AGAIN, OVER */
    bool told_failure, told_done;
    char hang[WIRE_TEXT_BYTES]; /* why a rank was examined; "": none was */
    fsdp_status start;          /* of the ranks */
    int start_code;
} progress;

/* ---- configuration ---- */

static fsdp_status check_config(const fsdp_launch_config *c)
{
    if (!c->command || !c->command[0])
        return error_set(FSDP_ERR_INPUT, "there is no program to run");
    if (c->n_ranks < 1 || c->n_ranks > MAX_RANKS)
        return error_set(FSDP_ERR_INPUT, "%d ranks on a host are not possible; 1 to %d are", c->n_ranks, MAX_RANKS);
    if (c->min_nodes < 1 || c->max_nodes < c->min_nodes || c->max_nodes > ROUNDS_MAX_NODES)
        return error_set(FSDP_ERR_INPUT, "%d to %d nodes are not possible; 1 to %d are", c->min_nodes, c->max_nodes,
                         ROUNDS_MAX_NODES);
    if (c->node >= c->max_nodes)
        return error_set(FSDP_ERR_INPUT, "node %d of %d is not possible; nodes count from 0", c->node, c->max_nodes);
    if (c->max_nodes > 1 && !c->endpoint)
        return error_set(FSDP_ERR_INPUT, "with several nodes, the endpoint at which they meet must be given");
    if (c->master_port < 0 || c->master_port > 65535)
        return error_set(FSDP_ERR_INPUT, "%d is not a port", c->master_port);
    if (c->max_restarts < 0 || c->grace_seconds < 0 || c->restart_window_seconds < 0 || c->watchdog_seconds < 0)
        return error_set(FSDP_ERR_INPUT, "restarts and seconds cannot be negative");
    if ((unsigned)c->numa_binding > FSDP_NUMA_CORE_COMPLEX)
        return error_set(FSDP_ERR_INPUT, "numa_binding %d is not one of fsdp_numa_binding", (int)c->numa_binding);
    if (c->numa_binding != FSDP_NUMA_SHARES && c->share_cores)
        return error_set(FSDP_ERR_INPUT,
                         "--numa_binding and --share_cores contradict each other: leave one of them out");
    bool chosen = c->virtual_local_rank && environment_value("CUDA_VISIBLE_DEVICES");
    int gpus = chosen ? fsdp_launch_count_gpus() : 0; /* 0: GPUs are hidden, and all ranks work without */
    if (gpus > 0 && gpus < c->n_ranks)
        return error_set(FSDP_ERR_INPUT,
                         "--virtual_local_rank: CUDA_VISIBLE_DEVICES has %d GPUs for %d ranks; each needs its own",
                         gpus, c->n_ranks);
    return FSDP_OK;
}

int fsdp_launch_count_cores(void)
{
    core_list cores;
    int n = core_list_read(&cores) == FSDP_OK && cores.n > 0 ? cores.n : 1;
    core_list_free(&cores);
    return n;
}

int fsdp_launch_count_gpus(void)
{
    const char *visible = environment_value("CUDA_VISIBLE_DEVICES");
    char path[64];
    int n = 0;
    if (visible) {
        for (n = *visible && strcmp(visible, "-1") != 0; *visible; visible++)
            n += *visible == ',';
        return n;
    }
    do
        snprintf(path, sizeof path, "/dev/nvidia%d", n);
    while (access(path, F_OK) == 0 && ++n < MAX_RANKS);
    return n;
}

/* Of standard output, where it is a terminal that can rewrite a line; else 0. */
static int terminal_columns(void)
{
    const char *kind = environment_text("TERM");
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || !kind || strcmp(kind, "dumb") == 0)
        return 0;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

/* ---- one round ---- */

static fsdp_status start_all(launcher *l, int *exit_code)
{
    for (int i = 0; i < l->n; i++) {
        int error;
        fsdp_status status = process_start(&l->attempt, i, &l->ranks[i], &error);
        if (status != FSDP_OK) {
            *exit_code = error == ENOENT ? NOT_FOUND : error ? NOT_RUNNABLE : fsdp_exit_code(status);
            watch_signal_all(l, SIGKILL, true);
            return status;
        }
        l->keeper.groups[i] = l->ranks[i].pid;
    }
    return FSDP_OK;
}

static bool was_interrupt(int exit_code)
{
    return watch_interrupted_by(exit_code << 8) != 0; /* as wait tells of a process that ended with it */
}

/* Ranks may save where the job grows, or somebody asked for its end; those of a failed round end now. */
static void obey_stop(launcher *l, progress *p)
{
    double grace = l->attempt.config->grace_seconds;
    if (p->outcome != OUTCOME_OPEN)
        return;
    p->outcome = p->stop.verdict == ROUND_OVER ? OUTCOME_OVER : OUTCOME_AGAIN;
    if (p->outcome == OUTCOME_AGAIN)
        log_write(p->stop.verdict == ROUND_AGAIN ? FSDP_LOG_WARNING : FSDP_LOG_INFO, "%s", p->stop.reason);
    bool in_peace = p->stop.verdict == ROUND_GROWS || was_interrupt(p->stop.exit_code);
    if (!in_peace)
        watch_save_flights(l);
    if (!l->asked && watch_count_running(l) > 0)
        watch_ask_to_end(l, SIGTERM, in_peace || grace < failed_grace_seconds ? grace : failed_grace_seconds);
}

static void examine(launcher *l, progress *p, const team_news *news)
{
    char flights[WATCH_FLIGHTS_BYTES];
    watch_describe_flights(l, flights, sizeof flights);
    snprintf(p->hang, sizeof p->hang, "%.*s%s", (int)(sizeof p->hang - sizeof flights), news->stop.reason, flights);
    log_write(FSDP_LOG_WARNING, "%s; its backtrace follows, if it can give one", p->hang);
    watch_save_flights(l);
    watch_examine(l, news->examined);
    team_fail(&l->team, l->attempt.place.round, p->hang, SIGNALLED + SIGABRT, FINAL_NO);
    p->told_failure = true;
}

static void hear_team(launcher *l, progress *p)
{
    team_news news = {.examined = -1};
    for (team_word word; (word = team_hear(&l->team, &news)) != TEAM_NOTHING;) {
        if (word == TEAM_STOP && news.stop.round == l->attempt.place.round) {
            p->stop = news.stop;
            obey_stop(l, p);
        } else if (word == TEAM_FINISHED && p->outcome == OUTCOME_OPEN) {
            p->outcome = OUTCOME_FINISHED;
        } else if (word == TEAM_EXAMINE && p->outcome == OUTCOME_OPEN && !p->told_failure) {
            examine(l, p, &news);
        } else if (word == TEAM_LOST) {
            if (p->outcome == OUTCOME_OPEN) {
                p->outcome = OUTCOME_LOST;
                watch_ask_to_end(l, SIGTERM, failed_grace_seconds);
            }
            break;
        }
    }
}

static void tell_team(launcher *l, progress *p)
{
    char text[WIRE_TEXT_BYTES];
    int round = l->attempt.place.round, code = 1;
    if (p->outcome != OUTCOME_OPEN || p->told_failure || p->told_done)
        return;
    if (p->start != FSDP_OK) {
        snprintf(text, sizeof text, "%s", fsdp_last_error());
        team_fail(&l->team, round, text, p->start_code, FINAL_LAUNCHER);
        p->told_failure = true;
    } else if (l->asked) {
        snprintf(text, sizeof text, "%.100s was asked to end by signal %d (%s)", l->team.who, l->asked,
                 strsignal(l->asked));
        team_fail(&l->team, round, text, SIGNALLED + l->asked, FINAL_LAUNCHER);
        p->told_failure = true;
    } else if (l->failed >= 0) {
        watch_save_flights(l);
        watch_describe_failure(l, text, sizeof text, &code);
        team_fail(&l->team, round, text, code, watch_is_final(l->ranks[l->failed].status) ? FINAL_RANK : FINAL_NO);
        p->told_failure = true;
    } else if (watch_count_running(l) == 0) {
        team_done(&l->team, round);
        p->told_done = true;
    }
}

/* To the end of all ranks and a decision of the team. */
static void run_round(launcher *l, progress *p)
{
    *p = (progress){.outcome = OUTCOME_OPEN};
    watch_begin(l);
    p->start = start_all(l, &p->start_code);
    while (watch_count_running(l) > 0 || p->outcome == OUTCOME_OPEN) {
        watch_wait(l, l->attempt.config->monitor_seconds);
        hear_team(l, p);
        tell_team(l, p);
        watch_beat(l);
        hold_attend(&l->hold, &l->team);
    }
    strays_end(&l->strays);
    watch_drain(l);
}

/* ---- between rounds ---- */

static bool is_asked(void *context)
{
    launcher *l = context;
    watch_attend(l);
    return l->asked != 0;
}

static fsdp_status give_up(launcher *l, int *exit_code)
{
    char text[WIRE_TEXT_BYTES];
    snprintf(text, sizeof text, "%.100s was asked to end by signal %d (%s)", l->team.who, l->asked,
             strsignal(l->asked));
    team_fail(&l->team, l->team.last_round, text, SIGNALLED + l->asked, FINAL_LAUNCHER);
    *exit_code = SIGNALLED + l->asked;
    return error_set(FSDP_ERR_PEER, "%s before all were there", text);
}

/* Until the next round begins here: *begun. FSDP_OK without it: there is nothing left to do. is_done: of team_join. */
static fsdp_status join_round(launcher *l, bool is_done, bool *begun, int *exit_code)
{
    team_news news;
    *begun = false;
    for (bool joined = false; !l->asked;) {
        if (!joined) {
            fsdp_status status = team_join(&l->team, is_done);
            if (status != FSDP_OK && !l->asked)
                *exit_code = fsdp_exit_code(status);
            if (status != FSDP_OK)
                return l->asked ? give_up(l, exit_code) : status;
            joined = true;
        }
        watch_wait(l, 1);
        for (team_word word; (word = team_hear(&l->team, &news)) != TEAM_NOTHING;) {
            if (word == TEAM_ROUND) {
                l->attempt.place = news.place;
                endpoint_text(&l->team.at, l->attempt.rendezvous);
                *begun = true;
                return FSDP_OK;
            }
            if (word == TEAM_FINISHED)
                return FSDP_OK;
            if (word == TEAM_STOP && news.stop.verdict == ROUND_OVER) {
                *exit_code = news.stop.exit_code;
                return error_set(*exit_code == 2 ? FSDP_ERR_INPUT : FSDP_ERR_PEER, "%s", news.stop.reason);
            }
            joined = word != TEAM_LOST && joined;
            if (!joined)
                break;
        }
        watch_beat(l);
    }
    return give_up(l, exit_code);
}

/* Ranks that did their work, but whose output was lost, did not succeed. */
static fsdp_status judge_output(const launcher *l, int *exit_code)
{
    for (int i = 0; i < l->n; i++) {
        int out = l->ranks[i].out.refused, refused = out ? out : l->ranks[i].err.refused;
        if (refused) {
            *exit_code = 1;
            return error_set(FSDP_ERR_IO, "what rank %d said could not be written to standard %s: %s", l->ranks[i].rank,
                             out ? "output" : "error", strerror(refused));
        }
    }
    return FSDP_OK;
}

/* The end of the job as this launcher saw it. */
static fsdp_status judge(const launcher *l, const progress *p, int *exit_code)
{
    char text[WIRE_TEXT_BYTES];
    *exit_code = 0;
    if (p->start != FSDP_OK) {
        *exit_code = p->start_code;
        return p->start;
    }
    if (p->hang[0]) {
        *exit_code = SIGNALLED + SIGABRT;
        return error_set(FSDP_ERR_PEER, "%s", p->hang);
    }
    if (l->failed >= 0) {
        watch_describe_failure(l, text, sizeof text, exit_code);
        return error_set(FSDP_ERR_PEER, "%s", text);
    }
    if (p->outcome == OUTCOME_OVER && !l->asked) {
        *exit_code = p->stop.exit_code;
        return error_set(FSDP_ERR_PEER, "%s", p->stop.reason);
    }
    return judge_output(l, exit_code);
}

/* The store went with its launcher; a restart like any other, counted here because nobody else can. */
static bool may_go_on(launcher *l)
{
    char at[ENDPOINT_TEXT_BYTES];
    if (l->team.n_restarts >= l->attempt.config->max_restarts)
        return false;
    l->team.n_restarts++;
    log_write(FSDP_LOG_WARNING,
              "the rendezvous at %s is gone: its launcher died, or the network between; joining again",
              endpoint_text(&l->team.at, at));
    return true;
}

/* The ranks ended well, and then the store was gone: whoever held it has probably heard of everybody's end, as we would
 * have. Another that wants the round once more would be there soon. */
static fsdp_status end_unheard(const launcher *l, int *exit_code)
{
    log_write(
        FSDP_LOG_WARNING,
        "the ranks of this node ended well, but the rendezvous is gone: nobody said how those of other nodes ended");
    *exit_code = 0;
    return judge_output(l, exit_code);
}

static fsdp_status run_rounds(launcher *l, int *exit_code)
{
    for (bool done = false;;) {
        bool begun;
        progress p;
        fsdp_status status = join_round(l, done, &begun, exit_code);
        if (status != FSDP_OK && done && !l->team.client && !l->asked)
            return end_unheard(l, exit_code);
        FSDP_TRY(status);
        if (!begun) {
            *exit_code = 0;
            return FSDP_OK;
        }
        run_round(l, &p);
        done = p.outcome == OUTCOME_LOST && p.told_done;
        if (p.outcome == OUTCOME_LOST && !done && !l->asked && !may_go_on(l)) {
            *exit_code = 1;
            return error_set(FSDP_ERR_PEER, "the rendezvous is gone: its launcher died, or the network between");
        }
        if ((p.outcome != OUTCOME_AGAIN && p.outcome != OUTCOME_LOST) || l->asked)
            return judge(l, &p, exit_code);
    }
}

/* ---- the whole ---- */

static fsdp_status bind_ranks(launcher *l)
{
    fsdp_numa_binding how = l->attempt.config->numa_binding;
    if (how == FSDP_NUMA_SHARES)
        return FSDP_OK;
    l->attempt.bound = calloc((size_t)l->n, sizeof *l->attempt.bound);
    if (!l->attempt.bound)
        return error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", l->n);
    return numa_bind(how, l->attempt.cores, l->n, l->attempt.bound);
}

static size_t watched_bytes(const launcher *l)
{
    return ring_offset(l->n) + (size_t)l->n * sizeof *l->rings;
}

static fsdp_status make_pulses(launcher *l)
{
    size_t bytes = watched_bytes(l);
    l->attempt.pulses = memfd_create("fsdp-pulses", MFD_CLOEXEC);
    void *pages = l->attempt.pulses >= 0 && ftruncate(l->attempt.pulses, (off_t)bytes) == 0
                      ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->attempt.pulses, 0)
                      : MAP_FAILED;
    if (pages == MAP_FAILED)
        return error_set_errno(FSDP_ERR_MEMORY, "no memory to watch %d ranks", l->n);
    l->pulses = pages;
    l->rings = (ring *)(void *)((uint8_t *)pages + ring_offset(l->n));
    return FSDP_OK;
}

static fsdp_status run_job(launcher *l, int *exit_code)
{
    FSDP_TRY(hold_name(&l->hold));
    FSDP_TRY(keeper_start(l->n, l->hold.path, &l->keeper));
    FSDP_TRY(make_pulses(l));
    strays_begin(&l->strays); /* after the keeper, which is no stray */
    watch_begin(l);
    l->team.give_up = is_asked;
    l->team.context = l;
    l->attempt.job = l->team.job;
    l->attempt.secret = l->team.key_text;
    l->attempt.snapshots = l->hold.path;
    return run_rounds(l, exit_code);
}

static void launcher_free(launcher *l)
{
    if (l->pulses)
        munmap(l->pulses, watched_bytes(l));
    if (l->attempt.pulses >= 0)
        close(l->attempt.pulses);
    free(l->attempt.bound);
    free(l->saved);
    free(l->polls);
    free(l->ranks);
}

fsdp_status fsdp_launch(const fsdp_launch_config *config, int *exit_code)
{
    *exit_code = fsdp_exit_code(FSDP_ERR_INPUT);
    SIZED_READ(fsdp_launch_config, FSDP_LAUNCH_CONFIG_INIT, full, config);
    launcher l = {.attempt = {.config = &full, .pulses = -1}, .n = full.n_ranks};
    core_list cores = {0};
    outputs streams = {0};
    saved_signals saved;
    fsdp_status status;
    bool live = false;
    TRY_OR(done, check_config(&full));
    TRY_OR(done, outputs_read(&full, &streams));
    TRY_OR(done, team_prepare(&l.team, &full));
    torch_variables_check(TORCH_LAUNCHER);
    *exit_code = 1;
    l.ranks = calloc((size_t)l.n, sizeof *l.ranks);
    l.polls = calloc((size_t)(2 * l.n + 2), sizeof *l.polls);
    l.saved = calloc((size_t)l.n, sizeof *l.saved);
    if (!l.ranks || !l.polls || !l.saved) {
        status = error_set(FSDP_ERR_MEMORY, "no memory for %d ranks", l.n);
        goto done;
    }
    TRY_OR(done, core_list_read(&cores));
    l.attempt.live = &live;
    l.attempt.columns = terminal_columns();
    l.attempt.cores = &cores;
    l.attempt.outputs = &streams;
    status = bind_ranks(&l);
    if (status == FSDP_OK)
        status = watch_take_signals(&l, &saved);
    if (status != FSDP_OK) {
        *exit_code = fsdp_exit_code(status);
        goto done;
    }
    status = run_job(&l, exit_code);
    if (full.left)
        snprintf(full.left, full.left_bytes, "%s", status != FSDP_OK ? watch_flights_folder(&l) : "");
    hold_close(&l.hold); /* before the keeper goes, who would do it otherwise */
    if (live)            /* the last line that was rewritten stays */
        fputc('\n', stdout), fflush(stdout);
    team_leave(&l.team);
    keeper_stop(&l.keeper);
    strays_free(&l.strays);
    watch_give_signals_back(&l, &saved);
done:
    team_leave(&l.team);
    outputs_free(&streams);
    core_list_free(&cores);
    launcher_free(&l);
    return status;
}
