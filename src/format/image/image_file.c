/* Reads IDX files into memory, and finds which kind of images a folder has. Sizes that a header states are believed
 * only as far as bytes follow: memory grows with what was read, never with what was promised. */
#include "format/image/image_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/byte_stream.h"
#include "format/image/cifar_file.h"
#include "format/image/class_folders.h"

enum { IDX_BYTES = 8, IMAGE_DIMS = 3, LABEL_DIMS = 1 };
enum { MAX_SIDE = 1 << 14 };

void image_set_free(image_set *set)
{
    free(set->pixels);
    free(set->labels);
    *set = (image_set){0};
}

/* As many bytes as there are, up to `bytes`. */
static fsdp_status read_up_to(byte_stream *stream, uint8_t *out, size_t bytes, size_t *total)
{
    size_t got = 1;
    *total = 0;
    while (*total < bytes && got > 0) {
        FSDP_TRY(byte_stream_read(stream, out + *total, bytes - *total, &got));
        *total += got;
    }
    return FSDP_OK;
}

/* Exactly `bytes` more bytes, in memory of their own that grows as they come. */
static fsdp_status read_exactly(byte_stream *stream, size_t bytes, uint8_t **out)
{
    size_t capacity = 0, filled = 0, got;
    uint8_t *data = NULL;
    do {
        size_t larger = capacity ? 2 * capacity : 1 << 20;
        if (larger > bytes)
            larger = bytes;
        uint8_t *moved = realloc(data, larger + 1);
        if (!moved) {
            free(data);
            return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %zu bytes", byte_stream_path(stream), larger);
        }
        data = moved;
        capacity = larger;
        fsdp_status status = read_up_to(stream, data + filled, capacity - filled, &got);
        filled += got;
        if (status == FSDP_OK && filled < capacity)
            status = error_set(FSDP_ERR_INPUT, "%s: ends after %zu of the %zu bytes that its header states: truncated?",
                               byte_stream_path(stream), filled, bytes);
        if (status != FSDP_OK) {
            free(data);
            return status;
        }
    } while (filled < bytes);
    *out = data;
    return FSDP_OK;
}

static fsdp_status check_ended(byte_stream *stream)
{
    uint8_t extra;
    size_t got;
    FSDP_TRY(byte_stream_read(stream, &extra, 1, &got));
    if (got > 0)
        return error_set(FSDP_ERR_INPUT, "%s: is longer than its header states", byte_stream_path(stream));
    return FSDP_OK;
}

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static fsdp_status read_idx_header(byte_stream *stream, int n_dims, uint32_t *dims)
{
    uint8_t header[4 + 4 * IMAGE_DIMS];
    size_t wanted = 4 + 4 * (size_t)n_dims, got;
    FSDP_TRY(read_up_to(stream, header, wanted, &got));
    if (got < wanted)
        return error_set(FSDP_ERR_INPUT, "%s: too short for an IDX file", byte_stream_path(stream));
    if (header[0] != 0 || header[1] != 0 || header[2] != IDX_BYTES || header[3] != n_dims)
        return error_set(
            FSDP_ERR_INPUT, "%s: not an IDX file of bytes in %d dimension%s (it begins with %02x%02x%02x%02x)",
            byte_stream_path(stream), n_dims, n_dims == 1 ? "" : "s", header[0], header[1], header[2], header[3]);
    for (int i = 0; i < n_dims; i++)
        dims[i] = big_endian(header + 4 + 4 * i);
    return FSDP_OK;
}

static fsdp_status read_idx(const char *path, int n_dims, uint32_t *dims, uint8_t **data)
{
    byte_stream *stream;
    fsdp_status status;
    size_t bytes = 1;
    *data = NULL;
    FSDP_TRY(byte_stream_open(path, &stream));
    TRY_OR(done, read_idx_header(stream, n_dims, dims));
    for (int i = 0; i < n_dims; i++) {
        if (dims[i] == 0 || (i > 0 && dims[i] > MAX_SIDE) || checked_mul(bytes, dims[i], &bytes)) {
            status = error_set(FSDP_ERR_INPUT, "%s: dimension %d is %u", path, i, dims[i]);
            goto done;
        }
    }
    TRY_OR(done, read_exactly(stream, bytes, data));
    status = check_ended(stream);
done:
    byte_stream_close(stream);
    if (status != FSDP_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}

fsdp_status image_set_read_idx(const char *images_path, const char *labels_path, image_set *out)
{
    uint32_t image_dims[IMAGE_DIMS] = {0}, n_labels = 0;
    fsdp_status status;
    *out = (image_set){0};
    TRY_OR(fail, read_idx(images_path, IMAGE_DIMS, image_dims, &out->pixels));
    TRY_OR(fail, read_idx(labels_path, LABEL_DIMS, &n_labels, &out->labels));
    if (n_labels != image_dims[0]) {
        status = error_set(FSDP_ERR_INPUT, "%s has %u images, but %s has %u labels", images_path, image_dims[0],
                           labels_path, n_labels);
        goto fail;
    }
    out->n_images = n_labels;
    out->channels = 1;
    out->height = (int)image_dims[1];
    out->width = (int)image_dims[2];
    for (uint32_t i = 0; i < n_labels; i++)
        out->n_classes = out->labels[i] >= out->n_classes ? out->labels[i] + 1 : out->n_classes;
    return FSDP_OK;
fail:
    image_set_free(out);
    return status;
}

/* The first of the usual spellings that exists; malloc'd, NULL when none does. */
static char *find_idx(const char *folder, const char *part, const char *kind, int n_dims)
{
    static const char *const separators[] = {"-", "."}, *const endings[] = {"", ".gz"};
    for (int i = 0; i < 4; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s-%s%sidx%d-ubyte%s", part, kind, separators[i / 2], n_dims, endings[i % 2]);
        char *path = file_join(folder, name);
        if (path && file_exists(path))
            return path;
        free(path);
    }
    return NULL;
}

/* --- folders ----------------------------------------------------------------------------------------------------- */

static const char *const emnist_splits[] = {"byclass", "bymerge", "balanced", "letters", "digits", "mnist"};

/* What the names of the part's IDX files begin with: MNIST's, or those of a split of EMNIST, of which there are `*n`;
 * the one that is asked for, or the last. */
static void idx_part(const char *folder, const char *split, bool training, char name[64], int *n)
{
    char *images = find_idx(folder, training ? "train" : "t10k", "images", IMAGE_DIMS);
    *n = 0;
    snprintf(name, 64, "%s", training ? "train" : "t10k");
    for (size_t i = 0; images == NULL && i < sizeof emnist_splits / sizeof *emnist_splits; i++) {
        char part[64];
        snprintf(part, sizeof part, "emnist-%s-%s", emnist_splits[i], training ? "train" : "test");
        char *path = find_idx(folder, part, "images", IMAGE_DIMS);
        bool wanted = split == NULL || strcmp(split, emnist_splits[i]) == 0;
        *n += path != NULL && wanted;
        if (path != NULL && wanted)
            memcpy(name, part, sizeof part);
        free(path);
    }
    free(images);
}

static bool idx_folder_has(const char *folder, bool training)
{
    char part[64];
    int n;
    idx_part(folder, NULL, training, part, &n);
    char *images = find_idx(folder, part, "images", IMAGE_DIMS), *labels = find_idx(folder, part, "labels", LABEL_DIMS);
    bool has = images != NULL || labels != NULL;
    free(images);
    free(labels);
    return has;
}

bool image_folder_has(const char *folder, bool training)
{
    return idx_folder_has(folder, training) || cifar_folder_has(folder, training) ||
           class_folders_has(folder, training);
}

static fsdp_status read_idx_folder(const char *folder, const char *split, bool training, image_set *out)
{
    char part[64];
    int n_splits;
    idx_part(folder, split, training, part, &n_splits);
    if (n_splits > 1)
        return error_set(FSDP_ERR_INPUT,
                         "%s: has several splits of EMNIST; choose one with --dataset_config_name (byclass, bymerge, "
                         "balanced, letters, digits, mnist)",
                         folder);
    char *images = find_idx(folder, part, "images", IMAGE_DIMS), *labels = find_idx(folder, part, "labels", LABEL_DIMS);
    fsdp_status status = images != NULL && labels != NULL
                             ? image_set_read_idx(images, labels, out)
                             : error_set(FSDP_ERR_INPUT, "%s: has the %s file of IDX data, but not the %s file", folder,
                                         images ? "images" : "labels", images ? "labels" : "images");
    free(images);
    free(labels);
    return status;
}

fsdp_status image_set_read_folder(const char *folder, const char *split, bool training, image_set *out)
{
    *out = (image_set){0};
    if (idx_folder_has(folder, training))
        return read_idx_folder(folder, split, training, out);
    if (cifar_folder_has(folder, training))
        return cifar_read_folder(folder, training, out);
    if (class_folders_has(folder, training))
        return class_folders_read(folder, training, out);
    return error_set(FSDP_ERR_INPUT,
                     "%s: has neither IDX files (%s-images-idx3-ubyte[.gz] and labels) nor CIFAR batches (%s), nor a "
                     "folder of pictures for each class",
                     folder, training ? "train" : "t10k", training ? "data_batch_1.bin ..." : "test_batch.bin");
}
