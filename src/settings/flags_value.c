/* Turns the text after a flag into the field of a struct, and back. flags.c finds the flag. */
#include "settings/flags_value.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

/* Texts are kept in a chain of blocks, newest first. */
typedef struct kept {
    struct kept *next;
    max_align_t data[];
} kept;

static void *flags_keep(fsdp_flag_state *state, size_t bytes)
{
    kept *block = malloc(sizeof *block + bytes);
    if (!block)
        return NULL;
    block->next = state->storage;
    state->storage = block;
    return block->data;
}

void fsdp_flags_free(fsdp_flag_state *state)
{
    for (kept *block = state->storage, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    state->storage = NULL;
}

static char folded(char c, bool ignore_case)
{
    if (c == '-')
        return '_';
    return ignore_case ? (char)tolower((unsigned char)c) : c;
}

bool flags_same_name(const char *a, const char *b, size_t b_length, bool ignore_case)
{
    if (strlen(a) != b_length)
        return false;
    for (size_t i = 0; i < b_length; i++)
        if (folded(a[i], ignore_case) != folded(b[i], ignore_case))
            return false;
    return true;
}

bool flags_has_word(const char *words, const char *word, bool ignore_case)
{
    while (words && *words) {
        size_t length = strcspn(words, " ");
        if (length && flags_same_name(word, words, length, ignore_case))
            return true;
        words += length + (words[length] == ' ');
    }
    return false;
}

const fsdp_choice *flags_choice(const fsdp_flag *flag, const char *text)
{
    for (const fsdp_choice *choice = flag->choices; choice->name; choice++)
        if (flags_same_name(text, choice->name, strlen(choice->name), true) ||
            flags_has_word(choice->aliases, text, true))
            return choice;
    return NULL;
}

bool flags_switch(const char *text, bool *out)
{
    *out = flags_has_word("1 true yes on", text, true);
    return *out || flags_has_word("0 false no off", text, true);
}

static fsdp_status wrong_number(const fsdp_flag *flag, const char *text, const char *wanted)
{
    return error_set(FSDP_ERR_INPUT, "--%s=%s: %s is expected", flag->name, text, wanted);
}

static fsdp_status check_bounds(const fsdp_flag *flag, const char *text, double value)
{
    if (flag->min == 0 && flag->max == 0)
        return FSDP_OK;
    if (value < flag->min)
        return error_set(FSDP_ERR_INPUT, "--%s=%s: must be at least %.9g", flag->name, text, flag->min);
    if (value > flag->max)
        return error_set(FSDP_ERR_INPUT, "--%s=%s: must be at most %.9g", flag->name, text, flag->max);
    return FSDP_OK;
}

/* Whole numbers may be written as 1e8 too. */
static fsdp_status store_int(const fsdp_flag *flag, int64_t *field, const char *text)
{
    char *end;
    const fsdp_choice *named = flag->choices ? flags_choice(flag, text) : NULL;
    if (named) {
        *field = named->value;
        return FSDP_OK;
    }
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end) {
        double real = strtod(text, &end);
        if (end == text || *end || !isfinite(real) || real != floor(real) || fabs(real) > 9e15)
            return wrong_number(flag, text, "a whole number");
        value = (long long)real;
    }
    FSDP_TRY(check_bounds(flag, text, (double)value));
    *field = value;
    return FSDP_OK;
}

static fsdp_status store_float(const fsdp_flag *flag, double *field, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        return wrong_number(flag, text, "a number");
    FSDP_TRY(check_bounds(flag, text, value));
    *field = value;
    return FSDP_OK;
}

/* Powers of 1000 without an i ("GB"), of 1024 with one ("GiB"). */
static fsdp_status store_bytes(const fsdp_flag *flag, int64_t *field, const char *text)
{
    static const char letters[] = "KMGTP";
    char *end;
    double value = strtod(text, &end);
    bool wrong = end == text || !isfinite(value) || value < 0;
    const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (letter) {
        end++;
        bool binary = *end == 'i';
        end += binary;
        value *= pow(binary ? 1024 : 1000, (double)(letter - letters + 1));
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (wrong || *end || value >= 0x1p63)
        return wrong_number(flag, text, "a size such as 80GB or 512MiB");
    FSDP_TRY(check_bounds(flag, text, value));
    *field = (int64_t)value;
    return FSDP_OK;
}

/* What a row with choices takes, and what was probably meant. */
static fsdp_status wrong_choice(const fsdp_flag *flag, const char *text)
{
    char names[512] = "";
    const char *candidates[64];
    int n = 0;
    for (const fsdp_choice *c = flag->choices; c->name && n < 64; c++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", n ? ", " : "", c->name);
        candidates[n++] = c->name;
    }
    const char *near = fsdp_nearest(text, candidates, n);
    return error_set(FSDP_ERR_INPUT, "--%s=%s: one of %s is expected%s%s%s", flag->name, text, names,
                     near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static fsdp_status store_choice(const fsdp_flag *flag, int *field, const char *text)
{
    const fsdp_choice *choice = flags_choice(flag, text);
    if (!choice)
        return wrong_choice(flag, text);
    *field = choice->value;
    return FSDP_OK;
}

static fsdp_status out_of_memory(const fsdp_flag *flag)
{
    return error_set(FSDP_ERR_MEMORY, "--%s: out of memory for its value", flag->name);
}

static fsdp_status store_text(const fsdp_flag *flag, const char **field, fsdp_flag_state *state, const char *text)
{
    if (!*text) {
        *field = NULL;
        return FSDP_OK;
    }
    if (flag->choices) {
        const fsdp_choice *choice = flags_choice(flag, text);
        if (!choice)
            return wrong_choice(flag, text);
        *field = choice->name;
        return FSDP_OK;
    }
    char *copy = flags_keep(state, strlen(text) + 1);
    if (!copy)
        return out_of_memory(flag);
    *field = strcpy(copy, text);
    return FSDP_OK;
}

fsdp_status flags_store_list(const fsdp_flag *flag, void *values, fsdp_flag_state *state, const char *const *items,
                             int n)
{
    fsdp_text_list list = {NULL, n};
    if (n > 0) {
        const char **copies = flags_keep(state, (size_t)n * sizeof *copies);
        if (!copies)
            return out_of_memory(flag);
        for (int i = 0; i < n; i++) {
            char *copy = flags_keep(state, strlen(items[i]) + 1);
            if (!copy)
                return out_of_memory(flag);
            copies[i] = strcpy(copy, items[i]);
        }
        list.items = copies;
    }
    memcpy((char *)values + flag->offset, &list, sizeof list);
    return FSDP_OK;
}

/* Cuts at commas; empty parts are dropped. */
static fsdp_status store_list(const fsdp_flag *flag, void *values, fsdp_flag_state *state, const char *text)
{
    int most = 1, n = 0;
    for (const char *c = text; *c; c++)
        most += *c == ',';
    const char **items = calloc((size_t)most, sizeof *items);
    char *copy = strdup(text), *rest = copy;
    fsdp_status status = FSDP_OK;
    if (!items || !copy)
        status = out_of_memory(flag);
    for (char *part; status == FSDP_OK && (part = strsep(&rest, ","));)
        if (*part)
            items[n++] = part;
    if (status == FSDP_OK)
        status = flags_store_list(flag, values, state, items, n);
    free(items);
    free(copy);
    return status;
}

fsdp_status flags_store(const fsdp_flag *flag, void *values, fsdp_flag_state *state, const char *text)
{
    void *field = (char *)values + flag->offset;
    switch (flag->type) {
    case FSDP_FLAG_INT:
        return store_int(flag, field, text);
    case FSDP_FLAG_FLOAT:
        return store_float(flag, field, text);
    case FSDP_FLAG_BYTES:
        return store_bytes(flag, field, text);
    case FSDP_FLAG_TEXT:
        return store_text(flag, field, state, text);
    case FSDP_FLAG_SWITCH:
        return flags_switch(text, field) ? FSDP_OK : wrong_number(flag, text, "true or false");
    case FSDP_FLAG_CHOICE:
        return store_choice(flag, field, text);
    case FSDP_FLAG_LIST:
        return store_list(flag, values, state, text);
    }
    return error_set(FSDP_ERR_STATE, "--%s: its row in the table has no known type", flag->name);
}

/* The shortest of 15 to 17 digits that reads back as the same number. */
static char *text_of_double(double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return strdup(text);
}

static char *text_of_list(const fsdp_text_list *list)
{
    size_t bytes = 1;
    for (int i = 0; i < list->n; i++)
        bytes += strlen(list->items[i]) + 1;
    char *text = list->n ? malloc(bytes) : NULL, *end = text;
    for (int i = 0; text && i < list->n; i++)
        end += sprintf(end, "%s%s", i ? "," : "", list->items[i]);
    return text;
}

static char *text_of_choice(const fsdp_flag *flag, int value)
{
    for (const fsdp_choice *choice = flag->choices; choice->name; choice++)
        if (choice->value == value)
            return strdup(choice->name);
    return NULL;
}

char *fsdp_flags_value(const fsdp_flag *flag, const void *values)
{
    const void *field = (const char *)values + flag->offset;
    char text[32], *named;
    switch (flag->type) {
    case FSDP_FLAG_INT:
    case FSDP_FLAG_BYTES:
        named = flag->choices ? text_of_choice(flag, (int)*(const int64_t *)field) : NULL;
        if (named)
            return named;
        snprintf(text, sizeof text, "%lld", (long long)*(const int64_t *)field);
        return strdup(text);
    case FSDP_FLAG_FLOAT:
        return text_of_double(*(const double *)field);
    case FSDP_FLAG_TEXT: {
        const char *value = *(const char *const *)field;
        return value ? strdup(value) : NULL;
    }
    case FSDP_FLAG_SWITCH:
        return strdup(*(const bool *)field ? "true" : "false");
    case FSDP_FLAG_CHOICE:
        return text_of_choice(flag, *(const int *)field);
    case FSDP_FLAG_LIST:
        return text_of_list(field);
    }
    return NULL;
}
