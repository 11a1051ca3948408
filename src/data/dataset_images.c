/* Labelled images: bytes in memory, scaled to 0..1 when they are read. */
#include <stdlib.h>

#include "base/error.h"
#include "data/dataset.h"
#include "format/image/image_file.h"

typedef struct images_source {
    dataset_source base;
    image_set set;
} images_source;

static fsdp_status images_read(const dataset_source *base, int64_t index, void *const *fields)
{
    const image_set *set = &((const images_source *)base)->set;
    int64_t numel = (int64_t)set->channels * set->height * set->width;
    const uint8_t *pixels = set->pixels + index * numel;
    float *values = fields[IMAGES_PIXELS];
    for (int64_t i = 0; i < numel; i++)
        values[i] = (float)pixels[i] / 255.0f;
    *(int32_t *)fields[IMAGES_CLASSES] = set->labels[index];
    return FSDP_OK;
}

static void images_free(dataset_source *base)
{
    image_set_free(&((images_source *)base)->set);
    free(base);
}

static const dataset_table images_table = {images_read, images_free};

/* Whether the training images are meant. Data that is named for validation is the test part where there is one. */
static bool wants_training(const char *folder, fsdp_dataset_part part)
{
    if (part == FSDP_PART_NAMED_VALIDATION)
        return !image_folder_has(folder, false);
    return part != FSDP_PART_VALIDATION;
}

fsdp_status dataset_images_open(const source_list *files, const fsdp_dataset_config *options, dataset_source **out)
{
    if (files->n_files != 1)
        return error_set(FSDP_ERR_INPUT, "%s and %s: images must lie in one folder", files->files[0].path,
                         files->files[1].path);
    images_source *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    const char *folder = files->files[0].path;
    fsdp_status status =
        image_set_read_folder(folder, options->config_name, wants_training(folder, options->part), &s->set);
    if (status == FSDP_OK && s->set.n_images == 0)
        status = error_set(FSDP_ERR_INPUT, "%s: there are no images", files->files[0].path);
    if (status != FSDP_OK) {
        images_free(&s->base);
        return status;
    }
    s->base.table = &images_table;
    s->base.info = (fsdp_dataset_info){.kind = FSDP_DATASET_IMAGES,
                                       .n_samples = s->set.n_images,
                                       .channels = s->set.channels,
                                       .height = s->set.height,
                                       .image_width = s->set.width,
                                       .n_classes = s->set.n_classes};
    *out = &s->base;
    return FSDP_OK;
}
