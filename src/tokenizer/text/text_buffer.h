/* Growing buffers that are cleared and filled again: text, ids, spans. They keep their memory, so a loop that has seen
 * its longest text allocates no more. */
#ifndef TOKENIZER_TEXT_TEXT_BUFFER_H
#define TOKENIZER_TEXT_TEXT_BUFFER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <fsdp/status.h>

typedef struct text_buffer {
    char *data;
    size_t bytes, capacity;
    size_t limit; /* growing past it is an error; 0: none */
} text_buffer;

/* What a tokenizer may make of a text, in bytes and in ids: more than any that is meant for text does. Its file may ask
 * for anything, such as twenty steps that each double the text. */
static inline size_t text_most(size_t bytes)
{
    return bytes < SIZE_MAX / 128 ? 64 * bytes + (1 << 20) : SIZE_MAX;
}

/* Makes room for `more` bytes after what is there, and one for a NUL. */
fsdp_status text_reserve_slow(text_buffer *b, size_t more);
void text_free(text_buffer *b);

static inline fsdp_status text_reserve(text_buffer *b, size_t more)
{
    return b->capacity - b->bytes > more ? FSDP_OK : text_reserve_slow(b, more);
}

static inline fsdp_status text_append(text_buffer *b, const char *data, size_t bytes)
{
    FSDP_TRY(text_reserve(b, bytes));
    if (bytes > 0)
        memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    return FSDP_OK;
}

typedef struct id_vector {
    int32_t *data;
    size_t n, capacity;
    size_t limit; /* as a text's */
} id_vector;

fsdp_status id_reserve_slow(id_vector *v, size_t more);
void id_free(id_vector *v);

static inline fsdp_status id_reserve(id_vector *v, size_t more)
{
    return v->capacity - v->n >= more ? FSDP_OK : id_reserve_slow(v, more);
}

static inline fsdp_status id_append(id_vector *v, int32_t id)
{
    FSDP_TRY(id_reserve(v, 1));
    v->data[v->n++] = id;
    return FSDP_OK;
}

static inline fsdp_status id_append_all(id_vector *v, const int32_t *ids, size_t n)
{
    FSDP_TRY(id_reserve(v, n));
    if (n > 0)
        memcpy(v->data + v->n, ids, n * sizeof *ids);
    v->n += n;
    return FSDP_OK;
}

/* A part of a text, and whether a pattern matched it. */
typedef struct text_span {
    size_t start, end;
    int matched;
} text_span;

typedef struct span_vector {
    text_span *data;
    size_t n, capacity;
} span_vector;

fsdp_status span_append(span_vector *v, size_t start, size_t end, int matched);
void span_free(span_vector *v);

/* Grows *data to hold at least `wanted` elements; *capacity follows. */
fsdp_status array_grow(void **data, size_t *capacity, size_t wanted, size_t element_bytes);

#endif
