/* Patterns: literals by memmem, regular expressions by Oniguruma, known ones by pattern_known.c. */
#include "tokenizer/pattern.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include <oniguruma.h>

#include "base/error.h"
#include "tokenizer/pattern_classes.h"
#include "tokenizer/pattern_known.h"
#include "tokenizer/text/utf8.h"

struct pattern {
    char *literal; /* NULL: a regular expression */
    size_t literal_bytes;
    regex_t *regex;
    const known_pattern *known; /* NULL: none of the hand-written ones */
    const unicode *unicode;
};

static fsdp_status pattern_new(const unicode *u, pattern **out)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a pattern");
    (*out)->unicode = u;
    return FSDP_OK;
}

enum { LONGEST_PATTERN = 1 << 16, LONGEST_EXPANDED = 1 << 23 };

/* Oniguruma's own tables are global: they are set up once, before the first expression. */
static pthread_once_t onig_once = PTHREAD_ONCE_INIT;

static void onig_start(void)
{
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
}

static fsdp_status compile(const char *name, const char *text, size_t bytes, pattern *p)
{
    OnigErrorInfo info;
    text_buffer expanded = {.limit = LONGEST_EXPANDED};
    if (bytes > LONGEST_PATTERN)
        return error_set(FSDP_ERR_INPUT, "%s: a pattern of %zu bytes is too long; at most %d are read", name, bytes,
                         LONGEST_PATTERN);
    pthread_once(&onig_once, onig_start);
    fsdp_status status;
    TRY_OR(done, text_reserve(&expanded, bytes));
    TRY_OR(done, pattern_classes_expand(text, bytes, &expanded));
    const OnigUChar *start = (const OnigUChar *)expanded.data;
    int rc = onig_new(&p->regex, start, start + expanded.bytes, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                      ONIG_SYNTAX_DEFAULT, &info);
    if (rc != ONIG_NORMAL) {
        OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
        p->regex = NULL;
        onig_error_code_to_str(message, rc, &info);
        status = error_set(FSDP_ERR_INPUT, "%s: the pattern \"%.*s\" is not a regular expression: %s", name,
                           (int)(bytes > 200 ? 200 : bytes), text, (const char *)message);
    }
done:
    text_free(&expanded);
    return status;
}

fsdp_status pattern_regex_plain(const char *name, const char *text, size_t bytes, const unicode *u, pattern **out)
{
    pattern *p = NULL;
    FSDP_TRY(pattern_new(u, &p));
    fsdp_status status = compile(name, text, bytes, p);
    if (status != FSDP_OK) {
        pattern_free(p);
        return status;
    }
    *out = p;
    return FSDP_OK;
}

fsdp_status pattern_regex(const char *name, const char *text, size_t bytes, const unicode *u, pattern **out)
{
    FSDP_TRY(pattern_regex_plain(name, text, bytes, u, out));
    (*out)->known = known_pattern_find(text, bytes);
    return FSDP_OK;
}

fsdp_status pattern_literal(const char *name, const char *text, size_t bytes, const unicode *u, pattern **out)
{
    if (bytes == 0) /* the library makes an expression of it, which matches between all characters */
        return pattern_regex_plain(name, text, bytes, u, out);
    pattern *p = NULL;
    FSDP_TRY(pattern_new(u, &p));
    p->literal = malloc(bytes);
    if (p->literal == NULL) {
        pattern_free(p);
        return error_set(FSDP_ERR_MEMORY, "out of memory for a pattern");
    }
    memcpy(p->literal, text, bytes);
    p->literal_bytes = bytes;
    *out = p;
    return FSDP_OK;
}

void pattern_free(pattern *p)
{
    if (p == NULL)
        return;
    if (p->regex != NULL)
        onig_free(p->regex);
    free(p->literal);
    free(p);
}

bool pattern_covers(const pattern *p)
{
    return p->known != NULL && p->known->cover_end != NULL;
}

size_t pattern_cover_end(const pattern *p, const char *text, size_t bytes, size_t start)
{
    return p->known->cover_end(p->unicode, text, bytes, start);
}

const char *pattern_literal_text(const pattern *p, size_t *bytes)
{
    *bytes = p->literal_bytes;
    return p->literal;
}

bool pattern_is_spaces(const pattern *p)
{
    return p->known != NULL && p->known->find != NULL;
}

/* Limits of one search: steps back, in all its attempts together, and memory for them. A search may pass over the whole
 * text. */
static const unsigned long fewest_retries = 10000000, retries_a_byte = 100;
static const unsigned int fewest_stack_entries = 1 << 20;
/* Limits of all searches over a text. Ordinary expressions take less than a microsecond a byte. */
static const double fewest_seconds = 2, seconds_a_byte = 20e-6;
enum { SEARCHES_BETWEEN_LOOKS = 16 }; /* at the clock */

void pattern_room_begin(pattern_room *room, size_t bytes)
{
    room->seconds = fewest_seconds + seconds_a_byte * (double)bytes;
    room->began = 0;
    room->n_searches = 0;
}

void pattern_room_free(pattern_room *room)
{
    if (room->region != NULL)
        onig_region_free(room->region, 1);
    if (room->limits != NULL)
        onig_free_match_param(room->limits);
    *room = (pattern_room){0};
}

static double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Prepares a search over `bytes`, and looks at the clock now and then. */
static fsdp_status begin_search(pattern_room *room, size_t bytes)
{
    if (room->region == NULL)
        room->region = onig_region_new();
    if (room->limits == NULL && (room->limits = onig_new_match_param()) != NULL)
        onig_initialize_match_param(room->limits);
    if (room->region == NULL || room->limits == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a search");
    unsigned long most = fewest_retries + retries_a_byte * bytes;
    size_t stack = fewest_stack_entries + 2 * bytes;
    onig_set_retry_limit_in_search_of_match_param(room->limits, most);
    onig_set_match_stack_limit_size_of_match_param(room->limits, stack < UINT_MAX ? (unsigned int)stack : UINT_MAX);
    if (room->n_searches++ % SEARCHES_BETWEEN_LOOKS != 0)
        return FSDP_OK;
    double now = thread_seconds(), allowed = room->seconds > 0 ? room->seconds : fewest_seconds;
    if (room->began == 0)
        room->began = now;
    if (now - room->began > allowed)
        return error_set(FSDP_ERR_INPUT,
                         "a pattern of the tokenizer takes too long: more than %.1f s for one text; use another "
                         "tokenizer.json",
                         allowed);
    return FSDP_OK;
}

typedef struct pattern_scan {
    const pattern *pattern;
    pattern_room *room;
    const char *text;
    size_t bytes;
    size_t from;     /* where the next search starts */
    size_t last_end; /* of the last match; SIZE_MAX before the first */
} pattern_scan;

static void pattern_scan_start(pattern_scan *s, const pattern *p, pattern_room *room, const char *text, size_t bytes)
{
    *s = (pattern_scan){.pattern = p, .room = room, .text = text, .bytes = bytes, .last_end = SIZE_MAX};
}

static bool literal_next(pattern_scan *s, size_t *start, size_t *end)
{
    const pattern *p = s->pattern;
    const char *at = p->literal_bytes == 1
                         ? memchr(s->text + s->from, p->literal[0], s->bytes - s->from)
                         : memmem(s->text + s->from, s->bytes - s->from, p->literal, p->literal_bytes);
    if (at == NULL)
        return false;
    *start = (size_t)(at - s->text);
    *end = s->from = *start + p->literal_bytes;
    return true;
}

static fsdp_status regex_next(pattern_scan *s, size_t *start, size_t *end, bool *found)
{
    const OnigUChar *text = (const OnigUChar *)s->text;
    *found = false;
    while (s->from <= s->bytes) {
        FSDP_TRY(begin_search(s->room, s->bytes - s->from));
        int at = onig_search_with_param(s->pattern->regex, text, text + s->bytes, text + s->from, text + s->bytes,
                                        s->room->region, ONIG_OPTION_NONE, s->room->limits);
        if (at == ONIG_MISMATCH)
            return FSDP_OK;
        if (at < 0) {
            OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
            onig_error_code_to_str(message, at);
            return error_set(FSDP_ERR_INPUT, "a pattern of the tokenizer gave up on a text of %zu bytes: %s", s->bytes,
                             (const char *)message);
        }
        *start = (size_t)s->room->region->beg[0];
        *end = (size_t)s->room->region->end[0];
        if (*start < *end || *end != s->last_end) {
            s->from = s->last_end = *end;
            *found = true;
            return FSDP_OK;
        }
        s->from += s->from < s->bytes ? utf8_length((uint8_t)s->text[s->from]) : 1;
    }
    return FSDP_OK;
}

/* The next match, left to right; *found is false after the last. Empty matches right after a match are skipped. */
static fsdp_status pattern_scan_next(pattern_scan *s, size_t *start, size_t *end, bool *found)
{
    const pattern *p = s->pattern;
    if (p->literal != NULL) {
        *found = literal_next(s, start, end);
        return FSDP_OK;
    }
    if (p->known == NULL)
        return regex_next(s, start, end, found);
    *found = s->from < s->bytes;
    if (*found && p->known->cover_end != NULL) {
        *start = s->from;
        *end = s->from = p->known->cover_end(p->unicode, s->text, s->bytes, *start);
    } else if (*found) {
        *found = p->known->find(s->text, s->bytes, s->from, start, end);
        s->from = *end;
    }
    return FSDP_OK;
}

fsdp_status pattern_spans(const pattern *p, pattern_room *room, const char *text, size_t bytes, span_vector *spans)
{
    size_t previous = 0, start = 0, end = 0;
    bool found;
    pattern_scan scan;
    if (bytes == 0)
        return span_append(spans, 0, 0, 0);
    pattern_scan_start(&scan, p, room, text, bytes);
    for (;;) {
        FSDP_TRY(pattern_scan_next(&scan, &start, &end, &found));
        if (!found)
            break;
        if (previous != start)
            FSDP_TRY(span_append(spans, previous, start, 0));
        FSDP_TRY(span_append(spans, start, end, 1));
        previous = end;
    }
    return previous == bytes ? FSDP_OK : span_append(spans, previous, bytes, 0);
}

fsdp_status pattern_replace(const pattern *p, pattern_room *room, const char *text, size_t bytes, const char *content,
                            size_t content_bytes, text_buffer *out, bool *empty_front)
{
    size_t previous = 0, start = 0, end = 0;
    bool found = bytes > 0;
    pattern_scan scan;
    pattern_scan_start(&scan, p, room, text, bytes);
    while (found) {
        FSDP_TRY(pattern_scan_next(&scan, &start, &end, &found));
        if (!found)
            break;
        if (end == 0 && empty_front != NULL)
            *empty_front = true;
        FSDP_TRY(text_append(out, text + previous, start - previous));
        FSDP_TRY(text_append(out, content, content_bytes));
        previous = end;
    }
    return text_append(out, text + previous, bytes - previous);
}
