/* Chooses the reader of a file of weights; safetensors.c and torch/torch_file.c do the work. */
#include "format/weights/weight_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "format/torch/torch_file.h"

struct weight_file {
    safetensors *safe;           /* one of the two */
    torch_file *torch;           /* is open */
    safetensors_tensor *tensors; /* of `torch`, by name */
    size_t n_tensors;
};

static fsdp_status is_torch(const char *path, bool *torch)
{
    uint8_t head[64];
    int fd;
    FSDP_TRY(file_open_regular(path, FILE_ANY_SIZE, &fd, NULL));
    ssize_t got;
    do
        got = pread(fd, head, sizeof head, 0);
    while (got < 0 && errno == EINTR);
    fsdp_status status = got < 0 ? error_set_errno(FSDP_ERR_IO, "%s: cannot be read", path) : FSDP_OK;
    close(fd);
    *torch = got > 0 && torch_file_looks_like(head, (size_t)got);
    return status;
}

fsdp_status weight_file_open(const char *path, weight_file **out)
{
    bool torch = false;
    *out = NULL;
    weight_file *file = calloc(1, sizeof *file);
    fsdp_status status = file ? is_torch(path, &torch) : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    if (status == FSDP_OK)
        status = torch ? torch_file_open(path, &file->torch) : safetensors_open(path, &file->safe);
    if (status == FSDP_OK && torch)
        status = torch_file_state_dict(file->torch, &file->tensors, &file->n_tensors);
    if (status != FSDP_OK) {
        weight_file_close(file);
        return status;
    }
    *out = file;
    return FSDP_OK;
}

void weight_file_close(weight_file *file)
{
    if (!file)
        return;
    safetensors_close(file->safe);
    torch_file_close(file->torch);
    free(file);
}

size_t weight_file_count(const weight_file *file)
{
    return file->safe ? safetensors_count(file->safe) : file->n_tensors;
}

const safetensors_tensor *weight_file_at(const weight_file *file, size_t index)
{
    return file->safe ? safetensors_at(file->safe, index) : &file->tensors[index];
}

static int name_against_tensor(const void *name, const void *tensor)
{
    return strcmp(name, ((const safetensors_tensor *)tensor)->name);
}

const safetensors_tensor *weight_file_find(const weight_file *file, const char *name)
{
    if (file->safe)
        return safetensors_find(file->safe, name);
    return bsearch(name, file->tensors, file->n_tensors, sizeof *file->tensors, name_against_tensor);
}
