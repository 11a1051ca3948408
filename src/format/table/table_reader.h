/* What the two kinds of table share: a file that is read at any place, buffers that keep their memory, and the codecs
 * that pages and buffers are packed with. */
#ifndef FORMAT_TABLE_TABLE_READER_H
#define FORMAT_TABLE_TABLE_READER_H

#include "format/table/table_file.h"

typedef struct table_input {
    char *path;
    int fd;
    int64_t bytes;
} table_input;

/* Exactly `bytes` at `offset`, or an error that says what is missing. */
fsdp_status table_input_read(const table_input *in, int64_t offset, void *out, size_t bytes, const char *what);

typedef struct table_buffer {
    uint8_t *data;
    size_t bytes, capacity;
} table_buffer;

/* Makes it `bytes` long; what it held is lost. More than 1 GiB is refused. */
fsdp_status table_buffer_resize(const table_input *in, table_buffer *b, int64_t bytes, const char *what);

typedef enum table_codec { TABLE_PLAIN, TABLE_SNAPPY, TABLE_GZIP, TABLE_ZSTD } table_codec;

/* Unpacks into out->data, which is as long as the result must be. */
fsdp_status table_unpack(const table_input *in, table_codec codec, const uint8_t *packed, size_t bytes,
                         table_buffer *out);

/* A kind's functions. */
typedef struct table_kind {
    fsdp_status (*next)(table_file *t, table_text *values, bool *more);
    fsdp_status (*seek)(table_file *t, int64_t row);
    void (*close)(table_file *t);
} table_kind;

/* The first member of every kind's own struct. Each opens what table_open has found to be its own; it takes `in`. */
struct table_file {
    const table_kind *kind;
    table_input in;
    int n_columns;
};
fsdp_status parquet_open(table_input in, const char *const *columns, int n_columns, table_file **out);
fsdp_status arrow_open(table_input in, const char *const *columns, int n_columns, table_file **out);
void table_input_close(table_input *in);

static inline uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline int64_t read_i64(const uint8_t *p)
{
    return (int64_t)((uint64_t)read_u32(p) | (uint64_t)read_u32(p + 4) << 32);
}

#endif
