/* The subcommands of `fsdp`: what each is called, says about itself and does. A file per subcommand defines its
 * description; commands.c lists them. Only the public headers of the library are used here. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <stdbool.h>
#include <stdio.h>

#include <fsdp/flags.h>
#include <fsdp/status.h>

typedef struct command {
    const char *name;
    const char *summary;               /* one line, without a full stop */
    const char *usage;                 /* what follows "fsdp NAME" */
    const char *details;               /* paragraphs below the usage, examples among them; may be NULL */
    const fsdp_flag *(*flags)(void);   /* the table of its flags, NULL when it has none */
    int (*run)(int argc, char **argv); /* arguments after the name; returns the exit code */
    bool passes_on;                    /* words from the first that is not a flag on belong to another program */
} command;

/* Ends with NULL. */
extern const command *const commands[];

/* NULL when there is none of this name. */
const command *command_find(const char *name);
/* Prints "fsdp: unknown command ..." with the nearest name; returns 2. */
int command_unknown(const char *name);

/* After the byte order mark that some editors put before a text. */
char *command_behind_mark(char *text);

/* Prints "fsdp NAME: " and the library's last error; returns the exit code that goes with it. */
int command_failed(const char *name, fsdp_status status);
/* From now on the library's warnings are printed, each after "fsdp NAME: warning: ". `name` is borrowed. */
void command_show_warnings(const char *name);
/* Prints "fsdp NAME: " and the text; returns 2. */
int command_misused(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Defaults, then the arguments: fsdp_flags_init and fsdp_flags_parse, which say more. */
fsdp_status command_options(const fsdp_flag *table, void *options, fsdp_flag_state *state, const char *name, int argc,
                            char *const *argv, const char **rest, int *n_rest);

/* Help on a terminal or in a pipe: everything, or one command with its flags by group. */
void help_overview(FILE *out);
void help_command(FILE *out, const command *c);
/* The same as pages: a man page of all (NULL) or of one command, a Markdown reference. */
void help_man(FILE *out, const command *c);
void help_markdown(FILE *out);
/* A completion script for bash, zsh or fish, and what it asks: what may stand where the last of the words after "fsdp"
 * is being typed, a line each. */
void help_completion(FILE *out, const char *shell);
void complete_words(FILE *out, char *const *words, int n);

/* Whether the row is for this command. */
bool flag_belongs(const fsdp_flag *flag, const command *c);
/* What follows the flag in help: "N", "full|none", "" for switches. Choices are cut to fit `bytes`. */
const char *flag_value_text(const fsdp_flag *flag, char *text, size_t bytes);

#endif
