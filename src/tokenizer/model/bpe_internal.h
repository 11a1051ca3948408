/* The tables of a BPE model, shared by its reader (bpe.c) and its encoder (bpe_encode.c). */
#ifndef TOKENIZER_MODEL_BPE_INTERNAL_H
#define TOKENIZER_MODEL_BPE_INTERNAL_H

#include "tokenizer/model/bpe.h"

#define BPE_NO_RANK UINT32_MAX

typedef struct bpe_merge {
    int32_t left, right; /* left -1: a free slot */
    uint32_t rank;
    int32_t whole;
} bpe_merge;

struct bpe {
    vocabulary *tokens;   /* as the file spells them */
    vocabulary *by_bytes; /* the same by plain bytes; NULL: words come spelled */
    bpe_merge *merges;    /* open addressing */
    size_t n_slots;       /* a power of two */
    int32_t byte_id[256]; /* by_bytes: the token of each byte */
    int32_t ascii_id[128];
    int32_t fallback_id[256]; /* "<0x00>" to "<0xFF>", -1 where missing */
    bool has_unknown, fuse_unknown, byte_fallback, ignore_merges;
    int32_t unknown_id;    /* -1: the file names one that the vocabulary lacks */
    char *prefix, *suffix; /* of characters that continue, or end, a word; NULL: none */
    size_t prefix_bytes, suffix_bytes;
    /* No merge joins anything but BPE_MARK with a BPE_MARK after it, so words may be cut in front of one. */
    bool cuts_at_mark;
};

#define BPE_MARK "\xE2\x96\x81" /* U+2581, the space of SentencePiece */
#define BPE_MARK_BYTES 3

static inline size_t bpe_merge_slot(const bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15ull;
    return (h ^ h >> 32) & (b->n_slots - 1);
}

/* The merge of the pair, NULL when it has none. */
static inline const bpe_merge *bpe_merge_find(const bpe *b, int32_t left, int32_t right)
{
    for (size_t i = bpe_merge_slot(b, left, right); b->merges[i].left >= 0; i = (i + 1) & (b->n_slots - 1))
        if (b->merges[i].left == left && b->merges[i].right == right)
            return &b->merges[i];
    return NULL;
}

#endif
