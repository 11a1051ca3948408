/* Labelled images of the classic data sets: IDX files (the MNIST family, EMNIST's splits; plain or .gz), CIFAR-10 and
 * CIFAR-100 (cifar_file.h), pictures in a folder for each class (class_folders.h). Pixels stay bytes; scaling them and
 * choosing samples is the data layer's.
 *
 * IDX: big endian; 0, 0, type 8 (bytes), number of dimensions, each dimension as u32, the bytes. Images have three
 * dimensions (count, height, width), labels one. EMNIST's images lie transposed in its files, and stay so, as they do
 * in torchvision. */
#ifndef FORMAT_IMAGE_IMAGE_FILE_H
#define FORMAT_IMAGE_IMAGE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct image_set {
    int64_t n_images;
    int channels, height, width;
    int n_classes;   /* one more than the largest label, or as many as the set is known to have */
    uint8_t *pixels; /* (n_images, channels, height, width) */
    uint8_t *labels; /* (n_images) */
} image_set;

/* Each fills *out, whose memory the caller gives up by image_set_free; on failure *out is empty. */
fsdp_status image_set_read_idx(const char *images_path, const char *labels_path, image_set *out);
/* A folder with one of the data sets under its usual names: the training part, or the test part. `split` chooses among
 * those of EMNIST; may be NULL. */
bool image_folder_has(const char *folder, bool training);
fsdp_status image_set_read_folder(const char *folder, const char *split, bool training, image_set *out);
void image_set_free(image_set *set); /* legal on a zeroed set */

#endif
