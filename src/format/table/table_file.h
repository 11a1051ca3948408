/* Rows of tables with columns of text: Parquet files, Arrow files and Arrow streams, as `datasets` writes them. Only
 * the columns that are asked for are read, a page or a batch at a time. What such a file may hold and this does not
 * read is refused by its name. Every number in a file is checked before it is used. */
#ifndef FORMAT_TABLE_TABLE_FILE_H
#define FORMAT_TABLE_TABLE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

enum { TABLE_MAX_COLUMNS = 4 };
#define TABLE_LIST "[]." /* between a list's name and that of a text in its records */

typedef struct table_file table_file;

/* A value; text NULL: there is none (null). It lives until the next call. Text may hold NULs. */
typedef struct table_text {
    const char *text;
    size_t bytes;
    bool continues; /* of a list: another element of the row before */
} table_text;

/* The columns are named, at the top level, and hold text. "messages[].role" is a text in each record of a list, in
 * Parquet alone: all columns are of one such list and cover its records, and every record is a row here; a list without
 * any is one row of nulls. The caller closes *out. */
fsdp_status table_open(const char *path, const char *const *columns, int n_columns, table_file **out);
void table_close(table_file *t); /* NULL is legal */

/* The next row's values, in the order of the columns; *more is false after the last. */
fsdp_status table_next(table_file *t, table_text *values, bool *more);
/* The next row will be `row`, counted from 0; the end if there are fewer. Not of lists. */
fsdp_status table_seek(table_file *t, int64_t row);

#endif
