/* `fsdp top`: a run in a terminal, drawn again and again; once, where there is no terminal. The work is <fsdp/top.h>'s.
 */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <fsdp/top.h>

#include "commands.h"
#include "flag_rows.h"
#include "terminal.h"

typedef struct top_options {
    fsdp_flag_state state;
    bool once;
    double interval;
    const char *token;
} top_options;

#define OPTIONS top_options

static const fsdp_flag top_table[] = {
    {SWITCH(once, NULL, "print the run once and exit (always, if the output is not a terminal)")},
    {FLOAT(interval, "1", 0.1, 3600, "seconds", "time between two looks")},
    {TEXT(token, "TOKEN", "token of the page (default: the one in the address, or FSDP_DASHBOARD_TOKEN)")},
    {.name = NULL},
};

static const fsdp_flag *top_flags(void)
{
    return top_table;
}

static struct termios before; /* what the terminal was like, if `keys` */
static bool keys;

static void give_back_terminal(void)
{
    static const char cursor[] = "\033[?25h\n";
    if (keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    if (write(STDOUT_FILENO, cursor, sizeof cursor - 1) < 0)
        return; /* nobody sees it */
}

/* At once: a look takes seconds where a server is silent or a folder large. All that is called may be called here. */
static void stop(int signal)
{
    give_back_terminal();
    _exit(128 + signal);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Waits for a key or the next look; true: it was q, or the input has ended. */
static bool asked_to_quit(double seconds)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    for (double until = now() + seconds, left = seconds; left > 0; left = until - now()) {
        char key = 0;
        if (poll(&p, 1, (int)(left * 1e3) + 1) <= 0)
            continue;
        if (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q')
            return true;
    }
    return false;
}

static void look_at_size(fsdp_top_config *c)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 1;
    c->columns = known ? size.ws_col : 80;
    c->rows = known ? size.ws_row - 1 : 23;
}

/* Draws until somebody stops it. A run that cannot be reached any more may come back: its last picture stays. */
static int watch(fsdp_top_config *c, double interval)
{
    char *text = NULL, *shown = NULL;
    int code = 0;
    for (;;) {
        double begun = now();
        look_at_size(c);
        fsdp_status status = fsdp_top(c, &text);
        if (status != FSDP_OK && !shown) {
            code = command_failed("top", status);
            break;
        }
        if (status == FSDP_OK) {
            free(shown);
            shown = text;
        }
        printf("\033[H\033[J%s%s", shown,
               status == FSDP_OK ? "" : "\r\033[Kno answer: the run has ended, or comes back; q quits");
        fflush(stdout);
        double took = now() - begun; /* a long run's folder takes its time: no more than a fifth goes into reading */
        if (asked_to_quit(interval > 4 * took ? interval : 4 * took))
            break;
    }
    free(shown);
    return code;
}

static int watch_in_terminal(fsdp_top_config *c, double interval)
{
    struct termios raw;
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_ONSTACK};
    keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before) == 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (keys) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\033[?25l", stdout); /* the cursor is away meanwhile */
    int code = watch(c, interval);
    fflush(stdout);
    give_back_terminal();
    return code;
}

static int print_once(const fsdp_top_config *c)
{
    char *text;
    fsdp_status status = fsdp_top(c, &text);
    if (status != FSDP_OK)
        return command_failed("top", status);
    fputs(text, stdout);
    free(text);
    return 0;
}

static int run_top(int argc, char **argv)
{
    top_options options;
    fsdp_top_config config = FSDP_TOP_CONFIG_INIT;
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n = 0, code;
    if (!words)
        return command_failed("top", FSDP_ERR_MEMORY);
    fsdp_status status = command_options(top_table, &options, &options.state, "top", argc, argv, words, &n);
    config.target = words[0];
    config.token = options.token;
    if (status != FSDP_OK)
        code = command_failed("top", status);
    else if (n > 1)
        code = command_misused("top", "give one run: its folder, or HOST:PORT of its --dashboard");
    else if (options.once || !terminal_open(stdout).live || !isatty(STDOUT_FILENO))
        code = print_once(&config);
    else
        code = watch_in_terminal(&config, options.interval);
    free(words);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_top = {
    .name = "top",
    .summary = "Watch a run in the terminal: progress, speed, ranks, memory, log",
    .usage = "[DIR|HOST:PORT] [--once] [--interval SECONDS] [--token TOKEN]",
    .details = "  fsdp top                       the newest run of this folder (fsdp_runs/latest)\n"
               "  fsdp top runs/a\n"
               "  fsdp top node7:8080            a run with --dashboard 8080 --dashboard_address 0.0.0.0\n\n"
               "Every run can be watched through its folder. With `fsdp train --dashboard`, ranks, GPUs and the log\n"
               "are shown, too. q quits.",
    .flags = top_flags,
    .run = run_top,
};
