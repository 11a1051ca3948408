/* What a file is by its first bytes, where it is not text: tables, archives, other compressions, other encodings. Text
 * readers refuse such files by name and say what to do; without that they would be read as if they were text. */
#ifndef FORMAT_SIGNATURE_H
#define FORMAT_SIGNATURE_H

#include <stddef.h>

#include <fsdp/status.h>

enum { SIGNATURE_BYTES = 4096 }; /* as many first bytes are worth looking at */

/* FSDP_ERR_INPUT with the path, the kind and the remedy when the first `n` bytes of `path` are not those of UTF-8 text.
 */
fsdp_status signature_check_text(const char *path, const void *bytes, size_t n);

/* The same for the file itself, which need not be opened before. */
fsdp_status signature_check_file(const char *path);

#endif
