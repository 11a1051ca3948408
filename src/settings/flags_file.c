/* Flags from files (JSON objects, or lines of "key = value") and into JSON. Values go through the same rows as those of
 * the command line. */
#include <fsdp/flags.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "settings/flags_value.h"

/* A file being read: what was set before keeps its value, and nothing may be in it twice. */
typedef struct flag_file {
    const fsdp_flag *table;
    void *values;
    fsdp_flag_state *state;
    const char *command;
    const char *path;
    bool before[FSDP_FLAGS_MAX]; /* given elsewhere */
    bool seen[FSDP_FLAGS_MAX];
} flag_file;

/* The row called `key`; *skip if the command line has set it. A row of another command is skipped too, so that one file
 * serves both `fsdp plan` and `fsdp train`. */
static fsdp_status find_key(flag_file *f, const char *key, const fsdp_flag **out, bool *skip)
{
    const fsdp_flag *flag = fsdp_flags_find(f->table, key);
    if (!flag) {
        const char *names[FSDP_FLAGS_MAX];
        int n = 0;
        for (const fsdp_flag *row = f->table; row->name; row++)
            names[n++] = row->name;
        const char *near = fsdp_nearest(key, names, n);
        return error_set(FSDP_ERR_INPUT, "unknown setting %s%s%s%s", key, near ? "; did you mean " : "",
                         near ? near : "", near ? "?" : "");
    }
    size_t index = (size_t)(flag - f->table);
    if (f->seen[index])
        return error_set(FSDP_ERR_INPUT, "%s is set twice", flag->name);
    f->seen[index] = true;
    *skip = f->before[index] || !fsdp_flags_belongs(flag, f->command);
    *out = flag;
    return FSDP_OK;
}

static fsdp_status store_text(flag_file *f, const char *key, const char *text)
{
    const fsdp_flag *flag = NULL;
    bool skip = false;
    FSDP_TRY(find_key(f, key, &flag, &skip));
    return skip ? FSDP_OK : fsdp_flags_set(f->table, f->values, f->state, flag->name, text, FSDP_FROM_FILE);
}

static fsdp_status store_array(flag_file *f, const char *key, const json_t *array)
{
    const fsdp_flag *flag = NULL;
    bool skip = false;
    FSDP_TRY(find_key(f, key, &flag, &skip));
    if (flag->type != FSDP_FLAG_LIST)
        return error_set(FSDP_ERR_INPUT, "%s takes one value, not a list", key);
    int n = (int)json_array_size(array);
    const char **items = calloc((size_t)n + 1, sizeof *items);
    char(*numbers)[32] = calloc((size_t)n + 1, sizeof *numbers);
    fsdp_status status = items && numbers ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory for %s", key);
    for (int i = 0; status == FSDP_OK && i < n; i++) {
        const json_t *item = json_array_get(array, (size_t)i);
        if (json_is_integer(item))
            snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)json_integer_value(item));
        else if (!json_is_string(item))
            status = error_set(FSDP_ERR_INPUT, "%s: item %d is neither a text nor a whole number", key, i);
        items[i] = json_is_integer(item) ? numbers[i] : json_string_value(item);
    }
    if (status == FSDP_OK && !skip) {
        status = flags_store_list(flag, f->values, f->state, items, n);
        f->state->origin[flag - f->table] = FSDP_FROM_FILE;
    }
    free(items);
    free(numbers);
    return status;
}

const char *flags_json_text(const json_t *value, char room[FLAGS_NUMBER])
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return json_string_value(value);
    case JSON_INTEGER:
        snprintf(room, FLAGS_NUMBER, "%lld", (long long)json_integer_value(value));
        return room;
    case JSON_REAL:
        snprintf(room, FLAGS_NUMBER, "%.17g", json_real_value(value));
        return room;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return NULL;
}

static fsdp_status store_json(flag_file *f, const char *key, const json_t *value)
{
    char number[FLAGS_NUMBER];
    const char *text = flags_json_text(value, number);
    if (json_is_null(value))
        return FSDP_OK;
    if (json_is_array(value))
        return store_array(f, key, value);
    return text ? store_text(f, key, text) : error_set(FSDP_ERR_INPUT, "%s: an object is no value", key);
}

static fsdp_status read_json(flag_file *f, const char *text, size_t bytes)
{
    json_t *object;
    FSDP_TRY(json_parse(f->path, text, bytes, &object));
    fsdp_status status = FSDP_OK;
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        status = store_json(f, key, value);
        if (status != FSDP_OK) {
            error_prefix(status, "%s: ", f->path);
            break;
        }
    }
    json_decref(object);
    return status;
}

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1]))
        length--;
    text[length] = 0;
    return text;
}

/* One "key = value"; # begins a comment outside quotes; quotes around the value are taken off. */
static fsdp_status read_line(flag_file *f, char *line)
{
    char quote = 0, *end = line;
    for (; *end && (*end != '#' || quote); end++) {
        if (quote ? *end == quote : *end == '"' || *end == '\'')
            quote = quote ? 0 : *end;
    }
    *end = 0;
    line = trimmed(line);
    if (!*line)
        return FSDP_OK;
    char *equals = strchr(line, '=');
    if (!equals)
        return error_set(FSDP_ERR_INPUT, "'%s' is no \"key = value\"", line);
    *equals = 0;
    char *key = trimmed(line), *text = trimmed(equals + 1);
    size_t length = strlen(text);
    if (length >= 2 && (*text == '"' || *text == '\'') && text[length - 1] == *text) {
        text[length - 1] = 0;
        text++;
    }
    return store_text(f, key, text);
}

static fsdp_status read_lines(flag_file *f, char *text)
{
    int number = 1;
    for (char *line; (line = strsep(&text, "\n")); number++) {
        fsdp_status status = read_line(f, line);
        if (status != FSDP_OK)
            return error_prefix(status, "%s:%d: ", f->path, number);
    }
    return FSDP_OK;
}

fsdp_status flags_read_text(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                            const char *path, char *text, size_t bytes)
{
    flag_file f = {.table = table, .values = values, .state = state, .command = command, .path = path};
    for (size_t i = 0; i < FSDP_FLAGS_MAX; i++)
        f.before[i] = state->origin[i] >= FSDP_FROM_FILE;
    if (strlen(text) != bytes)
        return error_set(FSDP_ERR_INPUT, "%s: not a text file", path);
    return text[strspn(text, " \t\r\n")] == '{' ? read_json(&f, text, bytes) : read_lines(&f, text);
}

fsdp_status fsdp_flags_read(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                            const char *path)
{
    char *text;
    size_t bytes;
    FSDP_TRY(file_read(path, &text, &bytes));
    fsdp_status status = flags_read_text(table, values, state, command, path, text, bytes);
    free(text);
    return status;
}

static fsdp_status check_utf8(const fsdp_flag *flag, const char *text)
{
    json_t *value = text ? json_string(text) : NULL;
    if (text && !value)
        return error_set(
            FSDP_ERR_INPUT,
            "--%s=%s: not UTF-8, which settings and checkpoints are written in; use a link with another name",
            flag->name, text);
    json_decref(value);
    return FSDP_OK;
}

fsdp_status flags_check_texts(const fsdp_flag *table, const void *values)
{
    for (const fsdp_flag *flag = table; flag->name; flag++) {
        const void *field = (const char *)values + flag->offset;
        if (flag->type == FSDP_FLAG_TEXT)
            FSDP_TRY(check_utf8(flag, *(const char *const *)field));
        for (int i = 0; flag->type == FSDP_FLAG_LIST && i < ((const fsdp_text_list *)field)->n; i++)
            FSDP_TRY(check_utf8(flag, ((const fsdp_text_list *)field)->items[i]));
    }
    return FSDP_OK;
}

static json_t *json_of(const fsdp_flag *flag, const void *values)
{
    const void *field = (const char *)values + flag->offset;
    char *text;
    json_t *value;
    switch (flag->type) {
    case FSDP_FLAG_INT:
    case FSDP_FLAG_BYTES:
        if (flag->choices && (double)*(const int64_t *)field < flag->min)
            break; /* a word such as auto, which no number stands for */
        return json_integer(*(const int64_t *)field);
    case FSDP_FLAG_FLOAT:
        return json_real(*(const double *)field);
    case FSDP_FLAG_SWITCH:
        return json_boolean(*(const bool *)field);
    case FSDP_FLAG_LIST:
        value = json_array();
        for (int i = 0; i < ((const fsdp_text_list *)field)->n; i++)
            json_array_append_new(value, json_string(((const fsdp_text_list *)field)->items[i]));
        return value;
    case FSDP_FLAG_TEXT:
    case FSDP_FLAG_CHOICE:
        break;
    }
    text = fsdp_flags_value(flag, values);
    value = text ? json_string(text) : json_null();
    free(text);
    return value;
}

/* Nothing to write: no text, or an empty list, unless the user emptied it over what a preset would put there. */
static bool is_left_out(const json_t *value, fsdp_origin origin)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0 && origin < FSDP_FROM_FILE);
}

fsdp_status fsdp_flags_json(const fsdp_flag *table, const void *values, const fsdp_flag_state *state, char **text)
{
    json_t *object = json_object();
    bool whole = object != NULL;
    for (const fsdp_flag *flag = table; whole && flag->name; flag++) {
        if (flag->only)
            continue;
        json_t *value = json_of(flag, values);
        if (is_left_out(value, state->origin[flag - table]))
            json_decref(value);
        else
            whole = json_object_set_new(object, flag->name, value) == 0;
    }
    *text = whole ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    return *text ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "the settings cannot be written as JSON");
}
