/* Opcodes of protocol 2. No memo: what is written twice is written out twice. */
#include "format/torch/pickle_writer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/weights/safetensors.h"

static void put_bytes(pickle_writer *w, const void *data, size_t n)
{
    if (w->bytes + n > w->capacity) {
        size_t capacity = w->bytes + n > 2 * w->capacity ? w->bytes + n + 256 : 2 * w->capacity;
        char *grown = realloc(w->data, capacity);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->data = grown;
        w->capacity = capacity;
    }
    if (n > 0)
        memcpy(w->data + w->bytes, data, n);
    w->bytes += n;
}

static void put_number(pickle_writer *w, char opcode, uint64_t value, int width)
{
    uint8_t bytes[9] = {(uint8_t)opcode};
    for (int i = 0; i < width; i++)
        bytes[1 + i] = (uint8_t)(value >> (8 * i));
    put_bytes(w, bytes, (size_t)width + 1);
}

void pickle_begin(pickle_writer *w)
{
    w->bytes = 0;
    w->failed = false;
    put_bytes(w, "\x80\x02", 2);
}

fsdp_status pickle_end(pickle_writer *w)
{
    put_bytes(w, ".", 1);
    return w->failed ? error_set(FSDP_ERR_MEMORY, "out of memory for a pickle of %zu bytes", w->bytes) : FSDP_OK;
}

void pickle_writer_free(pickle_writer *w)
{
    free(w->data);
    *w = (pickle_writer){0};
}

void pickle_put(pickle_writer *w, const char *opcodes)
{
    put_bytes(w, opcodes, strlen(opcodes));
}

void pickle_put_all(pickle_writer *w, const pickle_writer *other)
{
    put_bytes(w, other->data, other->bytes);
    w->failed |= other->failed;
}

void pickle_put_text(pickle_writer *w, const char *text)
{
    put_number(w, 'X', strlen(text), 4);
    put_bytes(w, text, strlen(text));
}

void pickle_put_int(pickle_writer *w, int64_t value)
{
    if (value >= 0 && value < 256)
        put_number(w, 'K', (uint64_t)value, 1);
    else if (value >= INT32_MIN && value <= INT32_MAX)
        put_number(w, 'J', (uint64_t)value, 4);
    else {
        put_number(w, (char)0x8a, 8, 1);
        put_bytes(w, &value, 8);
    }
}

void pickle_put_float(pickle_writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    put_number(w, 'G', __builtin_bswap64(bits), 8);
}

void pickle_put_bool(pickle_writer *w, bool value)
{
    put_bytes(w, value ? "\x88" : "\x89", 1);
}

void pickle_put_global(pickle_writer *w, const char *module, const char *name)
{
    pickle_put(w, "c");
    pickle_put(w, module);
    pickle_put(w, "\n");
    pickle_put(w, name);
    pickle_put(w, "\n");
}

void pickle_put_dotted(pickle_writer *w, const char *name)
{
    const char *dot = strrchr(name, '.');
    pickle_put(w, "c");
    put_bytes(w, name, (size_t)(dot - name));
    pickle_put(w, "\n");
    pickle_put(w, dot + 1);
    pickle_put(w, "\n");
}

static void put_tuple(pickle_writer *w, const int64_t *values, int n)
{
    pickle_put(w, "(");
    for (int i = 0; i < n; i++)
        pickle_put_int(w, values[i]);
    pickle_put(w, "t");
}

void pickle_put_size(pickle_writer *w, const int64_t *values, int n)
{
    pickle_put_global(w, "torch", "Size");
    put_tuple(w, values, n);
    pickle_put(w, "\x85R");
}

void pickle_put_tensor(pickle_writer *w, const torch_element *element, const char *key, int n_dims,
                       const int64_t *shape)
{
    int64_t strides[SAFETENSORS_MAX_DIMS], numel = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        strides[i] = numel;
        numel *= shape[i] > 0 ? shape[i] : 1;
    }
    for (int i = 0; i < n_dims; i++)
        numel = shape[i] == 0 ? 0 : numel;
    pickle_put_global(w, "torch._utils", "_rebuild_tensor_v2");
    pickle_put(w, "((");
    pickle_put_text(w, "storage");
    pickle_put_dotted(w, element->storage);
    pickle_put_text(w, key);
    pickle_put_text(w, "cpu");
    pickle_put_int(w, numel);
    pickle_put(w, "tQ");
    pickle_put_int(w, 0);
    put_tuple(w, shape, n_dims);
    put_tuple(w, strides, n_dims);
    pickle_put_bool(w, false);
    pickle_put_global(w, "collections", "OrderedDict");
    pickle_put(w, ")RtR");
}
