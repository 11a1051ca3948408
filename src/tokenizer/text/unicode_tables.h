/* The generated tables behind unicode.h. Only unicode.c and normal_form.c read them. */
#ifndef TOKENIZER_TEXT_UNICODE_TABLES_H
#define TOKENIZER_TEXT_UNICODE_TABLES_H

#include <stddef.h>
#include <stdint.h>

/* From `first` up to the next run: class bits, grapheme bits, script and BERT's bits of unicode.h. */
typedef struct unicode_run {
    uint32_t first;
    uint8_t classes;
    uint8_t breaks;
    uint8_t script;
    uint8_t bert;
} unicode_run;

/* `point` becomes unicode_pool[where .. where+n). */
typedef struct unicode_mapping {
    uint32_t point;
    uint16_t where;
    uint8_t n;
} unicode_mapping;

/* `left` followed by `right` composes to `whole`; sorted by left, then right. */
typedef struct unicode_composition {
    uint32_t left, right, whole;
} unicode_composition;

typedef struct unicode_combining {
    uint32_t first, last;
    uint8_t combining_class;
} unicode_combining;

extern const unicode_run unicode_runs[];
extern const size_t unicode_n_runs;
extern const unicode_mapping unicode_canonical[]; /* full canonical decompositions, Hangul aside */
extern const size_t unicode_n_canonical;
extern const unicode_mapping unicode_compatible[]; /* full compatibility decompositions that differ from them */
extern const size_t unicode_n_compatible;
extern const unicode_mapping unicode_lower[];
extern const size_t unicode_n_lower;
extern const uint32_t unicode_pool[];

/* The entry of `point` in a table sorted by it, NULL when it has none. */
const unicode_mapping *unicode_mapping_find(const unicode_mapping *table, size_t n, uint32_t point);

extern const unicode_composition unicode_compositions[];
extern const size_t unicode_n_compositions;
extern const unicode_combining unicode_combinings[];
extern const size_t unicode_n_combinings;

#endif
