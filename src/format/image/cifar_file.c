/* Binary batches are records of label bytes and 3 x 32 x 32 pixels: one label for CIFAR-10, a coarse and a fine one for
 * CIFAR-100. Pickles are dicts of a numpy array and a list of labels, read as data (format/torch/pickle.h). */
#include "format/image/cifar_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "format/byte_stream.h"
#include "format/torch/pickle.h"

enum { CHANNELS = 3, SIDE = 32, PIXELS = CHANNELS * SIDE * SIDE, MAX_BATCHES = 64 };
static const uint64_t largest_pickle = (uint64_t)1 << 30;

typedef struct layout {
    const char *name;
    const char *train, *test; /* files */
    const char *ending;       /* training is several: train1, train2, ... with this behind; NULL: one file */
    const char *beside;       /* a file that only this layout has; may be NULL */
    const char *labels;       /* pickles: the key; NULL: binary */
    int n_classes;
} layout;

static const layout layouts[] = {
    {"CIFAR-10", "data_batch_", "test_batch.bin", ".bin", NULL, NULL, 10},
    {"CIFAR-100", "train.bin", "test.bin", NULL, "fine_label_names.txt", NULL, 100},
    {"CIFAR-10", "data_batch_", "test_batch", "", "batches.meta", "labels", 10},
    {"CIFAR-100", "train", "test", NULL, "meta", "fine_labels", 100},
};

/* The path of a part of the layout, `number` from 1; NULL where there is no such file. malloc'd. */
static char *find_file(const char *folder, const layout *l, bool training, int number)
{
    char name[64];
    bool several = training && l->ending != NULL;
    if (several)
        snprintf(name, sizeof name, "%s%d%s", l->train, number, l->ending);
    else
        snprintf(name, sizeof name, "%s", training ? l->train : l->test);
    char *path = several || number == 1 ? file_join(folder, name) : NULL;
    if (path != NULL && file_exists(path) && !file_is_directory(path))
        return path;
    free(path);
    return NULL;
}

static const layout *find_layout(const char *folder, bool training)
{
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char *first = find_file(folder, &layouts[i], training, 1);
        char *beside = layouts[i].beside == NULL ? NULL : file_join(folder, layouts[i].beside);
        bool found = first != NULL && (layouts[i].beside == NULL || (beside != NULL && file_exists(beside)));
        free(beside);
        free(first);
        if (found)
            return &layouts[i];
    }
    return NULL;
}

bool cifar_folder_has(const char *folder, bool training)
{
    return find_layout(folder, training) != NULL;
}

/* Room for `more` images. */
static fsdp_status grow(image_set *set, int64_t *capacity, int64_t more, const char *path)
{
    if (set->n_images + more <= *capacity)
        return FSDP_OK;
    int64_t larger = 2 * *capacity > set->n_images + more ? 2 * *capacity : set->n_images + more;
    uint8_t *pixels = realloc(set->pixels, (size_t)larger * PIXELS);
    if (pixels)
        set->pixels = pixels;
    uint8_t *labels = realloc(set->labels, (size_t)larger);
    if (labels)
        set->labels = labels;
    if (!pixels || !labels)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %lld images", path, (long long)larger);
    *capacity = larger;
    return FSDP_OK;
}

static fsdp_status check_label(const char *path, const layout *l, int64_t image, int64_t label)
{
    if (label >= 0 && label < l->n_classes)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: image %lld has label %lld; %s has labels 0 to %d", path, (long long)image,
                     (long long)label, l->name, l->n_classes - 1);
}

/* --- binary batches ---------------------------------------------------------------------------------------------- */

static fsdp_status append_binary(const char *path, const layout *l, image_set *set, int64_t *capacity)
{
    byte_stream *stream;
    uint8_t record[2 + PIXELS];
    size_t n_labels = l->n_classes == 100 ? 2 : 1, wanted = n_labels + PIXELS;
    fsdp_status status = FSDP_OK;
    FSDP_TRY(byte_stream_open(path, &stream));
    for (int64_t i = 0;; i++) {
        size_t total = 0, got = 1;
        while (total < wanted && got > 0) {
            TRY_OR(done, byte_stream_read(stream, record + total, wanted - total, &got));
            total += got;
        }
        if (total == 0 && i > 0)
            break;
        if (total < wanted) {
            status = error_set(FSDP_ERR_INPUT, "%s: ends within image %lld: truncated, or not a %s batch", path,
                               (long long)i, l->name);
            break;
        }
        TRY_OR(done, check_label(path, l, i, record[n_labels - 1]));
        TRY_OR(done, grow(set, capacity, 1, path));
        set->labels[set->n_images] = record[n_labels - 1];
        memcpy(set->pixels + set->n_images * PIXELS, record + n_labels, PIXELS);
        set->n_images++;
    }
done:
    byte_stream_close(stream);
    return status;
}

/* --- pickles ----------------------------------------------------------------------------------------------------- */

enum { NUMPY_RECONSTRUCT = 1, NUMPY_OTHER };

static const pickle_global numpy_globals[] = {
    {"numpy.core.multiarray._reconstruct", PICKLE_CALLED | PICKLE_STATE, NUMPY_RECONSTRUCT},
    {"numpy._core.multiarray._reconstruct", PICKLE_CALLED | PICKLE_STATE, NUMPY_RECONSTRUCT},
    {"numpy.ndarray", 0, NUMPY_OTHER},
    {"numpy.dtype", PICKLE_CALLED | PICKLE_STATE, NUMPY_OTHER},
    {NULL, 0, 0},
};

/* Python 2 wrote keys as bytes. */
static const pickle_value *find_key(const pickle_value *dict, const char *key)
{
    const pickle_value *found = pickle_find(dict, key);
    for (size_t i = 0; found == NULL && pickle_is(dict, PICKLE_DICT) && i + 1 < dict->n_items; i += 2) {
        const pickle_value *k = dict->items[i];
        if (pickle_is(k, PICKLE_BYTES) && k->n_bytes == strlen(key) && memcmp(k->bytes, key, k->n_bytes) == 0)
            found = dict->items[i + 1];
    }
    return found;
}

/* The bytes of an array of bytes with rows of PIXELS, as its state holds them: version, shape, type, order, bytes. */
static const pickle_value *array_bytes(const pickle_value *array, int64_t *n_images)
{
    if (!pickle_is(array, PICKLE_OBJECT) || array->global->tag != NUMPY_RECONSTRUCT)
        return NULL;
    const pickle_value *shape = pickle_item(array->state, 1), *type = pickle_item(array->state, 2);
    const pickle_value *order = pickle_item(array->state, 3), *bytes = pickle_item(array->state, 4);
    const pickle_value *rows = pickle_item(shape, 0), *columns = pickle_item(shape, 1);
    const pickle_value *kind = pickle_is(type, PICKLE_OBJECT) ? pickle_item(type->arguments, 0) : NULL;
    bool of_bytes = pickle_is(kind, PICKLE_TEXT) && strcmp(kind->bytes, "u1") == 0;
    bool by_rows = order != NULL && (order->kind == PICKLE_BOOL || order->kind == PICKLE_INT) && order->integer == 0;
    if (!of_bytes || !by_rows || !pickle_is(rows, PICKLE_INT) || !pickle_is(columns, PICKLE_INT) ||
        columns->integer != PIXELS || rows->integer < 1 ||
        (!pickle_is(bytes, PICKLE_BYTES) && !pickle_is(bytes, PICKLE_TEXT)) ||
        bytes->n_bytes != (uint64_t)rows->integer * PIXELS)
        return NULL;
    *n_images = rows->integer;
    return bytes;
}

static fsdp_status append_values(const char *path, const layout *l, const pickle_value *dict, image_set *set,
                                 int64_t *capacity)
{
    int64_t n = 0;
    const pickle_value *bytes = array_bytes(find_key(dict, "data"), &n), *labels = find_key(dict, l->labels);
    if (bytes == NULL || !pickle_is(labels, PICKLE_LIST) || labels->n_items != (size_t)n)
        return error_set(FSDP_ERR_INPUT,
                         "%s: not a %s pickle: \"data\" must be an array of bytes, images x %d, and \"%s\" as many "
                         "labels",
                         path, l->name, PIXELS, l->labels);
    FSDP_TRY(grow(set, capacity, n, path));
    for (int64_t i = 0; i < n; i++) {
        const pickle_value *label = labels->items[i];
        FSDP_TRY(check_label(path, l, i, pickle_is(label, PICKLE_INT) ? label->integer : -1));
        set->labels[set->n_images + i] = (uint8_t)label->integer;
    }
    memcpy(set->pixels + set->n_images * PIXELS, bytes->bytes, bytes->n_bytes);
    set->n_images += n;
    return FSDP_OK;
}

static fsdp_status append_pickle(const char *path, const layout *l, image_set *set, int64_t *capacity)
{
    char *data = NULL;
    size_t bytes = 0;
    arena *memory = NULL;
    pickle_value *dict = NULL;
    fsdp_status status;
    TRY_OR(done, arena_create(0, &memory));
    TRY_OR(done, file_read_at_most(path, largest_pickle, &data, &bytes));
    TRY_OR(done, pickle_read(path, data, bytes, numpy_globals, memory, &dict, NULL));
    TRY_OR(done, append_values(path, l, dict, set, capacity));
done:
    free(data);
    arena_free(memory);
    return status;
}

/* --- folders ----------------------------------------------------------------------------------------------------- */

static fsdp_status read_files(const char *folder, const layout *l, bool training, image_set *out)
{
    int64_t capacity = 0;
    bool gap = false;
    for (int i = 1; i <= (training ? MAX_BATCHES : 1); i++) {
        char *path = find_file(folder, l, training, i);
        fsdp_status status = FSDP_OK;
        if (path != NULL && gap)
            status = error_set(FSDP_ERR_INPUT, "%s: is there, but not the batch before it", path);
        else if (path != NULL)
            status =
                l->labels != NULL ? append_pickle(path, l, out, &capacity) : append_binary(path, l, out, &capacity);
        gap = gap || path == NULL;
        free(path);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status cifar_read_folder(const char *folder, bool training, image_set *out)
{
    const layout *l = find_layout(folder, training);
    if (l == NULL)
        return error_set(FSDP_ERR_INPUT, "%s: has no CIFAR batches for %s", folder, training ? "training" : "test");
    *out = (image_set){.channels = CHANNELS, .height = SIDE, .width = SIDE, .n_classes = l->n_classes};
    fsdp_status status = read_files(folder, l, training, out);
    if (status != FSDP_OK)
        image_set_free(out);
    return status;
}
