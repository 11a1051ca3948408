/* What file.c and file_writer.c share; other files include base/file.h. */
#ifndef BASE_FILE_WRITER_H
#define BASE_FILE_WRITER_H

#include <fsdp/status.h>

/* FSDP_ERR_INPUT for an errno that a wrong path causes, FSDP_ERR_IO otherwise. */
fsdp_status file_error_kind(int number);

#endif
