/* Help as text: the overview, one command with its flags, and the `help` subcommand. All text about flags comes from
 * their tables; help_pages.c writes pages in other formats. */
#include <string.h>

#include "commands.h"

enum { COLUMN = 38, WIDTH = 110 };

bool flag_belongs(const fsdp_flag *flag, const command *c)
{
    return fsdp_flags_belongs(flag, c->name);
}

const char *flag_value_text(const fsdp_flag *flag, char *text, size_t bytes)
{
    text[0] = 0;
    if (flag->type == FSDP_FLAG_SWITCH)
        return text;
    bool number = flag->type == FSDP_FLAG_INT; /* whose choices are words that stand for some */
    if (!flag->choices || number)
        snprintf(text, bytes, "%s", flag->unit ? flag->unit : "VALUE");
    if (!flag->choices)
        return text;
    for (const fsdp_choice *c = flag->choices; c->name; c++) {
        size_t used = strlen(text);
        snprintf(text + used, bytes - used, "%s%s", used ? "|" : "", c->name);
    }
    return text;
}

void help_overview(FILE *out)
{
    fprintf(out, "usage: fsdp COMMAND [FLAGS...]\n\n"
                 "Fully sharded data parallel training, in C.\n\ncommands:\n");
    for (const command *const *c = commands; *c; c++)
        fprintf(out, "  %-10s  %s\n", (*c)->name, (*c)->summary);
    fprintf(out, "\n`fsdp COMMAND --help` lists the flags of a command, `fsdp --version` shows what was built in.\n");
}

/* "a|b|c" as "a, b, c", which can be folded. */
static void spread(char *text, size_t bytes, const char *choices)
{
    size_t n = 0;
    for (; *choices && n + 3 < bytes; choices++) {
        if (*choices == '|')
            text[n++] = ',';
        text[n++] = *choices == '|' ? ' ' : *choices;
    }
    text[n] = 0;
}

/* Words of `text` from column `from` on, folded at WIDTH; the cursor stands at `at`. */
static void print_folded(FILE *out, const char *text, int at, int from)
{
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (at > from && at + 1 + length > WIDTH) {
            fprintf(out, "\n%*s", from, "");
            at = from;
        }
        at += fprintf(out, "%s%.*s", at > from ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_flag(FILE *out, const fsdp_flag *flag)
{
    char value[256], choices[512] = "", text[1024];
    flag_value_text(flag, value, sizeof value);
    bool in_line = strlen(value) <= 24;
    int at = fprintf(out, "  --%s%s%s", flag->name, *value ? " " : "", !*value ? "" : in_line ? value : "CHOICE");
    if (at >= COLUMN) {
        fputc('\n', out);
        at = 0;
    }
    at += fprintf(out, "%*s", COLUMN - at, "");
    const char *fallback = flag->default_value && *flag->default_value ? flag->default_value : NULL;
    if (flag->type == FSDP_FLAG_SWITCH && fallback)
        fallback = "on";
    if (!in_line)
        spread(choices, sizeof choices, value);
    snprintf(text, sizeof text, "%s%s%s%s%s%s", flag->help, in_line ? "" : ": ", choices, fallback ? " [" : "",
             fallback ? fallback : "", fallback ? "]" : "");
    print_folded(out, text, at, COLUMN);
}

void help_command(FILE *out, const command *c)
{
    fprintf(out, "usage: fsdp %s %s\n\n%s.\n", c->name, c->usage, c->summary);
    if (c->details)
        fprintf(out, "\n%s\n", c->details);
    const char *group = "";
    for (const fsdp_flag *flag = c->flags ? c->flags() : NULL; flag && flag->name; flag++) {
        if (!flag_belongs(flag, c))
            continue;
        const char *own = flag->group ? flag->group : "Flags";
        if (strcmp(group, own) != 0)
            fprintf(out, "\n%s:\n", own);
        group = own;
        print_flag(out, flag);
    }
    if (*group)
        fprintf(out, "\n--flag value and --flag=value are the same, and so are dashes and underscores in names.\n"
                     "A switch is --x, --x=1, --x=true or --no_x. Defaults are in brackets.\n");
}

typedef struct help_options {
    fsdp_flag_state state;
    bool man, markdown, complete;
    const char *completion;
} help_options;

static const fsdp_choice shells[] = {{"bash", 0, NULL}, {"zsh", 0, NULL}, {"fish", 0, NULL}, {NULL, 0, NULL}};

static const fsdp_flag help_table[] = {
    {.name = "man",
     .type = FSDP_FLAG_SWITCH,
     .offset = offsetof(help_options, man),
     .help = "print the man page, of one command or of all"},
    {.name = "markdown",
     .type = FSDP_FLAG_SWITCH,
     .offset = offsetof(help_options, markdown),
     .help = "print the reference of all commands and flags as Markdown"},
    {.name = "completion",
     .type = FSDP_FLAG_TEXT,
     .offset = offsetof(help_options, completion),
     .choices = shells,
     .unit = "SHELL",
     .help = "print a completion script for a shell"},
    {.name = "complete",
     .type = FSDP_FLAG_SWITCH,
     .offset = offsetof(help_options, complete),
     .help = "print what may follow the words after --, as completion scripts ask"},
    {.name = NULL},
};

static const fsdp_flag *help_flags(void)
{
    return help_table;
}

static int print_topic(const char *name)
{
    const command *c = command_find(name);
    if (!c)
        return command_unknown(name);
    help_command(stdout, c);
    return 0;
}

static int run_help(int argc, char **argv)
{
    help_options options;
    const char *words[64];
    int n_words = 0;
    if (argc > 1 && strcmp(argv[0], "--complete") == 0 && strcmp(argv[1], "--") == 0) {
        complete_words(stdout, argv + 2, argc - 2); /* words of another command line: no flags of this one */
        return 0;
    }
    if (argc > 64)
        return command_misused("help", "too many words");
    fsdp_status status = command_options(help_table, &options, &options.state, "help", argc, argv, words, &n_words);
    int code = 0;
    if (status != FSDP_OK)
        code = command_failed("help", status);
    else if (options.man && n_words && !command_find(words[0]))
        code = command_unknown(words[0]);
    else if (options.man)
        help_man(stdout, n_words ? command_find(words[0]) : NULL);
    else if (options.markdown)
        help_markdown(stdout);
    else if (options.completion)
        help_completion(stdout, options.completion);
    else if (n_words)
        code = print_topic(words[0]);
    else
        help_overview(stdout);
    fsdp_flags_free(&options.state);
    return code;
}

const command command_help = {
    .name = "help",
    .summary = "Explain a command, or print all help as a man page, Markdown or a completion script",
    .usage = "[COMMAND] [--man|--markdown|--completion bash|zsh|fish]",
    .flags = help_flags,
    .run = run_help,
};
