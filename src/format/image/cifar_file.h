/* CIFAR-10 and CIFAR-100 as their authors and torchvision lay them out: binary batches and Python's pickles. */
#ifndef FORMAT_IMAGE_CIFAR_FILE_H
#define FORMAT_IMAGE_CIFAR_FILE_H

#include "format/image/image_file.h"

/* Whether the folder has the training, or the test, part in some layout. */
bool cifar_folder_has(const char *folder, bool training);
/* That part; the fine labels of CIFAR-100. */
fsdp_status cifar_read_folder(const char *folder, bool training, image_set *out);

#endif
