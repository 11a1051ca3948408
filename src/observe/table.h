/* Tables of text: cells in columns, the first flush left, the others flush right. */
#ifndef OBSERVE_TABLE_H
#define OBSERVE_TABLE_H

#include <fsdp/status.h>

enum { TABLE_COLUMNS = 12 };

typedef struct table table;

/* `heads` are separated by bars: "rank|plan|measured". The caller frees *out. */
fsdp_status table_new(const char *heads, table **out);
void table_free(table *t); /* NULL is legal */
/* A row of cells separated by bars; formatted as printf does. Missing cells stay empty. */
fsdp_status table_row(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Lines joined by newlines, none at the end; malloc'd. Columns without a cell in any row are left out. */
fsdp_status table_text(const table *t, char **text);

#endif
