/* Help as pages, made from the same tables as the text: man pages and a Markdown reference. */
#include <string.h>

#include "commands.h"

/* Text for roff: dashes are kept as they are typed, a leading dot or quote is escaped. */
static void print_roff(FILE *out, const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '|')
            fputs("|\\:", out); /* long lists of choices may be broken here */
        else
            fputc(*text, out);
        line_start = *text == '\n';
    }
}

static void man_flag(FILE *out, const fsdp_flag *flag)
{
    char value[256];
    flag_value_text(flag, value, sizeof value);
    fputs(".TP\n\\fB\\-\\-", out);
    print_roff(out, flag->name);
    fputs("\\fR", out);
    if (*value) {
        fputs(" \\fI", out);
        print_roff(out, value);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    print_roff(out, flag->help);
    if (flag->default_value && *flag->default_value) {
        fputs(" (default: ", out);
        print_roff(out, flag->type == FSDP_FLAG_SWITCH ? "on" : flag->default_value);
        fputc(')', out);
    }
    fputc('\n', out);
}

static void man_flags(FILE *out, const command *c)
{
    const char *group = "";
    for (const fsdp_flag *flag = c->flags ? c->flags() : NULL; flag && flag->name; flag++) {
        if (!flag_belongs(flag, c))
            continue;
        const char *own = flag->group ? flag->group : "Flags";
        if (strcmp(group, own) != 0) {
            fputs(".SS \"", out);
            print_roff(out, own);
            fputs("\"\n", out);
            group = own;
        }
        man_flag(out, flag);
    }
}

static void man_end(FILE *out)
{
    fputs(".SH EXIT STATUS\n0 when all went well, 2 when what was given is wrong (flags, files, settings), 1 when\n"
          "something failed while running, 128 plus the signal when one ended it.\n",
          out);
}

/* fsdp(1): what there is, and where it is described. */
static void man_overview(FILE *out)
{
    fprintf(out,
            ".TH FSDP 1 \"\" \"fsdp %s\" \"User Commands\"\n.ad l\n.SH NAME\nfsdp \\- fully sharded data parallel "
            "training\n"
            ".SH SYNOPSIS\n\\fBfsdp\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR...]\n.SH DESCRIPTION\n"
            "Trains neural networks whose parameters, gradients and optimizer state are spread over processes.\n"
            "Flags are written \\-\\-flag value or \\-\\-flag=value; dashes and underscores are the same;\n"
            "a switch is \\-\\-x, \\-\\-x=1 or \\-\\-no_x.\n.SH COMMANDS\n",
            FSDP_VERSION);
    for (const command *const *c = commands; *c; c++) {
        fprintf(out, ".TP\n\\fBfsdp\\-%s\\fR(1)\n", (*c)->name);
        print_roff(out, (*c)->summary);
        fputs(".\n", out);
    }
    man_end(out);
}

void help_man(FILE *out, const command *c)
{
    if (!c) {
        man_overview(out);
        return;
    }
    fprintf(out, ".TH FSDP\\-%s 1 \"\" \"fsdp %s\" \"User Commands\"\n.ad l\n.SH NAME\nfsdp\\-%s \\- ", c->name,
            FSDP_VERSION, c->name);
    print_roff(out, c->summary);
    fprintf(out, "\n.SH SYNOPSIS\n\\fBfsdp %s\\fR ", c->name);
    print_roff(out, c->usage);
    fputs("\n.SH DESCRIPTION\n", out);
    print_roff(out, c->summary);
    fputs(".\n", out);
    if (c->details) {
        fputs(".PP\n.nf\n", out);
        print_roff(out, c->details);
        fputs("\n.fi\n", out);
    }
    if (c->flags)
        fputs(".SH OPTIONS\n", out);
    man_flags(out, c);
    man_end(out);
    fputs(".SH SEE ALSO\n\\fBfsdp\\fR(1)\n", out);
}

/* Cells may not hold bars. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

static void markdown_flag(FILE *out, const fsdp_flag *flag)
{
    char value[256];
    flag_value_text(flag, value, sizeof value);
    fprintf(out, "| `--%s", flag->name);
    if (*value) {
        fputc(' ', out);
        print_cell(out, value);
    }
    fputs("` | ", out);
    if (flag->default_value && *flag->default_value)
        fprintf(out, "`%s`", flag->type == FSDP_FLAG_SWITCH ? "on" : flag->default_value);
    fputs(" | ", out);
    print_cell(out, flag->help);
    if (flag->aliases)
        fprintf(out, " (also `--%s`)", flag->aliases);
    for (const fsdp_choice *c = flag->choices; c && c->name; c++)
        if (c->aliases)
            fprintf(out, "; `%s` = `%s`", c->name, c->aliases);
    fputs(" |\n", out);
}

static void markdown_command(FILE *out, const command *c)
{
    fprintf(out, "\n## fsdp %s\n\n    fsdp %s %s\n\n%s.\n", c->name, c->name, c->usage, c->summary);
    if (c->details)
        fprintf(out, "\n```\n%s\n```\n", c->details);
    const char *group = NULL;
    for (const fsdp_flag *flag = c->flags ? c->flags() : NULL; flag && flag->name; flag++) {
        if (!flag_belongs(flag, c))
            continue;
        const char *own = flag->group ? flag->group : "Flags";
        if (!group || strcmp(group, own) != 0)
            fprintf(out, "\n### %s\n\n| flag | default | meaning |\n|---|---|---|\n", own);
        group = own;
        markdown_flag(out, flag);
    }
}

void help_markdown(FILE *out)
{
    fputs("# Commands and flags\n\nMade by `fsdp help --markdown`; a test keeps it current.\n\n"
          "`--flag value` and `--flag=value` are the same, and so are dashes and underscores. A switch is `--x`, "
          "`--x=1`,\n"
          "`--x=true` or `--no_x`. If a flag is repeated, the last one wins. `--config FILE` reads the same names from "
          "JSON or\n"
          "`key = value` lines. The command line overrides the file; both override a preset.\n",
          out);
    for (const command *const *c = commands; *c; c++)
        markdown_command(out, *c);
}
