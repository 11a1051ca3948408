/* Patterns that split or replace text: a literal, or a regular expression (Oniguruma, as in the tokenizers library).
 * Expressions of well-known tokenizers are recognised by their text and matched by hand-written code instead, with the
 * same result many times faster. A pattern is read-only; a scan is one walk over one text.
 * All know the code points that the library knows, whichever Oniguruma is installed (pattern_classes.h). */
#ifndef TOKENIZER_PATTERN_H
#define TOKENIZER_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/text/unicode.h"

struct re_registers;         /* Oniguruma's region */
struct OnigMatchParamStruct; /* ... and limits */

typedef struct pattern pattern;

/* `name` is what errors call the expression's home (a path). The pattern borrows `u`. */
fsdp_status pattern_literal(const char *name, const char *text, size_t bytes, const unicode *u, pattern **out);
fsdp_status pattern_regex(const char *name, const char *text, size_t bytes, const unicode *u, pattern **out);
/* The same without the hand-written matchers; for comparing both. */
fsdp_status pattern_regex_plain(const char *name, const char *text, size_t bytes, const unicode *u, pattern **out);
void pattern_free(pattern *p);

/* True when some expression of ours matches by hand-written code and leaves no byte unmatched. */
bool pattern_covers(const pattern *p);
/* For such a pattern: the end of the match that starts at `start`. */
size_t pattern_cover_end(const pattern *p, const char *text, size_t bytes, size_t start);

/* The text of a literal; NULL for a regular expression. */
const char *pattern_literal_text(const pattern *p, size_t *bytes);
/* True for " {2,}", runs of spaces. */
bool pattern_is_spaces(const pattern *p);

/* Room that a search needs, kept by each thread between searches; freed by pattern_room_free. It also keeps the time
 * that expressions have taken since pattern_room_begin: an expression that goes back and forth without end is an error
 * instead of a process that hangs. */
typedef struct pattern_room {
    struct re_registers *region;
    struct OnigMatchParamStruct *limits;
    double seconds; /* that searches may take; 0: as for a short text */
    double began;   /* thread's time at the first search; 0: none yet */
    uint32_t n_searches;
} pattern_room;

/* A text of so many bytes is searched from here on. */
void pattern_room_begin(pattern_room *room, size_t bytes);
void pattern_room_free(pattern_room *room);

/* Appends the text with every match replaced by `content`. *empty_front (may be NULL) says whether nothing at all
 * matched in front of the first character. */
fsdp_status pattern_replace(const pattern *p, pattern_room *room, const char *text, size_t bytes, const char *content,
                            size_t content_bytes, text_buffer *out, bool *empty_front);

/* All spans of the text in order, matched and unmatched, appended to `spans`. */
fsdp_status pattern_spans(const pattern *p, pattern_room *room, const char *text, size_t bytes, span_vector *spans);

#endif
