/* What the readers of other tools' files share: going through a file by its table, setting flags below the user's,
 * notes and refusals. deepspeed.c and accelerate.c have the tables. */
#include "settings/foreign/foreign.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/host/job.h"
#include "settings/flags_value.h"
#include "settings/settings_table.h"

enum { MAX_FILE = 1 << 20 };

/* ---- Notes and refusals ---- */

fsdp_status foreign_note(foreign_file *f, const char *format, ...)
{
    char line[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return settings_note(f->settings, "%s: %s", f->path, line);
}

fsdp_status foreign_refuse(const foreign_file *f, const char *format, ...)
{
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(FSDP_ERR_INPUT, "%s: %s", f->path, text);
}

/* ---- Flags ---- */

bool foreign_taken(const foreign_file *f, const char *flag)
{
    int origin = f->settings->state.origin[fsdp_flags_find(settings_table, flag) - settings_table];
    return origin == FSDP_FROM_FILE || origin == FSDP_FROM_COMMAND;
}

fsdp_status foreign_set(foreign_file *f, const char *flag, const char *text)
{
    fsdp_settings *s = f->settings;
    if (foreign_taken(f, flag) || !fsdp_flags_belongs(fsdp_flags_find(settings_table, flag), f->command))
        return FSDP_OK;
    fsdp_status status = fsdp_flags_set(settings_table, s, &s->state, flag, text, f->origin);
    return status == FSDP_OK ? status : error_prefix(status, "%s: ", f->path);
}

fsdp_status foreign_set_number(foreign_file *f, const char *flag, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return foreign_set(f, flag, text);
}

/* ---- Values ---- */

bool foreign_open(const json_t *value)
{
    return !value || json_is_null(value) || (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0);
}

static fsdp_status text_of(const foreign_file *f, const char *key, const json_t *value, char room[FOREIGN_TEXT])
{
    char number[FLAGS_NUMBER];
    const char *text = foreign_open(value) ? "" : flags_json_text(value, number);
    if (!text)
        return foreign_refuse(f, "%s: expected one value, not a list or a section", key);
    if (strlen(text) >= FOREIGN_TEXT)
        return foreign_refuse(f, "%s: a text of %zu bytes is too long", key, strlen(text));
    strcpy(room, text);
    return FSDP_OK;
}

fsdp_status foreign_text(const foreign_file *f, const json_t *object, const char *key, char room[FOREIGN_TEXT])
{
    return text_of(f, key, json_object_get(object, key), room);
}

/* Texts of numbers pass, as they do there. */
fsdp_status foreign_number(const foreign_file *f, const json_t *object, const char *key, double *out, bool *given)
{
    char text[FOREIGN_TEXT], *end;
    FSDP_TRY(foreign_text(f, object, key, text));
    *given = text[0] != '\0';
    if (!*given)
        return FSDP_OK;
    double value = strtod(text, &end);
    if (*end || end == text || !isfinite(value))
        return foreign_refuse(f, "%s: '%s' is not a number", key, text);
    *out = value;
    return FSDP_OK;
}

fsdp_status foreign_count(const foreign_file *f, const json_t *object, const char *key, int64_t *out, bool *given)
{
    double value = 0;
    FSDP_TRY(foreign_number(f, object, key, &value, given));
    if (!*given)
        return FSDP_OK;
    if (value != floor(value) || fabs(value) > 1e15)
        return foreign_refuse(f, "%s: %.9g is not a whole number", key, value);
    *out = (int64_t)value;
    return FSDP_OK;
}

fsdp_status foreign_switch(const foreign_file *f, const json_t *object, const char *key, bool *out, bool *given)
{
    char text[FOREIGN_TEXT];
    FSDP_TRY(foreign_text(f, object, key, text));
    *given = text[0] != '\0';
    if (*given && !flags_switch(text, out))
        return foreign_refuse(f, "%s: '%s' is neither true nor false", key, text);
    return FSDP_OK;
}

fsdp_status foreign_take_offload(foreign_file *f, const char *where, const json_t *object, const char *key)
{
    char device[FOREIGN_TEXT];
    FSDP_TRY(foreign_text(f, object, key, device));
    if (strcmp(device, "cpu") == 0)
        return foreign_set(f, "cpu_offload", "true");
    if (device[0] && strcmp(device, "none") != 0)
        return foreign_refuse(f, "%s%s: '%.60s' is not supported; cpu and none are", where, key, device);
    return FSDP_OK;
}

fsdp_status foreign_world_size(const foreign_file *f, int64_t *out)
{
    const fsdp_settings *s = f->settings;
    job here;
    *out = max_i64(0, s->world_size);
    if (s->world_size != 0)
        return FSDP_OK;
    FSDP_TRY(job_from_environment(&here));
    *out = here.world_size;
    return FSDP_OK;
}

/* ---- Tables ---- */

static const foreign_row *find_row(const foreign_row *rows, const char *key)
{
    for (; rows->key; rows++)
        if (strcmp(rows->key, key) == 0)
            return rows;
    return NULL;
}

static fsdp_status unknown_key(const foreign_file *f, const char *where, const char *key, const foreign_row *rows)
{
    const char *names[128];
    int n = 0;
    for (; rows->key && n < 128; rows++)
        names[n++] = rows->key;
    const char *near = fsdp_nearest(key, names, n);
    return foreign_refuse(f, "%s%.100s is no key that is known here%s%s%s", where, key, near ? "; did you mean " : "",
                          near ? near : ": remove it if it does not matter", near ? "?" : "");
}

/* "theirs=ours theirs=ours": ours, in `room`; false where the list has no such word. Case does not count. */
static bool translate(const char *values, const char *text, char room[FOREIGN_TEXT])
{
    size_t length = strlen(text);
    for (const char *word = values; *word; word += strspn(word, " ")) {
        size_t whole = strcspn(word, " "), theirs = strcspn(word, " =");
        if (theirs == length && strncasecmp(word, text, length) == 0) {
            const char *ours = word[theirs] == '=' ? word + theirs + 1 : word;
            snprintf(room, FOREIGN_TEXT, "%.*s", (int)(word + whole - ours), ours);
            return true;
        }
        word += whole;
    }
    return false;
}

static fsdp_status take_flag(foreign_file *f, const char *where, const foreign_row *row, const json_t *value)
{
    char text[FOREIGN_TEXT], ours[FOREIGN_TEXT];
    FSDP_TRY(text_of(f, row->key, value, text));
    if (row->values && !translate(row->values, text, ours))
        return foreign_refuse(f, "%s%s: '%s' is not known here; expected one of: %s", where, row->key, text,
                              row->why ? row->why : row->values);
    fsdp_status status = foreign_set(f, row->flag, row->values ? ours : text);
    return status == FSDP_OK ? status : error_prefix(status, "%s%s: ", where, row->key);
}

/* Nothing that anybody asked for: false, no, none, empty. */
static bool is_off(const json_t *value)
{
    const char *text = json_string_value(value);
    const json_t *enabled = json_object_get(value, "enabled");
    return foreign_open(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && (json_object_size(value) == 0 || json_is_false(enabled))) ||
           (text && (!*text || strcasecmp(text, "no") == 0 || strcasecmp(text, "none") == 0));
}

static bool is_one_of(const char *values, const json_t *value)
{
    char number[FLAGS_NUMBER], ours[FOREIGN_TEXT];
    const char *text = values ? flags_json_text(value, number) : NULL;
    return text && translate(values, text, ours);
}

static fsdp_status take_row(foreign_file *f, const char *where, const foreign_row *row, const json_t *value)
{
    char number[FLAGS_NUMBER], below[FOREIGN_TEXT];
    const char *text = flags_json_text(value, number);
    switch (row->kind) {
    case FOREIGN_READ:
        return FSDP_OK;
    case FOREIGN_FLAG:
        return take_flag(f, where, row, value);
    case FOREIGN_NOTE:
        return is_off(value) || is_one_of(row->values, value)
                   ? FSDP_OK
                   : foreign_note(f, "%s%s has no meaning here: %s", where, row->key, row->why);
    case FOREIGN_MUST:
        return is_one_of(row->values, value)
                   ? FSDP_OK
                   : foreign_refuse(f, "%s%s%s%.60s is not supported, and without it the result is another: %s", where,
                                    row->key, text ? "=" : "", text ? text : "", row->why);
    case FOREIGN_OFF:
        return is_off(value) ? FSDP_OK
                             : foreign_refuse(f, "%s%s is not supported, and without it the result is another: %s",
                                              where, row->key, row->why);
    case FOREIGN_SECTION:
        if (!json_is_object(value))
            return foreign_refuse(f, "%s%s: expected a section", where, row->key);
        snprintf(below, sizeof below, "%s%s.", where, row->key);
        return foreign_walk(f, below, value, row->rows);
    }
    return FSDP_OK;
}

fsdp_status foreign_walk(foreign_file *f, const char *where, const json_t *object, const foreign_row *rows)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        const foreign_row *row = find_row(rows, key);
        if (!row)
            return unknown_key(f, where, key, rows);
        if (!foreign_open(value))
            FSDP_TRY(take_row(f, where, row, value));
    }
    return FSDP_OK;
}

/* ---- Files ---- */

fsdp_status foreign_read_file(fsdp_settings *s, const char *command, const char *path, foreign_reader read)
{
    char *text;
    size_t bytes;
    FSDP_TRY(file_read_at_most(path, MAX_FILE, &text, &bytes));
    fsdp_status status = read(s, command, path, text, bytes);
    free(text);
    return status;
}

fsdp_status foreign_read_files(fsdp_settings *s, const char *command)
{
    if (s->deepspeed && s->accelerate)
        return error_set(FSDP_ERR_INPUT,
                         "--deepspeed and --accelerate: give one file; accelerate's may name DeepSpeed's "
                         "as deepspeed_config_file");
    if (s->deepspeed)
        FSDP_TRY(foreign_read_file(s, command, s->deepspeed, deepspeed_read));
    if (s->accelerate)
        FSDP_TRY(foreign_read_file(s, command, s->accelerate, accelerate_read));
    return FSDP_OK;
}
