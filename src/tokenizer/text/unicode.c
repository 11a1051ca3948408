/* Expands the generated runs into a two-level table, and answers what concerns single code points and graphemes.
 * Normal forms are in normal_form.c. */
#include "tokenizer/text/unicode.h"

#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/text/unicode_tables.h"
#include "tokenizer/text/utf8.h"

/* Grapheme bits, as tools/generate_unicode_tables.py numbers them. */
enum {
    BREAK_OTHER,
    BREAK_CR,
    BREAK_LF,
    BREAK_CONTROL,
    BREAK_EXTEND,
    BREAK_ZWJ,
    BREAK_REGIONAL,
    BREAK_PREPEND,
    BREAK_SPACING,
    BREAK_L,
    BREAK_V,
    BREAK_T,
    BREAK_LV,
    BREAK_LVT,
    BREAK_MASK = 15,
    BREAK_PICTURE = 16,
    BREAK_CONSONANT = 32,
    BREAK_LINKER = 64,
    BREAK_CONJUNCT_EXTEND = 128,
};

typedef struct block {
    uint16_t properties[UNICODE_BLOCK], extras[UNICODE_BLOCK];
    bool uniform; /* lies in one run */
} block;

/* Blocks that lie in one run share a block per value; the others get their own. */
static fsdp_status add_block(unicode *u, size_t capacity[2], const block *b, uint16_t *index)
{
    const size_t bytes = sizeof b->properties;
    for (size_t i = 0; b->uniform && i < u->n_blocks; i++) {
        if (memcmp(u->properties + i * UNICODE_BLOCK, b->properties, bytes) == 0 &&
            memcmp(u->extras + i * UNICODE_BLOCK, b->extras, bytes) == 0) {
            *index = (uint16_t)i;
            return FSDP_OK;
        }
    }
    if (u->n_blocks == capacity[0])
        FSDP_TRY(array_grow((void **)&u->properties, &capacity[0], u->n_blocks + 1, bytes));
    if (u->n_blocks == capacity[1])
        FSDP_TRY(array_grow((void **)&u->extras, &capacity[1], u->n_blocks + 1, bytes));
    memcpy(u->properties + u->n_blocks * UNICODE_BLOCK, b->properties, bytes);
    memcpy(u->extras + u->n_blocks * UNICODE_BLOCK, b->extras, bytes);
    *index = (uint16_t)u->n_blocks++;
    return FSDP_OK;
}

/* Fills the block that begins at `point`; `run` is the one that point lies in, then the one of its last. */
static void fill_block(uint32_t point, size_t *run, block *b)
{
    size_t first = *run;
    for (uint32_t i = 0; i < UNICODE_BLOCK; i++) {
        while (*run + 1 < unicode_n_runs && unicode_runs[*run + 1].first <= point + i)
            ++*run;
        const unicode_run *r = &unicode_runs[*run];
        first = i == 0 ? *run : first;
        b->properties[i] = (uint16_t)(r->classes | r->breaks << 8);
        b->extras[i] = (uint16_t)(r->script | r->bert << 8);
    }
    b->uniform = first == *run;
}

fsdp_status unicode_create(unicode **out)
{
    unicode *u = calloc(1, sizeof *u);
    if (u == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory: %zu bytes for the table of code points", sizeof *u);
    block b;
    size_t capacity[2] = {0}, run = 0;
    for (uint32_t i = 0; i < UNICODE_N_BLOCKS; i++) {
        fill_block(i << UNICODE_BLOCK_BITS, &run, &b);
        fsdp_status status = add_block(u, capacity, &b, &u->block_of[i]);
        if (status != FSDP_OK) {
            unicode_free(u);
            return status;
        }
    }
    *out = u;
    return FSDP_OK;
}

void unicode_free(unicode *u)
{
    if (u == NULL)
        return;
    free(u->extras);
    free(u->properties);
    free(u);
}

static int compare_mapping(const void *key, const void *entry)
{
    uint32_t point = *(const uint32_t *)key, other = ((const unicode_mapping *)entry)->point;
    return point < other ? -1 : point > other;
}

const unicode_mapping *unicode_mapping_find(const unicode_mapping *table, size_t n, uint32_t point)
{
    return bsearch(&point, table, n, sizeof *table, compare_mapping);
}

fsdp_status unicode_lowercase(const char *text, size_t bytes, text_buffer *out)
{
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t point = utf8_decode(text + i, &length);
        if (point < 0x80) {
            char lower = (char)(point >= 'A' && point <= 'Z' ? point + 32 : point);
            FSDP_TRY(text_append(out, &lower, 1));
            continue;
        }
        const unicode_mapping *m = unicode_mapping_find(unicode_lower, unicode_n_lower, point);
        if (m == NULL)
            FSDP_TRY(text_append(out, text + i, length));
        for (size_t k = 0; m != NULL && k < m->n; k++)
            FSDP_TRY(utf8_append(out, unicode_pool[m->where + k]));
    }
    return FSDP_OK;
}

/* What the rules need to know of the cluster so far. */
typedef struct cluster {
    uint8_t last;        /* grapheme bits of the last code point */
    bool odd_regionals;  /* an odd number of regional indicators ends the cluster */
    bool picture;        /* it ends with: picture, extend* */
    bool picture_joined; /* ... and a zero width joiner */
    bool consonant;      /* it ends with: consonant, (extend or linker)* */
    bool linked;         /* ... with at least one linker */
} cluster;

static void cluster_add(cluster *c, uint8_t bits)
{
    uint8_t kind = bits & BREAK_MASK;
    c->odd_regionals = kind == BREAK_REGIONAL && !(c->odd_regionals && (c->last & BREAK_MASK) == BREAK_REGIONAL);
    c->picture_joined = kind == BREAK_ZWJ && c->picture;
    c->picture = (bits & BREAK_PICTURE) != 0 || (kind == BREAK_EXTEND && c->picture);
    if (bits & BREAK_CONSONANT) {
        c->consonant = true;
        c->linked = false;
    } else if (bits & BREAK_LINKER) {
        c->linked = c->consonant;
    } else if (!(bits & BREAK_CONJUNCT_EXTEND)) {
        c->consonant = c->linked = false;
    }
    c->last = bits;
}

/* Rules GB3 to GB13 of Unicode Standard Annex 29. */
static bool cluster_continues(const cluster *c, uint8_t bits)
{
    uint8_t a = c->last & BREAK_MASK, b = bits & BREAK_MASK;
    if (a == BREAK_CR && b == BREAK_LF)
        return true;
    if ((a >= BREAK_CR && a <= BREAK_CONTROL) || (b >= BREAK_CR && b <= BREAK_CONTROL))
        return false;
    if (a == BREAK_L && (b == BREAK_L || b == BREAK_V || b == BREAK_LV || b == BREAK_LVT))
        return true;
    if ((a == BREAK_LV || a == BREAK_V) && (b == BREAK_V || b == BREAK_T))
        return true;
    if ((a == BREAK_LVT || a == BREAK_T) && b == BREAK_T)
        return true;
    if (b == BREAK_EXTEND || b == BREAK_ZWJ || b == BREAK_SPACING || a == BREAK_PREPEND)
        return true;
    if (c->linked && (bits & BREAK_CONSONANT))
        return true;
    if (c->picture_joined && (bits & BREAK_PICTURE))
        return true;
    return a == BREAK_REGIONAL && b == BREAK_REGIONAL && c->odd_regionals;
}

size_t unicode_grapheme_end(const unicode *u, const char *text, size_t bytes, size_t start)
{
    cluster c = {0};
    size_t length;
    cluster_add(&c, (uint8_t)(unicode_properties(u, utf8_decode(text + start, &length)) >> 8));
    size_t end = start + length;
    while (end < bytes) {
        uint8_t bits = (uint8_t)(unicode_properties(u, utf8_decode(text + end, &length)) >> 8);
        if (!cluster_continues(&c, bits))
            break;
        cluster_add(&c, bits);
        end += length;
    }
    return end;
}
