/* Names and order of the records, as torch.save has them. */
#include "format/torch/archive.h"

#include <stdio.h>

fsdp_status archive_begin(file_writer *file, uint64_t begin, const pickle_writer *pickle, zip_writer **out)
{
    FSDP_TRY(zip_writer_create(file, begin, out));
    fsdp_status status = zip_writer_add(*out, "archive/data.pkl", pickle->data, pickle->bytes);
    if (status == FSDP_OK)
        status = zip_writer_add(*out, "archive/byteorder", "little", 6);
    if (status != FSDP_OK) {
        zip_writer_free(*out);
        *out = NULL;
    }
    return status;
}

fsdp_status archive_storage(zip_writer *zip, size_t key, uint64_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "archive/data/%zu", key);
    return zip_writer_start(zip, name, bytes);
}

fsdp_status archive_finish(zip_writer *zip, uint64_t *end)
{
    fsdp_status status = zip_writer_add(zip, "archive/version", "3\n", 2);
    if (status == FSDP_OK)
        status = zip_writer_finish(zip, end);
    zip_writer_free(zip);
    return status;
}
