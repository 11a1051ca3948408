/* Finds the row of a flag and reads arguments by it. flags_value.c reads values, flags_file.c reads files. */
#include <fsdp/flags.h>

#include <string.h>

#include "base/error.h"
#include "settings/flags_value.h"

const fsdp_flag *fsdp_flags_find(const fsdp_flag *table, const char *name)
{
    for (const fsdp_flag *flag = table; flag->name; flag++)
        if (flags_same_name(name, flag->name, strlen(flag->name), false) || flags_has_word(flag->aliases, name, false))
            return flag;
    return NULL;
}

bool fsdp_flags_belongs(const fsdp_flag *flag, const char *command)
{
    return !flag->only || !command || flags_has_word(flag->only, command, false);
}

static bool can_stand_alone(const fsdp_flag *flag)
{
    return flag->type == FSDP_FLAG_SWITCH || flag->bare;
}

/* Also understands "no_x" if x can stand alone. */
static const fsdp_flag *find_spelled(const fsdp_flag *table, const char *name, bool *negated)
{
    const fsdp_flag *flag = fsdp_flags_find(table, name);
    *negated = false;
    if (!flag && (strncmp(name, "no_", 3) == 0 || strncmp(name, "no-", 3) == 0)) {
        flag = fsdp_flags_find(table, name + 3);
        *negated = flag && can_stand_alone(flag);
        if (!*negated)
            flag = NULL;
    }
    return flag;
}

static fsdp_status unknown_flag(const fsdp_flag *table, const char *name, const char *command)
{
    const char *names[FSDP_FLAGS_MAX];
    int n = 0;
    for (const fsdp_flag *flag = table; flag->name && n < FSDP_FLAGS_MAX; flag++)
        if (fsdp_flags_belongs(flag, command))
            names[n++] = flag->name;
    const char *near = fsdp_nearest(name, names, n);
    if (near)
        return error_set(FSDP_ERR_INPUT, "unknown flag --%s; did you mean --%s?", name, near);
    return error_set(FSDP_ERR_INPUT, "unknown flag --%s; --help lists those there are", name);
}

fsdp_status fsdp_flags_init(const fsdp_flag *table, void *values, fsdp_flag_state *state)
{
    memset(state, 0, sizeof *state);
    for (const fsdp_flag *flag = table; flag->name; flag++) {
        if (flag->default_value)
            FSDP_TRY(flags_store(flag, values, state, flag->default_value));
        else if (flag->type == FSDP_FLAG_CHOICE)
            memcpy((char *)values + flag->offset, &flag->choices[0].value, sizeof(int));
        else if (flag->type == FSDP_FLAG_SWITCH)
            *(bool *)((char *)values + flag->offset) = false;
        else
            memset((char *)values + flag->offset, 0,
                   flag->type == FSDP_FLAG_LIST ? sizeof(fsdp_text_list) : sizeof(int64_t));
    }
    return FSDP_OK;
}

bool fsdp_flags_given(const fsdp_flag *table, const fsdp_flag_state *state, const char *name)
{
    const fsdp_flag *flag = fsdp_flags_find(table, name);
    return flag && state->origin[flag - table] >= FSDP_FROM_FILE;
}

/* `text` NULL: the flag stood alone. */
static fsdp_status set_flag(const fsdp_flag *table, void *values, fsdp_flag_state *state, const fsdp_flag *flag,
                            const char *text, fsdp_origin origin)
{
    if (!text)
        text = flag->type == FSDP_FLAG_SWITCH ? "true" : flag->bare;
    if (!text)
        return error_set(FSDP_ERR_INPUT, "--%s wants a value%s%s", flag->name, flag->unit ? ": " : "",
                         flag->unit ? flag->unit : "");
    FSDP_TRY(flags_store(flag, values, state, text));
    state->origin[flag - table] = (uint8_t)origin;
    return FSDP_OK;
}

fsdp_status fsdp_flags_set(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *name,
                           const char *text, fsdp_origin origin)
{
    bool negated;
    const fsdp_flag *flag = find_spelled(table, name, &negated);
    if (!flag)
        return unknown_flag(table, name, NULL);
    if (negated && text)
        return error_set(FSDP_ERR_INPUT, "--%s takes no value; write --%s=%s", name, flag->name, text);
    return set_flag(table, values, state, flag, negated ? "false" : text, origin);
}

/* The words of one command line, and whether words that are not flags may be among them. */
typedef struct argument_reader {
    const fsdp_flag *table;
    void *values;
    fsdp_flag_state *state;
    const char *command;
    int argc;
    char *const *argv;
    bool words_allowed;
} argument_reader;

/* Whether the word after a flag that can stand alone is its value; never, if other words are allowed. */
static bool takes_next(const argument_reader *r, const fsdp_flag *flag, const char *next)
{
    bool ignored;
    if (!can_stand_alone(flag))
        return strncmp(next, "--", 2) != 0;
    if (r->words_allowed)
        return false;
    if (flag->type == FSDP_FLAG_SWITCH)
        return flags_switch(next, &ignored);
    return flag->type == FSDP_FLAG_CHOICE ? flags_choice(flag, next) != NULL : strncmp(next, "--", 2) != 0;
}

/* Reads the flag at argv[at]; *at moves to its last word. */
static fsdp_status read_flag(const argument_reader *r, int *at)
{
    const char *word = r->argv[*at] + (r->argv[*at][1] == '-' ? 2 : 1);
    size_t length = strcspn(word, "=");
    const char *text = word[length] == '=' ? word + length + 1 : NULL;
    char name[128];
    if (length >= sizeof name)
        return error_set(FSDP_ERR_INPUT, "unknown flag --%.60s...", word);
    memcpy(name, word, length);
    name[length] = 0;
    bool negated;
    const fsdp_flag *flag = find_spelled(r->table, name, &negated);
    if (!flag)
        return unknown_flag(r->table, name, r->command);
    if (!fsdp_flags_belongs(flag, r->command))
        return error_set(FSDP_ERR_INPUT, "--%s belongs to `fsdp %s`", flag->name, flag->only);
    if (negated && text)
        return error_set(FSDP_ERR_INPUT, "--%s takes no value; write --%s=%s", name, flag->name, text);
    if (negated)
        text = "false";
    if (!text && *at + 1 < r->argc && takes_next(r, flag, r->argv[*at + 1]))
        text = r->argv[++*at];
    return set_flag(r->table, r->values, r->state, flag, text, FSDP_FROM_COMMAND);
}

static fsdp_status no_such_flag(const argument_reader *r, const char *word)
{
    const fsdp_flag *flag = strlen(word) > 2 ? fsdp_flags_find(r->table, word + 1) : NULL;
    if (flag)
        return error_set(FSDP_ERR_INPUT, "unknown flag %s; did you mean --%s?", word, flag->name);
    return error_set(FSDP_ERR_INPUT, "unknown flag %s; --help lists those there are", word);
}

/* Of aliases, those of one letter may be written with one dash. */
static bool is_flag(const argument_reader *r, const char *word)
{
    if (word[0] == '-' && word[1] && !word[2])
        return fsdp_flags_find(r->table, word + 1) != NULL;
    return word[0] == '-' && word[1] == '-' && word[2];
}

static bool is_end_of_flags(const char *word)
{
    return strcmp(word, "--") == 0;
}

static bool is_short(const char *word)
{
    return word[0] == '-' && word[1] && word[1] != '-';
}

fsdp_status fsdp_flags_parse(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                             int argc, char *const *argv, const char **rest, int *n_rest)
{
    argument_reader r = {table, values, state, command, argc, argv, rest != NULL};
    bool only_words = false;
    int n = 0;
    for (int i = 0; i < argc; i++) {
        if (!only_words && is_flag(&r, argv[i])) {
            FSDP_TRY(read_flag(&r, &i));
        } else if (!only_words && rest && is_end_of_flags(argv[i])) {
            only_words = true;
        } else if (!only_words && is_short(argv[i])) {
            return no_such_flag(&r, argv[i]);
        } else if (rest) {
            rest[n++] = argv[i];
        } else {
            return error_set(FSDP_ERR_INPUT, "unexpected word '%s'; flags begin with --", argv[i]);
        }
    }
    if (n_rest)
        *n_rest = n;
    return FSDP_OK;
}

fsdp_status fsdp_flags_parse_leading(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                                     int argc, char *const *argv, int *n_used)
{
    argument_reader r = {table, values, state, command, argc, argv, true};
    int i = 0;
    for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
        if (is_end_of_flags(argv[i])) {
            i++;
            break;
        }
        if (!is_flag(&r, argv[i]))
            return no_such_flag(&r, argv[i]);
        FSDP_TRY(read_flag(&r, &i));
    }
    *n_used = i;
    return FSDP_OK;
}
