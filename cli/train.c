/* `fsdp train`: reads the flags, hands them to the library, shows what it says. Signals ask it to save and end. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <fsdp/train.h>

#include "commands.h"
#include "terminal.h"

/* Requests to end, as a handler can keep them. One request may arrive several times: systemd and Slurm signal every
 * process of a job, and the launcher passes on what it gets; timeout(1) signals a program and its group. */
static volatile sig_atomic_t stop_signal; /* the first one; 0: none */
static volatile sig_atomic_t can_save; /* steps are running: there is something to save, and stop_requested is called */
static volatile sig_atomic_t seconds_then; /* of the first one */

/* Copies of an interrupt come together; a person who presses Ctrl-C again takes longer. */
enum { SAME_REQUEST_SECONDS = 1 };

static int seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int)now.tv_sec;
}

static bool speaks; /* set before signals are listened for */

/* A person who presses Ctrl-C sees at once that it was heard, however long the step takes. Of several ranks one says
 * so; under `fsdp run` the launcher does. */
static bool speaks_for_the_job(void)
{
    const char *rank = getenv("RANK");
    return !getenv("FSDP_PULSE") && (!rank || strcmp(rank, "0") == 0);
}

/* Whatever the terminal shows now stays: the line begins on its own. */
static void say(int number, const char *text)
{
    if (number == SIGINT && speaks) {
        ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
        (void)ignored;
    }
}

static void die_of(int number)
{
    signal(number, SIG_DFL);
    raise(number); /* blocked inside its handler: delivered when that returns */
}

/* The first request ends the run after a checkpoint, or at once if there is nothing to save yet. Later ones are
 * ignored, except a second Ctrl-C from a person: programs that send the others can use SIGKILL for a run that does not
 * end. */
static void on_signal(int number)
{
    if (!can_save) {
        say(number, "\nfsdp train: Ctrl-C before the first step: there is nothing to save\n");
        die_of(number);
    } else if (!stop_signal) {
        seconds_then = seconds_now();
        stop_signal = number;
        say(number, "\nfsdp train: Ctrl-C: this step is finished and saved; Ctrl-C again ends at once, unsaved\n");
    } else if (number == SIGINT && seconds_now() - seconds_then > SAME_REQUEST_SECONDS) {
        say(number, "\nfsdp train: second Ctrl-C: ended at once, nothing more is saved\n");
        die_of(number);
    }
}

static int stop_requested(void *context)
{
    (void)context;
    can_save = 1;
    return (int)stop_signal;
}

static void listen_for_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    speaks = speaks_for_the_job();
    /* On its own stack: oneDNN's products keep numbers below the stack pointer, where a handler would write over them.
     */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&action.sa_mask, numbers[i]); /* one at a time */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction before;
        sigaction(numbers[i], &action, &before);
        if (numbers[i] == SIGHUP && before.sa_handler == SIG_IGN) /* nohup */
            sigaction(SIGHUP, &before, NULL);
    }
}

static void show_line(void *context, fsdp_line kind, const char *text)
{
    terminal *t = context;
    if (kind == FSDP_LINE_PROGRESS)
        terminal_progress(t, text);
    else
        terminal_line(t, text);
}

static const fsdp_flag *train_flags(void)
{
    return fsdp_settings_flags();
}

static int run_train(int argc, char **argv)
{
    fsdp_settings settings;
    fsdp_status status = fsdp_settings_init(&settings);
    if (status == FSDP_OK)
        status = fsdp_settings_parse(&settings, "train", argc, argv);
    fsdp_train_result result = FSDP_TRAIN_RESULT_INIT;
    terminal t = terminal_open(stdout);
    if (status == FSDP_OK) {
        fsdp_train_callbacks callbacks = FSDP_TRAIN_CALLBACKS_INIT;
        callbacks.context = &t;
        callbacks.line = show_line;
        callbacks.stop_requested = stop_requested;
        callbacks.live = t.live;
        callbacks.columns = t.columns;
        listen_for_signals();
        status = fsdp_train(&settings, &callbacks, &result);
    }
    terminal_close(&t);
    int code = status != FSDP_OK ? command_failed("train", status) : result.stopped ? 128 + result.stop_reason : 0;
    fsdp_settings_free(&settings);
    return code;
}

const command command_train = {
    .name = "train",
    .summary = "Train or fine-tune a model, on one rank or many",
    .usage = "--dataset PATH [FLAGS...]",
    .details = "  fsdp train --preset tiny --dataset notes.txt\n"
               "  fsdp run --standalone --nproc-per-node 2 fsdp train --preset tiny --sharding_strategy full\n"
               "  srun fsdp train --preset llama3_1_8b --dataset allenai/c4 --dataset_config_name en --bf16\n\n"
               "SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR1 save a checkpoint and stop with exit code 128 plus the\n"
               "signal. A second Ctrl-C stops at once. In job scripts, use --output_dir DIR --resume auto.",
    .flags = train_flags,
    .run = run_train,
};
