/* Labelled images of the classic data sets: IDX files (the MNIST family, plain or .gz) and CIFAR-10 binary batches.
 * Pixels stay bytes; scaling them and choosing samples is the data layer's.
 *
 * IDX: big endian; 0, 0, type 8 (bytes), number of dimensions, each dimension as u32, the bytes. Images have three
 * dimensions (count, height, width), labels one. CIFAR-10: records of one label byte and 3 x 32 x 32 pixels. */
#ifndef FORMAT_IMAGE_FILE_H
#define FORMAT_IMAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct image_set {
    int64_t n_images;
    int channels, height, width;
    int n_classes;   /* one more than the largest label; 10 for CIFAR-10 */
    uint8_t *pixels; /* (n_images, channels, height, width) */
    uint8_t *labels; /* (n_images) */
} image_set;

/* Each fills *out, whose memory the caller gives up by image_set_free; on failure *out is empty. */
fsdp_status image_set_read_idx(const char *images_path, const char *labels_path, image_set *out);
fsdp_status image_set_read_cifar10(const char *const *paths, size_t n_paths, image_set *out);
/* A folder with either data set under its usual file names: the training part, or the test part. */
bool image_folder_has(const char *folder, bool training);
fsdp_status image_set_read_folder(const char *folder, bool training, image_set *out);
void image_set_free(image_set *set); /* legal on a zeroed set */

#endif
