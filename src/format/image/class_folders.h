/* Pictures in a folder for each class, as torchvision's ImageFolder has them: classes are the folders' names in order
 * of their bytes. Pictures are RGB, grey ones too, as there; all must have one size. A folder may have such folders
 * itself, or "train" beside "val" or "test". */
#ifndef FORMAT_IMAGE_CLASS_FOLDERS_H
#define FORMAT_IMAGE_CLASS_FOLDERS_H

#include "format/image/image_file.h"

bool class_folders_has(const char *folder, bool training);
fsdp_status class_folders_read(const char *folder, bool training, image_set *out);

#endif
