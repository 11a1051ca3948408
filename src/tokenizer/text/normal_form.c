/* The four Unicode normal forms: decompose, order the combining marks, compose. Hangul is computed, the rest looked up
 * in the generated tables. */
#include <stdbool.h>
#include <stdlib.h>

#include "tokenizer/text/unicode.h"
#include "tokenizer/text/unicode_tables.h"
#include "tokenizer/text/utf8.h"

enum {
    HANGUL_BASE = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_L_COUNT = 19,
    HANGUL_V_COUNT = 21,
    HANGUL_T_COUNT = 28,
    HANGUL_COUNT = HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT,
};

static int compare_combining(const void *key, const void *entry)
{
    uint32_t point = *(const uint32_t *)key;
    const unicode_combining *range = entry;
    return point < range->first ? -1 : point > range->last;
}

static uint8_t combining_class(uint32_t point)
{
    if (point < 0x300)
        return 0;
    const unicode_combining *range =
        bsearch(&point, unicode_combinings, unicode_n_combinings, sizeof *unicode_combinings, compare_combining);
    return range == NULL ? 0 : range->combining_class;
}

static const unicode_mapping *decomposition(uint32_t point, bool compatible)
{
    const unicode_mapping *m = NULL;
    if (compatible)
        m = unicode_mapping_find(unicode_compatible, unicode_n_compatible, point);
    return m != NULL ? m : unicode_mapping_find(unicode_canonical, unicode_n_canonical, point);
}

static fsdp_status decompose(uint32_t point, bool compatible, id_vector *points)
{
    if (point >= HANGUL_BASE && point < HANGUL_BASE + HANGUL_COUNT) {
        uint32_t index = point - HANGUL_BASE, last = index % HANGUL_T_COUNT;
        FSDP_TRY(id_append(points, (int32_t)(HANGUL_L + index / (HANGUL_V_COUNT * HANGUL_T_COUNT))));
        FSDP_TRY(id_append(points, (int32_t)(HANGUL_V + index / HANGUL_T_COUNT % HANGUL_V_COUNT)));
        return last == 0 ? FSDP_OK : id_append(points, (int32_t)(HANGUL_T + last));
    }
    const unicode_mapping *m = point < 0xA0 ? NULL : decomposition(point, compatible);
    if (m == NULL)
        return id_append(points, (int32_t)point);
    for (size_t k = 0; k < m->n; k++)
        FSDP_TRY(id_append(points, (int32_t)unicode_pool[m->where + k]));
    return FSDP_OK;
}

/* Orders points[first..n) by combining class, equal ones as they stood: a counting sort, with room past the end. */
static fsdp_status order_run(id_vector *points, size_t first, size_t n)
{
    size_t place[257] = {0};
    FSDP_TRY(id_reserve(points, n));
    int32_t *run = points->data + first, *ordered = points->data + points->n;
    for (size_t i = 0; i < n; i++)
        place[combining_class((uint32_t)run[i]) + 1]++;
    for (size_t c = 1; c < 257; c++)
        place[c] += place[c - 1];
    for (size_t i = 0; i < n; i++)
        ordered[place[combining_class((uint32_t)run[i])]++] = run[i];
    memcpy(run, ordered, n * sizeof *run);
    return FSDP_OK;
}

/* Orders every run of combining marks; starters (class zero) keep their places. */
static fsdp_status order_marks(id_vector *points)
{
    for (size_t i = 0; i < points->n; i++) {
        size_t end = i;
        while (end < points->n && combining_class((uint32_t)points->data[end]) != 0)
            end++;
        if (end > i + 1)
            FSDP_TRY(order_run(points, i, end - i));
        i = end;
    }
    return FSDP_OK;
}

static int compare_composition(const void *key, const void *entry)
{
    const uint32_t *pair = key;
    const unicode_composition *c = entry;
    if (pair[0] != c->left)
        return pair[0] < c->left ? -1 : 1;
    return pair[1] < c->right ? -1 : pair[1] > c->right;
}

/* The code point that `left` and `right` compose to, 0 when they do not. */
static uint32_t composition(uint32_t left, uint32_t right)
{
    if (left >= HANGUL_L && left < HANGUL_L + HANGUL_L_COUNT && right >= HANGUL_V && right < HANGUL_V + HANGUL_V_COUNT)
        return HANGUL_BASE + ((left - HANGUL_L) * HANGUL_V_COUNT + (right - HANGUL_V)) * HANGUL_T_COUNT;
    if (left >= HANGUL_BASE && left < HANGUL_BASE + HANGUL_COUNT && (left - HANGUL_BASE) % HANGUL_T_COUNT == 0 &&
        right > HANGUL_T && right < HANGUL_T + HANGUL_T_COUNT)
        return left + (right - HANGUL_T);
    uint32_t pair[2] = {left, right};
    const unicode_composition *c =
        bsearch(pair, unicode_compositions, unicode_n_compositions, sizeof *unicode_compositions, compare_composition);
    return c == NULL ? 0 : c->whole;
}

/* Composes in place: a mark joins the last starter unless a mark of its own class or higher stands in between. */
static void compose(id_vector *points)
{
    size_t starter = SIZE_MAX, kept = 0;
    uint8_t last_class = 0;
    for (size_t i = 0; i < points->n; i++) {
        uint32_t point = (uint32_t)points->data[i];
        uint8_t point_class = combining_class(point);
        bool blocked = kept > 0 && starter != kept - 1 && last_class >= point_class;
        uint32_t whole = starter == SIZE_MAX || blocked ? 0 : composition((uint32_t)points->data[starter], point);
        if (whole != 0) {
            points->data[starter] = (int32_t)whole;
            continue;
        }
        if (point_class == 0)
            starter = kept;
        last_class = point_class;
        points->data[kept++] = (int32_t)point;
    }
    points->n = kept;
}

fsdp_status unicode_normalize(normal_form form, const char *text, size_t bytes, text_buffer *out, id_vector *points)
{
    bool compatible = form == FORM_NFKC || form == FORM_NFKD;
    points->n = 0;
    for (size_t i = 0, length; i < bytes; i += length)
        FSDP_TRY(decompose(utf8_decode(text + i, &length), compatible, points));
    FSDP_TRY(order_marks(points));
    if (form == FORM_NFC || form == FORM_NFKC)
        compose(points);
    for (size_t i = 0; i < points->n; i++)
        FSDP_TRY(utf8_append(out, (uint32_t)points->data[i]));
    return FSDP_OK;
}
