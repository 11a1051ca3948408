/* Lays out tables. Cells are bytes; what is shown here is ASCII. */
#include "observe/table.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { ROW_BYTES = 1024 };

typedef struct table_line {
    char *text; /* cells, each ended by a NUL */
    const char *cells[TABLE_COLUMNS];
    int n;
} table_line;

struct table {
    table_line *lines; /* the first holds the heads */
    int n, capacity;
};

static fsdp_status out_of_memory(void)
{
    return error_set(FSDP_ERR_MEMORY, "out of memory for a table");
}

static fsdp_status add_line(table *t, const char *text)
{
    if (t->n == t->capacity) {
        int capacity = 2 * t->capacity + 16;
        table_line *lines = realloc(t->lines, (size_t)capacity * sizeof *lines);
        if (!lines)
            return out_of_memory();
        t->lines = lines;
        t->capacity = capacity;
    }
    table_line *line = &t->lines[t->n];
    *line = (table_line){.text = strdup(text)};
    char *rest = line->text;
    if (!rest)
        return out_of_memory();
    for (char *cell; line->n < TABLE_COLUMNS && (cell = strsep(&rest, "|"));)
        line->cells[line->n++] = cell;
    t->n++;
    return FSDP_OK;
}

fsdp_status table_new(const char *heads, table **out)
{
    *out = NULL;
    table *t = calloc(1, sizeof *t);
    if (!t)
        return out_of_memory();
    fsdp_status status = add_line(t, heads);
    if (status == FSDP_OK)
        *out = t;
    else
        table_free(t);
    return status;
}

void table_free(table *t)
{
    for (int i = 0; t && i < t->n; i++)
        free(t->lines[i].text);
    if (t)
        free(t->lines);
    free(t);
}

fsdp_status table_row(table *t, const char *format, ...)
{
    char text[ROW_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return add_line(t, text);
}

static const char *cell(const table *t, int row, int column)
{
    return column < t->lines[row].n ? t->lines[row].cells[column] : "";
}

/* Columns of a terminal: continuation bytes take none, Korean and other wide letters take two. A code point of three
 * bytes is wide from U+1100 to U+115F and from U+2E80 to U+D7A3, which its first two bytes tell well enough. */
static size_t columns(const char *text)
{
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool jamo = c[0] == 0xE1 && (c[1] == 0x84 || c[1] == 0x85);
        bool wide = jamo || (c[0] == 0xE2 && c[1] >= 0xBA) || (c[0] >= 0xE3 && c[0] <= 0xED);
        n += (*c & 0xC0) == 0x80 ? 0 : wide ? 2 : 1;
    }
    return n;
}

/* 0 where no row but the heads has something. */
static size_t column_width(const table *t, int column)
{
    size_t width = 0;
    bool used = false;
    for (int i = 0; i < t->n; i++) {
        size_t length = columns(cell(t, i, column));
        used |= i > 0 && length;
        width = length > width ? length : width;
    }
    return used ? width : 0;
}

fsdp_status table_text(const table *t, char **text)
{
    size_t widths[TABLE_COLUMNS], line_bytes = 1, at = 0;
    for (int c = 0; c < TABLE_COLUMNS; c++) {
        widths[c] = column_width(t, c);
        line_bytes += 4 * widths[c] + 2; /* no column takes more than four bytes */
    }
    *text = malloc((size_t)t->n * line_bytes + 1);
    if (!*text)
        return out_of_memory();
    for (int i = 0; i < t->n; i++) {
        for (int c = 0; c < TABLE_COLUMNS; c++)
            if (widths[c]) {
                const char *value = cell(t, i, c);
                int bytes = (int)(widths[c] + strlen(value) - columns(value));
                at += (size_t)sprintf(*text + at, c ? "  %*s" : "%-*s", bytes, value);
            }
        while (at && (*text)[at - 1] == ' ')
            at--;
        (*text)[at++] = '\n';
    }
    (*text)[at - 1] = 0;
    return FSDP_OK;
}
