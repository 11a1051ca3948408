#include "settings/foreign/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

enum { MAX_DEPTH = 16, MAX_LINES = 10000 };

typedef struct yaml_line {
    char *text; /* without indentation, comment and blanks at its end */
    int indent, number;
} yaml_line;

typedef struct yaml_reader {
    const char *name;
    yaml_line *lines;
    int n, at, depth;
} yaml_reader;

static fsdp_status read_block(yaml_reader *r, int indent, json_t **out);

static fsdp_status wrong(const yaml_reader *r, int number, const char *what)
{
    return error_set(FSDP_ERR_INPUT, "%s:%d: %s", r->name, number, what);
}

static fsdp_status no_memory(const yaml_reader *r)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of host memory", r->name);
}

/* ---- Lines ---- */

/* The end of the quoted text that begins at `text`: at its closing quote, or NULL. In single quotes '' is one quote; in
 * double quotes a backslash takes the next character along. */
static char *closing_quote(char *text)
{
    for (char *c = text + 1; *c; c++) {
        if (*text == '"' && *c == '\\' && c[1])
            c++;
        else if (*text == '\'' && *c == '\'' && c[1] == '\'')
            c++;
        else if (*c == *text)
            return c;
    }
    return NULL;
}

/* Ends the line before its comment: a # at the start or after a blank, outside quotes. A quote opens a text only where
 * a value can begin. */
static void cut_comment(char *line)
{
    bool may_begin = true;
    for (char *c = line; *c; c++) {
        if (may_begin && (*c == '"' || *c == '\'')) {
            char *end = closing_quote(c);
            if (!end)
                return; /* the value's reader says so */
            c = end;
        } else if (*c == '#' && (c == line || c[-1] == ' ' || c[-1] == '\t')) {
            *c = '\0';
            return;
        }
        may_begin = *c == ' ' || *c == '[' || *c == ',';
    }
}

static void cut_blanks(char *line)
{
    size_t length = strlen(line);
    while (length && isspace((unsigned char)line[length - 1]))
        line[--length] = '\0';
}

static fsdp_status add_line(yaml_reader *r, char *line, int number)
{
    int indent = (int)strspn(line, " ");
    cut_comment(line);
    cut_blanks(line);
    if (!line[strspn(line, " \t")])
        return FSDP_OK;
    if (line[indent] == '\t')
        return wrong(r, number, "a tab; YAML is indented with spaces");
    if (strcmp(line, "---") == 0 && r->n == 0)
        return FSDP_OK;
    if (strcmp(line, "---") == 0 || strcmp(line, "...") == 0 || line[0] == '%')
        return wrong(r, number, "several documents and directives are not read; leave one document");
    if (r->n == MAX_LINES)
        return wrong(r, number, "more lines than any file of accelerate has");
    r->lines[r->n++] = (yaml_line){line + indent, indent, number};
    return FSDP_OK;
}

/* ---- Scalars ---- */

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(text, *words) == 0)
            return true;
    return false;
}

/* A number as YAML and people write it: 7, -2, 1e-5, 0.5. Hexadecimal and the like are texts. */
static json_t *number_of(const char *text)
{
    char *end;
    if (!*text || text[strspn(text, "0123456789+-.eE")] || !strpbrk(text, "0123456789"))
        return NULL;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (!*end && errno == 0)
        return json_integer(whole);
    double real = strtod(text, &end);
    return *end || !isfinite(real) ? NULL : json_real(real);
}

static json_t *plain(const char *text)
{
    static const char *const yes[] = {"true", "yes", "on", NULL}, *const no[] = {"false", "no", "off", NULL};
    static const char *const nothing[] = {"null", "~", NULL};
    json_t *number = number_of(text);
    if (number)
        return number;
    if (!*text || is_one_of(text, nothing))
        return json_null();
    if (is_one_of(text, yes) || is_one_of(text, no))
        return json_boolean(is_one_of(text, yes));
    return json_string(text);
}

/* Takes the quotes off, in place; false at an escape that nobody writes into a setting. */
static bool unquote(char *text, const char *end)
{
    const char quote = *text;
    char *to = text;
    for (const char *c = text + 1; c < end; c++) {
        if (quote == '"' && *c == '\\' && !strchr("\\\"/", c[1]))
            return false;
        if ((quote == '"' && *c == '\\') || (quote == '\'' && *c == '\''))
            c++;
        *to++ = *c;
    }
    *to = '\0';
    return true;
}

static fsdp_status read_scalar(const yaml_reader *r, int number, char *text, json_t **out)
{
    char *end = *text == '"' || *text == '\'' ? closing_quote(text) : NULL;
    if (*text == '"' || *text == '\'') {
        if (!end)
            return wrong(r, number, "a quote is not closed on its line");
        if (end[1])
            return wrong(r, number, "something follows a closing quote");
        if (!unquote(text, end))
            return wrong(r, number, "this escape is not read; write the character itself");
        *out = json_string(text);
    } else if (*text && strchr("&*!|>%@`{}]", *text)) {
        return wrong(r, number,
                     "anchors, tags, braces and texts over several lines are not read; write the value itself");
    } else if (strstr(text, ": ") || (*text && text[strlen(text) - 1] == ':')) {
        return wrong(r, number, "a key within a value; put it on a line of its own, or the value in quotes");
    } else {
        *out = plain(text);
    }
    return *out ? FSDP_OK : wrong(r, number, "not UTF-8, or no memory");
}

static fsdp_status append(const yaml_reader *r, json_t *list, json_t *item)
{
    return json_array_append_new(list, item) == 0 ? FSDP_OK : no_memory(r);
}

/* "[a, b]", of scalars only. */
static fsdp_status read_flow_list(const yaml_reader *r, int number, char *text, json_t **out)
{
    size_t length = strlen(text);
    *out = json_array();
    if (!*out)
        return no_memory(r);
    fsdp_status status = text[length - 1] == ']' ? FSDP_OK : wrong(r, number, "a list is not closed on its line");
    if (status != FSDP_OK)
        return status;
    text[length - 1] = '\0';
    char *rest = text + 1;
    if (!rest[strspn(rest, " ")])
        return FSDP_OK;
    for (char *item; status == FSDP_OK && (item = strsep(&rest, ","));) {
        json_t *value = NULL;
        item += strspn(item, " ");
        cut_blanks(item);
        status =
            *item == '[' ? wrong(r, number, "a list within a list is not read") : read_scalar(r, number, item, &value);
        if (status == FSDP_OK)
            status = append(r, *out, value);
    }
    return status;
}

static fsdp_status read_value(const yaml_reader *r, int number, char *text, json_t **out)
{
    if (strcmp(text, "{}") == 0)
        return (*out = json_object()) ? FSDP_OK : no_memory(r);
    return *text == '[' ? read_flow_list(r, number, text, out) : read_scalar(r, number, text, out);
}

/* ---- Blocks ---- */

static bool is_item(const char *text)
{
    return text[0] == '-' && (text[1] == ' ' || !text[1]);
}

static fsdp_status read_list(yaml_reader *r, int indent, json_t **out)
{
    *out = json_array();
    if (!*out)
        return no_memory(r);
    for (; r->at < r->n && r->lines[r->at].indent == indent && is_item(r->lines[r->at].text); r->at++) {
        const yaml_line *line = &r->lines[r->at];
        json_t *value = NULL;
        fsdp_status status = read_value(r, line->number, line->text + 1 + strspn(line->text + 1, " "), &value);
        if (status != FSDP_OK) {
            json_decref(value);
            return status;
        }
        FSDP_TRY(append(r, *out, value));
    }
    return FSDP_OK;
}

/* Cuts "key: value" apart; `value` is "" where the line ends after the colon. */
static fsdp_status cut_key(const yaml_reader *r, const yaml_line *line, char **key, char **value)
{
    char *end, *quote = line->text[0] == '"' || line->text[0] == '\'' ? closing_quote(line->text) : NULL;
    *key = line->text;
    if (quote) {
        end = quote + 1;
    } else {
        for (end = line->text; *end && !(*end == ':' && (end[1] == ' ' || !end[1])); end++)
            ;
    }
    if (*end != ':' || end == line->text || (end[1] && end[1] != ' ') || strchr("[{&*!?|>", line->text[0]))
        return wrong(r, line->number, "no \"key: value\"");
    *value = end + 1 + strspn(end + 1, " ");
    *end = '\0';
    if (quote && !unquote(line->text, quote))
        return wrong(r, line->number, "this escape is not read; write the character itself");
    return FSDP_OK;
}

/* What belongs to a key whose line ends after the colon. Lists may stand at the key's own indentation. */
static fsdp_status read_below(yaml_reader *r, int indent, json_t **out)
{
    const yaml_line *next = r->at < r->n ? &r->lines[r->at] : NULL;
    if (next && next->indent == indent && is_item(next->text))
        return read_list(r, indent, out);
    if (next && next->indent > indent)
        return read_block(r, next->indent, out);
    *out = json_null();
    return FSDP_OK;
}

static fsdp_status read_mapping(yaml_reader *r, int indent, json_t **out)
{
    *out = json_object();
    if (!*out)
        return no_memory(r);
    while (r->at < r->n && r->lines[r->at].indent == indent) {
        const yaml_line *line = &r->lines[r->at++];
        char *key = NULL, *text = NULL;
        json_t *value = NULL;
        FSDP_TRY(cut_key(r, line, &key, &text));
        if (json_object_get(*out, key))
            return error_set(FSDP_ERR_INPUT, "%s:%d: %s is set twice", r->name, line->number, key);
        fsdp_status status = *text ? read_value(r, line->number, text, &value) : read_below(r, indent, &value);
        if (status != FSDP_OK) {
            json_decref(value);
            return status;
        }
        if (json_object_set_new(*out, key, value) != 0)
            return wrong(r, line->number, "a key is not UTF-8, or no memory");
    }
    return FSDP_OK;
}

static fsdp_status read_block(yaml_reader *r, int indent, json_t **out)
{
    const yaml_line *first = &r->lines[r->at];
    if (++r->depth > MAX_DEPTH)
        return wrong(r, first->number, "too many levels");
    FSDP_TRY(is_item(first->text) ? read_list(r, indent, out) : read_mapping(r, indent, out));
    r->depth--;
    if (r->at < r->n && r->lines[r->at].indent > indent)
        return wrong(r, r->lines[r->at].number, "more indented than the line that it would belong to");
    return FSDP_OK;
}

static fsdp_status read_lines(yaml_reader *r, json_t **out)
{
    if (r->n == 0)
        return error_set(FSDP_ERR_INPUT, "%s: nothing in it", r->name);
    FSDP_TRY(read_block(r, r->lines[0].indent, out));
    if (r->at < r->n)
        return wrong(r, r->lines[r->at].number, "less indented than anything before it");
    return json_is_object(*out) ? FSDP_OK : error_set(FSDP_ERR_INPUT, "%s: a list, not settings", r->name);
}

fsdp_status yaml_parse(const char *name, char *text, size_t bytes, json_t **out)
{
    yaml_reader r = {.name = name, .lines = calloc(MAX_LINES, sizeof *r.lines)};
    fsdp_status status = r.lines ? FSDP_OK : no_memory(&r);
    *out = NULL;
    if (status == FSDP_OK && strlen(text) != bytes)
        status = error_set(FSDP_ERR_INPUT, "%s: not a text file", name);
    int number = 1;
    for (char *line; status == FSDP_OK && (line = strsep(&text, "\n")); number++)
        status = add_line(&r, line, number);
    if (status == FSDP_OK)
        status = read_lines(&r, out);
    if (status != FSDP_OK) {
        json_decref(*out);
        *out = NULL;
    }
    free(r.lines);
    return status;
}
