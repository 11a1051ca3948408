/* The table behind fsdp_settings, for the files of src/train/settings*.c; everybody else calls fsdp_settings_flags. */
#ifndef TRAIN_SETTINGS_TABLE_H
#define TRAIN_SETTINGS_TABLE_H

#include <fsdp/flags.h>

/* A row for every field of fsdp_settings that can be set; ends with a row without a name. */
extern const fsdp_flag settings_table[];

#endif
