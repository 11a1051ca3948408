/* `fsdp train`: reads the flags, hands them to the library, shows what it says. Signals ask it to save and end. */
#include <signal.h>
#include <stdlib.h>

#include <fsdp/train.h>

#include "commands.h"
#include "terminal.h"

/* The last signal that asked for an end; 0: none. A handler can reach nothing else. */
static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

static int stop_requested(void *context)
{
    (void)context;
    return (int)stop_signal;
}

/* The first signal ends the run after a checkpoint; a second SIGINT or SIGTERM ends it at once. */
static void listen_for_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
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
    terminal t = terminal_open(stdout);
    if (status == FSDP_OK) {
        fsdp_train_callbacks callbacks = FSDP_TRAIN_CALLBACKS_INIT;
        callbacks.context = &t;
        callbacks.line = show_line;
        callbacks.stop_requested = stop_requested;
        callbacks.live = t.live;
        callbacks.columns = t.columns;
        listen_for_signals();
        status = fsdp_train(&settings, &callbacks, NULL);
    }
    terminal_close(&t);
    int code = status == FSDP_OK ? 0 : command_failed("train", status);
    fsdp_settings_free(&settings);
    return code;
}

const command command_train = {
    .name = "train",
    .summary = "Train or fine-tune a model, on one rank or as one of many",
    .usage = "--dataset PATH [FLAGS...]",
    .details = "  fsdp train --preset tiny --dataset notes.txt\n"
               "  fsdp run --standalone --nproc-per-node 2 fsdp train --preset tiny --sharding_strategy full\n"
               "  srun fsdp train --preset llama3_1_8b --dataset allenai/c4 --dataset_config_name en --bf16\n\n"
               "SIGTERM, SIGUSR1 and SIGINT save a checkpoint and end the run.",
    .flags = train_flags,
    .run = run_train,
};
