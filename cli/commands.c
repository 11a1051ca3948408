/* The list of subcommands, and how their failures are said. A new subcommand is one file and one line here. */
#include "commands.h"

#include <stdarg.h>
#include <string.h>

/* In the order that help shows them. */
#define COMMANDS(X) X(train) X(plan) X(run) X(tokenize) X(generate) X(ckpt) X(bench) X(help)

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
        fprintf(stderr, "fsdp: unknown command '%s'; `fsdp --help` lists those there are\n", name);
    return 2;
}

int command_failed(const char *name, fsdp_status status)
{
    fprintf(stderr, "fsdp %s: %s\n", name, fsdp_last_error());
    return fsdp_exit_code(status);
}

int command_misused(const char *name, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "fsdp %s: ", name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return 2;
}

fsdp_status command_options(const fsdp_flag *table, void *options, fsdp_flag_state *state, const char *name, int argc,
                            char *const *argv, const char **rest, int *n_rest)
{
    FSDP_TRY(fsdp_flags_init(table, options, state));
    return fsdp_flags_parse(table, options, state, name, argc, argv, rest, n_rest);
}
