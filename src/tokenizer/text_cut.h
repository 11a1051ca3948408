/* Where a long text may be cut so that the ids of its parts, one after another, are those of the whole text. That is
 * between a letter and a single space or line break before another letter, for tokenizers of which every step is known
 * to look no further there; the texts of other tokenizers are not cut. */
#ifndef TOKENIZER_TEXT_CUT_H
#define TOKENIZER_TEXT_CUT_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/tokenizer.h>

struct tokenizer_tables;

typedef struct text_cuts {
    bool anywhere;            /* ids are bytes */
    bool at_spaces, at_lines; /* in front of a space, or of a line break */
    bool plain[128];          /* ASCII letters that are letters after the normalizer too */
} text_cuts;

/* Works out tables->cuts; everything else in the tables is there. */
void text_cuts_find(struct tokenizer_tables *tables);

enum { TEXT_CUT_BEHIND = 8 }; /* a place has more than so many bytes after it */

/* The first place >= `from` at which text[0..bytes) may be cut; `bytes` when there is none. It stays one when the text
 * goes on. Uses the handle's memory as encoding does. */
fsdp_status text_cut_place(fsdp_tokenizer *tokenizer, const char *text, size_t bytes, size_t from, size_t *place);

#endif
