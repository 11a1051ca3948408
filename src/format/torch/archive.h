/* The archives that torch.load opens: a pickle, the storages that it names, and two small records. */
#ifndef FORMAT_TORCH_ARCHIVE_H
#define FORMAT_TORCH_ARCHIVE_H

#include "format/torch/pickle_writer.h"
#include "format/torch/zip_writer.h"

/* Begins an archive at byte `begin` of the file, with a finished pickle. The caller ends it by finish, or frees it. */
fsdp_status archive_begin(file_writer *file, uint64_t begin, const pickle_writer *pickle, zip_writer **out);
/* The storage that the pickle calls by the number `key`; its bytes follow by zip_writer_write. */
fsdp_status archive_storage(zip_writer *zip, size_t key, uint64_t bytes);
/* Frees `zip`, also on failure. *end: the byte of the file after the archive. */
fsdp_status archive_finish(zip_writer *zip, uint64_t *end);

#endif
