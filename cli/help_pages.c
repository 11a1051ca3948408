/* Help as pages, made from the same tables as the text: a man page, a Markdown reference, completion for bash. */
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

static void man_command(FILE *out, const command *c)
{
    fputs(".SS \"fsdp ", out);
    print_roff(out, c->name);
    fputc(' ', out);
    print_roff(out, c->usage);
    fputs("\"\n", out);
    print_roff(out, c->summary);
    fputs(".\n", out);
    if (c->details) {
        fputs(".PP\n.nf\n", out);
        print_roff(out, c->details);
        fputs("\n.fi\n", out);
    }
    const char *group = "";
    for (const fsdp_flag *flag = c->flags ? c->flags() : NULL; flag && flag->name; flag++) {
        if (!flag_belongs(flag, c))
            continue;
        if (flag->group && strcmp(group, flag->group) != 0) {
            fputs(".PP\n\\fI", out);
            print_roff(out, flag->group);
            fputs("\\fR\n", out);
            group = flag->group;
        }
        man_flag(out, flag);
    }
}

void help_man(FILE *out)
{
    fprintf(out,
            ".TH FSDP 1 \"\" \"fsdp %s\" \"User Commands\"\n.ad l\n.SH NAME\nfsdp \\- fully sharded data parallel "
            "training\n"
            ".SH SYNOPSIS\n\\fBfsdp\\fR \\fICOMMAND\\fR [\\fIFLAGS\\fR...]\n.SH DESCRIPTION\n"
            "Trains neural networks with parameters, gradients and optimizer state sharded across processes.\n"
            "Flags are written \\-\\-flag value or \\-\\-flag=value; dashes and underscores are the same;\n"
            "a switch is \\-\\-x, \\-\\-x=1 or \\-\\-no_x.\n.SH COMMANDS\n",
            FSDP_VERSION);
    for (const command *const *c = commands; *c; c++)
        man_command(out, *c);
    fputs(".SH EXIT STATUS\n0 on success, 2 for bad input (flags, files, settings), 1 for failures at run time,\n"
          "128 plus the signal when interrupted.\n",
          out);
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

static void completion_flags(FILE *out, const command *c)
{
    fprintf(out, "    %s) flags='--help", c->name);
    for (const fsdp_flag *flag = c->flags ? c->flags() : NULL; flag && flag->name; flag++) {
        if (!flag_belongs(flag, c))
            continue;
        fprintf(out, " --%s", flag->name);
        if (flag->type == FSDP_FLAG_SWITCH)
            fprintf(out, " --no_%s", flag->name);
    }
    fputs("' ;;\n", out);
}

/* A flag of several commands means the same in each, so its choices are listed once. */
static bool first_with_choices(const command *const *upto, const fsdp_flag *flag)
{
    for (const command *const *c = commands; c != upto; c++)
        if ((*c)->flags && fsdp_flags_find((*c)->flags(), flag->name))
            return false;
    return true;
}

void help_completion(FILE *out)
{
    fputs("# Bash completion for fsdp, made by `fsdp help --completion bash`.\n_fsdp()\n{\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags= choices=\n"
          "    COMPREPLY=()\n    if ((COMP_CWORD == 1)); then\n        COMPREPLY=($(compgen -W '",
          out);
    for (const command *const *c = commands; *c; c++)
        fprintf(out, "%s ", (*c)->name);
    fputs("--help --version' -- \"$current\"))\n        return\n    fi\n"
          "    # \"--flag=value\" comes as three words where = breaks words.\n"
          "    if [[ $before == = ]]; then\n        before=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    elif [[ $current == = ]]; then\n        current=\n    fi\n    case ${before//-/_} in\n",
          out);
    for (const command *const *c = commands; *c; c++)
        for (const fsdp_flag *flag = (*c)->flags ? (*c)->flags() : NULL; flag && flag->name; flag++) {
            if (!flag->choices || !flag_belongs(flag, *c) || !first_with_choices(c, flag))
                continue;
            fprintf(out, "    __%s) choices='", flag->name);
            for (const fsdp_choice *choice = flag->choices; choice->name; choice++)
                fprintf(out, "%s%s", choice == flag->choices ? "" : " ", choice->name);
            fputs("' ;;\n", out);
        }
    fputs("    esac\n    if [[ $choices ]]; then\n        COMPREPLY=($(compgen -W \"$choices\" -- \"$current\"))\n"
          "        return\n    fi\n    case ${COMP_WORDS[1]} in\n",
          out);
    for (const command *const *c = commands; *c; c++)
        completion_flags(out, *c);
    fputs("    esac\n    if [[ $current == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n    else\n"
          "        COMPREPLY=($(compgen -f -- \"$current\"))\n    fi\n}\ncomplete -o filenames -F _fsdp fsdp\n",
          out);
}
