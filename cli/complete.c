/* Completion of command lines: what may stand where a word is being typed, from the same tables as help. The scripts
 * for bash, zsh and fish only hand over the words and show what comes back, so all shells complete alike, also after
 * `fsdp run ... fsdp train`. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

/* The last line where names of files fit too; the shells know those best. */
static const char files_line[] = ":files";

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* "NAME<tab>what it is": zsh and fish show the second part. */
static void offer(FILE *out, const char *typed, const char *name, const char *help)
{
    if (starts(name, typed))
        fprintf(out, "%s%s%s\n", name, help ? "\t" : "", help ? help : "");
}

static void offer_commands(FILE *out, const char *typed)
{
    for (const command *const *c = commands; *c; c++)
        offer(out, typed, (*c)->name, (*c)->summary);
    offer(out, typed, "--help", "list the commands");
    offer(out, typed, "--version", "show the version and what was built in");
}

/* As they are typed: after a dash in the name, dashes all along. */
static void offer_flags(FILE *out, const command *c, const char *typed)
{
    char name[128];
    bool dashes = strlen(typed) > 2 && strchr(typed + 2, '-') != NULL;
    for (const fsdp_flag *flag = c->flags ? c->flags() : NULL; flag && flag->name; flag++)
        for (int no = 0; no < (flag->type == FSDP_FLAG_SWITCH ? 2 : 1) && flag_belongs(flag, c); no++) {
            snprintf(name, sizeof name, "--%s%s", no ? "no_" : "", flag->name);
            for (char *p = name + 2; dashes && *p; p++)
                *p = *p == '_' ? '-' : *p;
            offer(out, typed, name, flag->help);
        }
    offer(out, typed, "--help", "explain this command");
}

/* Checkpoints of the runs in this folder and in the one that is typed. */
static void offer_checkpoints(FILE *out, const char *typed)
{
    static const char *const places[] = {"checkpoints/step-*", "*/checkpoints/step-*", "*/*/checkpoints/step-*"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        glob_t found;
        if (glob(places[i], 0, NULL, &found) == 0) {
            for (size_t k = 0; k < found.gl_pathc; k++)
                offer(out, typed, found.gl_pathv[k], "checkpoint");
            globfree(&found);
        }
    }
    fprintf(out, "%s\n", files_line);
}

/* The flag that `word` names, however it is spelled; NULL: none, or one without a value. */
static const fsdp_flag *flag_with_value(const command *c, const char *word)
{
    char name[128];
    if (!starts(word, "--") || !c->flags || strlen(word) >= sizeof name)
        return NULL;
    strcpy(name, word + 2);
    for (char *p = name; *p; p++)
        *p = *p == '-' ? '_' : *p;
    const fsdp_flag *flag = fsdp_flags_find(c->flags(), name);
    return flag && flag_belongs(flag, c) && flag->type != FSDP_FLAG_SWITCH ? flag : NULL;
}

static bool names_checkpoint(const char *flag)
{
    static const char *const names[] = {
        "resume_from_checkpoint", "init_from", "base", "model", "checkpoint", "adapter"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(flag, names[i]) == 0)
            return true;
    return false;
}

static void offer_values(FILE *out, const fsdp_flag *flag, const char *typed)
{
    for (const fsdp_choice *c = flag->choices; c && c->name; c++)
        offer(out, typed, c->name, NULL);
    if (names_checkpoint(flag->name))
        offer_checkpoints(out, typed);
    else if (!flag->choices && (flag->type == FSDP_FLAG_TEXT || flag->type == FSDP_FLAG_LIST))
        fprintf(out, "%s\n", files_line);
}

/* First words that a usage lists: "show|verify|diff PATH...". */
static void offer_actions(FILE *out, const command *c, const char *typed)
{
    char word[64];
    const char *usage = c->usage;
    if (strcspn(usage, "|") > strcspn(usage, " [") || usage[0] == '[' || usage[0] == '-')
        return;
    while (*usage && *usage != ' ') {
        size_t n = strcspn(usage, "| ");
        snprintf(word, sizeof word, "%.*s", (int)n, usage);
        offer(out, typed, word, NULL);
        usage += n + (usage[n] == '|');
    }
}

/* words[0 .. n-1] follow `fsdp COMMAND`; the last is being typed. Returns where another command line of fsdp begins
 * among them; n: nowhere. */
static int inner_line(const command *c, char *const *words, int n)
{
    for (int i = 0; c->passes_on && i + 1 < n; i++) {
        const char *slash = strrchr(words[i], '/');
        if (strcmp(slash ? slash + 1 : words[i], "fsdp") == 0)
            return i + 1;
    }
    return n;
}

static bool has_word(const command *c, char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (!starts(words[i], "-") && (i == 0 || !flag_with_value(c, words[i - 1])))
            return true;
    return false;
}

static void complete_command(FILE *out, const command *c, char *const *words, int n)
{
    const char *typed = words[n - 1], *sign = strchr(typed, '=');
    const fsdp_flag *flag = n > 1 ? flag_with_value(c, words[n - 2]) : NULL;
    if (flag) {
        offer_values(out, flag, typed);
    } else if (starts(typed, "--") && sign) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)(sign - typed), typed);
        if ((flag = flag_with_value(c, name)))
            offer_values(out, flag, sign + 1);
    } else if (starts(typed, "-")) {
        offer_flags(out, c, typed);
    } else if (c->usage[0] != '-' && !has_word(c, words, n - 1)) {
        offer_actions(out, c, typed);
        if (strcmp(c->name, "help") == 0)
            offer_commands(out, typed);
        else
            offer_checkpoints(out, typed);
    } else {
        offer_checkpoints(out, typed);
    }
}

void complete_words(FILE *out, char *const *words, int n)
{
    while (n > 1) {
        const command *c = command_find(words[0]);
        if (!c)
            return;
        int inner = inner_line(c, words + 1, n - 1);
        if (inner == n - 1) {
            complete_command(out, c, words + 1, n - 1);
            return;
        }
        words += 1 + inner;
        n -= 1 + inner;
    }
    if (n == 1)
        offer_commands(out, words[0]);
}

/* ---- Scripts ---- */

static const char bash_script[] =
    "# Bash completion for fsdp, made by `fsdp help --completion bash`: the command itself knows what may follow.\n"
    "_fsdp()\n{\n"
    "    local current=${COMP_WORDS[COMP_CWORD]} line files= words=() i\n"
    "    # \"--flag=value\" comes as three words where = breaks words.\n"
    "    for ((i = 1; i <= COMP_CWORD; i++)); do\n"
    "        [[ ${COMP_WORDS[i]} == = ]] && ((i < COMP_CWORD)) && continue\n"
    "        words+=(\"${COMP_WORDS[i]}\")\n"
    "    done\n"
    "    if [[ $current == = ]]; then\n        current=\n        words[-1]=\n    fi\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        if [[ $line == :files ]]; then\n            files=1\n"
    "        else\n            COMPREPLY+=(\"${line%%$'\\t'*}\")\n        fi\n"
    "    done < <(\"${COMP_WORDS[0]/#\\~/$HOME}\" help --complete -- \"${words[@]}\" 2>/dev/null)\n"
    "    if [[ $files ]]; then\n"
    "        while IFS= read -r line; do\n            [[ \" ${COMPREPLY[*]-} \" == *\" $line \"* ]] || "
    "COMPREPLY+=(\"$line\")\n        done < <(compgen -f -- "
    "\"$current\")\n"
    "    fi\n}\ncomplete -o filenames -F _fsdp fsdp\n";

static const char zsh_script[] =
    "#compdef fsdp\n"
    "# Zsh completion for fsdp, made by `fsdp help --completion zsh`: the command itself knows what may follow.\n"
    "_fsdp()\n{\n"
    "    local line name files=\n    local -a described\n"
    "    while IFS= read -r line; do\n"
    "        if [[ $line == :files ]]; then\n            files=1\n            continue\n        fi\n"
    "        name=${line%%$'\\t'*}\n"
    "        if [[ $line == *$'\\t'* ]]; then\n            described+=(\"${name//:/\\\\:}:${line#*$'\\t'}\")\n"
    "        else\n            described+=(\"${name//:/\\\\:}\")\n        fi\n"
    "    done < <(${words[1]} help --complete -- \"${(@)words[2,CURRENT]}\" 2>/dev/null)\n"
    "    [[ $PREFIX == --*=* ]] && compset -P '*='\n"
    "    (( $#described )) && _describe fsdp described\n"
    "    [[ -n $files ]] && _files\n}\n"
    "compdef _fsdp fsdp\n";

static const char fish_script[] =
    "# Fish completion for fsdp, made by `fsdp help --completion fish`: the command itself knows what may follow.\n"
    "function __fsdp_complete\n"
    "    set -l words (commandline -opc) (commandline -ct)\n"
    "    for line in ($words[1] help --complete -- $words[2..-1] 2>/dev/null)\n"
    "        if test \"$line\" = :files\n            __fish_complete_path (commandline -ct)\n"
    "        else\n            echo $line\n        end\n"
    "    end\nend\n"
    "complete -c fsdp -f -a '(__fsdp_complete)'\n";

void help_completion(FILE *out, const char *shell)
{
    fputs(strcmp(shell, "zsh") == 0 ? zsh_script : strcmp(shell, "fish") == 0 ? fish_script : bash_script, out);
}
