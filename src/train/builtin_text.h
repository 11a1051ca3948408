/* The text that is built in, as a file. */
#ifndef TRAIN_BUILTIN_TEXT_H
#define TRAIN_BUILTIN_TEXT_H

#include <fsdp/status.h>

enum { BUILTIN_TEXT_PATH = 32 };

/* Makes a file in memory that `path` names as long as *fd is open. The caller closes *fd. */
fsdp_status builtin_text_open(int *fd, char path[BUILTIN_TEXT_PATH]);

#endif
