/* Growth of the buffers in text_buffer.h: doubling, with overflow and lack of memory reported. */
#include "tokenizer/text/text_buffer.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"

fsdp_status array_grow(void **data, size_t *capacity, size_t wanted, size_t element_bytes)
{
    size_t larger = *capacity < 32 ? 32 : *capacity * 2, bytes;
    if (larger < wanted)
        larger = wanted;
    if (checked_mul(larger, element_bytes, &bytes))
        return error_set(FSDP_ERR_MEMORY, "a text of %zu elements is too large for memory", wanted);
    void *moved = realloc(*data, bytes);
    if (moved == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory: %zu bytes for tokenizing a text", bytes);
    *data = moved;
    *capacity = larger;
    return FSDP_OK;
}

static fsdp_status check_limit(size_t wanted, size_t limit, const char *what)
{
    if (limit == 0 || wanted <= limit)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "the tokenizer makes more than %zu %s of a text, far more than the text has: its steps repeat or "
                     "multiply it; use another tokenizer.json",
                     limit, what);
}

fsdp_status text_reserve_slow(text_buffer *b, size_t more)
{
    FSDP_TRY(check_limit(b->bytes + more, b->limit, "bytes"));
    return array_grow((void **)&b->data, &b->capacity, b->bytes + more + 1, 1);
}

void text_free(text_buffer *b)
{
    free(b->data);
    *b = (text_buffer){0};
}

fsdp_status id_reserve_slow(id_vector *v, size_t more)
{
    FSDP_TRY(check_limit(v->n + more, v->limit, "ids"));
    return array_grow((void **)&v->data, &v->capacity, v->n + more, sizeof *v->data);
}

void id_free(id_vector *v)
{
    free(v->data);
    *v = (id_vector){0};
}

fsdp_status span_append(span_vector *v, size_t start, size_t end, int matched)
{
    if (v->n == v->capacity)
        FSDP_TRY(array_grow((void **)&v->data, &v->capacity, v->n + 1, sizeof *v->data));
    v->data[v->n++] = (text_span){start, end, matched};
    return FSDP_OK;
}

void span_free(span_vector *v)
{
    free(v->data);
    *v = (span_vector){0};
}
