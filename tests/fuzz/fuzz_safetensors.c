/* Any bytes to the safetensors reader: what opens is read in full, looked up again and must lie within the input.
 * Each input is tried as a file, and as header text, a newline and data, for which a true length is put in front: so
 * mutations reach what lies behind the length. Built with clang -fsanitize=fuzzer it searches (the dictionary beside it
 * helps); otherwise it replays tests/fuzz/corpus/safetensors. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void read_everything(const safetensors_tensor *tensor)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_F64};
    uint64_t room[64];
    for (int64_t first = 0; first < tensor->numel && first < 4096; first += 64) {
        int64_t left = tensor->numel - first, n = left < 64 ? left : 64;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            (void)safetensors_read(tensor, first, n, types[i], room);
        (void)safetensors_read_i64(tensor, first, n, (int64_t *)room);
    }
    require(safetensors_read_f32(tensor, tensor->numel, 1, (float *)room) != FSDP_OK);
}

static void try_file(const uint8_t *data, size_t bytes)
{
    safetensors *file;
    if (safetensors_open_memory("fuzz", data, bytes, &file) != FSDP_OK) {
        require(strlen(fsdp_last_error()) > 0);
        return;
    }
    size_t covered = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *tensor = safetensors_at(file, i);
        require(tensor->data >= data && tensor->bytes <= bytes && tensor->data <= data + bytes - tensor->bytes);
        require(tensor->offset == (size_t)(tensor->data - data));
        require(safetensors_find(file, tensor->name) == tensor);
        covered += tensor->bytes;
        read_everything(tensor);
    }
    require(covered <= bytes);
    safetensors_close(file);
}

static void try_header_and_data(const uint8_t *data, size_t bytes)
{
    const uint8_t *newline = bytes ? memchr(data, '\n', bytes) : NULL;
    uint64_t header_bytes = newline ? (uint64_t)(newline - data) : bytes;
    size_t data_bytes = newline ? bytes - (size_t)header_bytes - 1 : 0;
    uint8_t *file = malloc(sizeof header_bytes + (size_t)header_bytes + data_bytes);
    require(file != NULL);
    memcpy(file, &header_bytes, sizeof header_bytes);
    if (bytes)
        memcpy(file + sizeof header_bytes, data, (size_t)header_bytes);
    if (data_bytes)
        memcpy(file + sizeof header_bytes + header_bytes, newline + 1, data_bytes);
    try_file(file, sizeof header_bytes + (size_t)header_bytes + data_bytes);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    try_file(data, bytes);
    try_header_and_data(data, bytes);
    return 0;
}
