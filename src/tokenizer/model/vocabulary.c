/* Open addressing with linear probing over entries; texts live in one arena. */
#include "tokenizer/model/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "tokenizer/text/text_buffer.h"

typedef struct entry {
    const char *text; /* NULL: free */
    uint32_t bytes;
    int32_t id;
} entry;

struct vocabulary {
    arena *texts;
    entry *slots;
    size_t n_slots; /* a power of two */
    size_t count;
    size_t longest;
    entry *by_id; /* [end]; text NULL where no token has the id */
    size_t by_id_capacity;
    int32_t end;
};

fsdp_status vocabulary_create(size_t expected, vocabulary **out)
{
    vocabulary *v = calloc(1, sizeof *v);
    if (v == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory: a vocabulary of %zu tokens", expected);
    v->n_slots = 64;
    while (v->n_slots < expected * 2)
        v->n_slots *= 2;
    v->slots = calloc(v->n_slots, sizeof *v->slots);
    fsdp_status status = v->slots == NULL
                             ? error_set(FSDP_ERR_MEMORY, "out of memory: a vocabulary of %zu tokens", expected)
                             : arena_create(0, &v->texts);
    if (status != FSDP_OK) {
        vocabulary_free(v);
        return status;
    }
    *out = v;
    return FSDP_OK;
}

void vocabulary_free(vocabulary *v)
{
    if (v == NULL)
        return;
    arena_free(v->texts);
    free(v->by_id);
    free(v->slots);
    free(v);
}

static entry *find_slot(entry *slots, size_t n_slots, const char *text, size_t bytes)
{
    size_t i = vocabulary_hash(text, bytes) & (n_slots - 1);
    while (slots[i].text != NULL && (slots[i].bytes != bytes || memcmp(slots[i].text, text, bytes) != 0))
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

static fsdp_status double_slots(vocabulary *v)
{
    entry *larger = calloc(v->n_slots * 2, sizeof *larger);
    if (larger == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory: a vocabulary of %zu tokens", v->count);
    for (size_t i = 0; i < v->n_slots; i++)
        if (v->slots[i].text != NULL)
            *find_slot(larger, v->n_slots * 2, v->slots[i].text, v->slots[i].bytes) = v->slots[i];
    free(v->slots);
    v->slots = larger;
    v->n_slots *= 2;
    return FSDP_OK;
}

static fsdp_status set_text_of_id(vocabulary *v, entry e)
{
    if ((size_t)e.id >= v->by_id_capacity)
        FSDP_TRY(array_grow((void **)&v->by_id, &v->by_id_capacity, (size_t)e.id + 1, sizeof *v->by_id));
    while (v->end <= e.id)
        v->by_id[v->end++] = (entry){0};
    v->by_id[e.id] = e;
    return FSDP_OK;
}

fsdp_status vocabulary_add(vocabulary *v, const char *text, size_t bytes, int32_t id)
{
    if (id < 0 || id >= VOCABULARY_MAX_ID)
        return error_set(FSDP_ERR_INPUT, "token id %d is outside 0..%d", id, VOCABULARY_MAX_ID - 1);
    if (bytes > INT32_MAX)
        return error_set(FSDP_ERR_INPUT, "a token of %zu bytes is too long", bytes);
    if (v->count * 2 >= v->n_slots)
        FSDP_TRY(double_slots(v));
    entry *slot = find_slot(v->slots, v->n_slots, text, bytes);
    if (slot->text == NULL) {
        char *copy = arena_alloc(v->texts, bytes + 1);
        if (copy == NULL)
            return error_set(FSDP_ERR_MEMORY, "out of memory: a token of %zu bytes", bytes);
        memcpy(copy, text, bytes);
        *slot = (entry){copy, (uint32_t)bytes, id};
        v->count++;
    }
    slot->id = id;
    if (bytes > v->longest)
        v->longest = bytes;
    return set_text_of_id(v, *slot);
}

int32_t vocabulary_id(const vocabulary *v, const char *text, size_t bytes)
{
    const entry *slot = find_slot(v->slots, v->n_slots, text, bytes);
    return slot->text == NULL ? -1 : slot->id;
}

const char *vocabulary_text(const vocabulary *v, int32_t id, size_t *bytes)
{
    if (id < 0 || id >= v->end || v->by_id[id].text == NULL)
        return NULL;
    if (bytes != NULL)
        *bytes = v->by_id[id].bytes;
    return v->by_id[id].text;
}

size_t vocabulary_count(const vocabulary *v)
{
    return v->count;
}

int32_t vocabulary_end(const vocabulary *v)
{
    return v->end;
}

size_t vocabulary_longest(const vocabulary *v)
{
    return v->longest;
}
