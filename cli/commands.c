/* The list of subcommands, and how their failures are printed. A new subcommand is one file and one line here. */
#include "commands.h"

#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <fsdp/log.h>

/* In the order that help shows them. */
#define COMMANDS(X)                                                                                                    \
    X(train)                                                                                                           \
    X(plan)                                                                                                            \
    X(explain)                                                                                                         \
    X(run) X(fetch) X(tokenize) X(eval) X(generate) X(ckpt) X(bench) X(debug) X(trace) X(report) X(top) X(help)

#define DECLARE(name) extern const command command_##name;
COMMANDS(DECLARE)

#define ADDRESS(name) &command_##name,
const command *const commands[] = {COMMANDS(ADDRESS) NULL};

const command *command_find(const char *name)
{
    for (const command *const *c = commands; *c; c++)
        if (strcmp((*c)->name, name) == 0)
            return *c;
    return NULL;
}

int command_unknown(const char *name)
{
    const char *names[32];
    int n = 0;
    for (const command *const *c = commands; *c && n < 32; c++)
        names[n++] = (*c)->name;
    const char *near = fsdp_nearest(name, names, n);
    if (near)
        fprintf(stderr, "fsdp: unknown command '%s'; did you mean `fsdp %s`?\n", name, near);
    else
        fprintf(stderr, "fsdp: unknown command '%s'; `fsdp --help` lists all commands\n", name);
    return 2;
}

int command_failed(const char *name, fsdp_status status)
{
    fprintf(stderr, "fsdp %s: %s\n", name, fsdp_last_error());
    return fsdp_exit_code(status);
}

static void show_warning(void *context, fsdp_log_level level, const char *line)
{
    (void)level;
    fprintf(stderr, "fsdp %s: warning: %s\n", (const char *)context, line);
}

void command_show_warnings(const char *name)
{
    fsdp_log_set_sink(show_warning, (void *)(uintptr_t)name, FSDP_LOG_WARNING);
}

/* Names and contents of files may hold what a terminal would obey. */
static void print_escaped(const char *text, FILE *out)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7F || (*p >= 0x80 && *p < 0xA0 && p > (const unsigned char *)text && p[-1] == 0xC2))
            fprintf(out, "\\x%02x", *p);
        else
            fputc(*p, out);
    }
}

int command_misused(const char *name, const char *format, ...)
{
    char message[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(stderr, "fsdp %s: ", name);
    print_escaped(message, stderr);
    fputc('\n', stderr);
    return 2;
}

fsdp_status command_options(const fsdp_flag *table, void *options, fsdp_flag_state *state, const char *name, int argc,
                            char *const *argv, const char **rest, int *n_rest)
{
    FSDP_TRY(fsdp_flags_init(table, options, state));
    return fsdp_flags_parse(table, options, state, name, argc, argv, rest, n_rest);
}

char *command_behind_mark(char *text)
{
    return strncmp(text, "\xEF\xBB\xBF", 3) == 0 ? text + 3 : text;
}
