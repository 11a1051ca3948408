/* Any bytes to the reader of PyTorch's files: as a whole file, and as the pickle inside a stream whose storage is
 * there, so that mutations reach the tensors. What opens must lie within the input and is read in full. Built with
 * clang -fsanitize=fuzzer it searches; otherwise it replays tests/fuzz/corpus/pickle. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/torch/torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

static void read_everything(const safetensors_tensor *tensor, const uint8_t *data, size_t bytes)
{
    float room[64];
    require(tensor->data >= data && tensor->data <= data + bytes);
    require(tensor->strides || tensor->bytes <= bytes - (size_t)(tensor->data - data));
    for (int64_t first = 0; first < tensor->numel && first < 4096; first += 64) {
        int64_t left = tensor->numel - first, n = left < 64 ? left : 64;
        (void)safetensors_read_f32(tensor, first, n, room);
        (void)safetensors_read_f32(tensor, tensor->numel - n, n, room);
    }
}

static void try_file(const uint8_t *data, size_t bytes)
{
    torch_file *file;
    safetensors_tensor *tensors;
    size_t n = 0;
    if (torch_file_open_memory("fuzz", data, bytes, 0, &file) != FSDP_OK) {
        require(strlen(fsdp_last_error()) > 0);
        return;
    }
    if (torch_file_state_dict(file, &tensors, &n) != FSDP_OK)
        n = 0;
    for (size_t i = 0; i < n; i++)
        read_everything(&tensors[i], data, bytes);
    torch_file_close(file);
}

static void try_pickle(const uint8_t *data, size_t bytes)
{
    static const char before[] = "\x80\x02\x8a\x0al\xfc\x9c"
                                 "F\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
                                 "\x80\x02}X\x0d\0\0\0little_endian\x88s.",
                      after[] = "\x80\x02]X\x01\0\0\0"
                                "0a.\x10\0\0\0\0\0\0";
    enum { BEFORE = sizeof before - 1, AFTER = sizeof after, STORAGE = 64 };
    uint8_t *file = calloc(1, BEFORE + bytes + AFTER + STORAGE);
    require(file != NULL);
    memcpy(file, before, BEFORE);
    if (bytes)
        memcpy(file + BEFORE, data, bytes);
    memcpy(file + BEFORE + bytes, after, AFTER);
    try_file(file, BEFORE + bytes + AFTER + STORAGE);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    try_file(data, bytes);
    try_pickle(data, bytes);
    return 0;
}
