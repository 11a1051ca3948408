/* Parquet: the footer says where the pages of each column lie, and pages hold values one after another, plain or as
 * numbers in a dictionary. Text at the top level is read, required or optional; row groups and pages one at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/table/runs.h"
#include "format/table/table_reader.h"
#include "format/table/thrift.h"

enum { BYTE_ARRAY = 6, REQUIRED = 0, OPTIONAL = 1, REPEATED = 2 };
enum { DEEPEST_SCHEMA = 64 };
enum { LIST_DEPTH = 3 }; /* of a text in a list's records: messages.list.element.role */
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE_DICTIONARY = 8 };
enum { DATA_PAGE = 0, INDEX_PAGE = 1, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };
enum { FIRST_HEADER_BYTES = 256, MAX_HEADER_BYTES = 1 << 20, FOOTER_BYTES = 8 };
static const int64_t most_footer_bytes = (int64_t)256 << 20;

/* A column of a row group, as the footer says. */
typedef struct column_chunk {
    int64_t begin, end; /* in the file */
    int64_t n_values;
    int codec;
} column_chunk;

typedef struct row_group {
    int64_t n_rows;
    column_chunk chunks[TABLE_MAX_COLUMNS];
} row_group;

typedef struct column_reader {
    int64_t at, end;     /* the next page, and where the chunk ends */
    int64_t values_left; /* of the chunk, in pages that were not begun */
    int64_t page_left;   /* values of the page */
    table_codec codec;
    int most_level; /* of a value that is there; 0: all are */
    bool has_dictionary, in_dictionary;
    run_reader levels, repetitions, indices;
    const uint8_t *plain, *plain_end;
    table_buffer packed, page, dictionary;
    table_text *entries; /* of the dictionary */
    size_t n_entries;
} column_reader;

typedef struct parquet {
    table_file base;
    bool lists;                  /* columns are texts in the records of one */
    int leaf[TABLE_MAX_COLUMNS]; /* which column of a row group each is */
    row_group *groups;
    size_t n_groups, group; /* `group` is the next one to be begun */
    int64_t rows_left;      /* of the one that is read */
    column_reader columns[TABLE_MAX_COLUMNS];
} parquet;

static fsdp_status damaged(const parquet *p, const char *what)
{
    return error_set(FSDP_ERR_INPUT, "%s: %s: the Parquet file is damaged", p->base.in.path, what);
}

/* --- the footer -------------------------------------------------------------------------------------------------- */

typedef struct schema_element {
    int type, repetition, n_children;
    const char *name;
    size_t name_bytes;
} schema_element;

static schema_element read_element(thrift *t)
{
    schema_element e = {.type = -1, .repetition = REQUIRED, .name = ""};
    thrift_field f = {0, THRIFT_STOP};
    while (thrift_next(t, &f)) {
        if (f.id == 1)
            e.type = (int)thrift_int(t, f.type);
        else if (f.id == 3)
            e.repetition = (int)thrift_int(t, f.type);
        else if (f.id == 4)
            e.name = thrift_binary(t, f.type, &e.name_bytes);
        else if (f.id == 5)
            e.n_children = (int)thrift_int(t, f.type);
        else
            thrift_skip(t, f.type);
    }
    return e;
}

static fsdp_status check_column(const parquet *p, const schema_element *e, const char *name)
{
    static const char *const types[] = {"truth values", "int32",  "int64", "int96",
                                        "float",        "double", "text",  "bytes of fixed length"};
    if (e->n_children > 0 || e->repetition > OPTIONAL)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: column \"%s\" holds lists or records, not text: convert it to JSONL", p->base.in.path,
                         name);
    if (e->type != BYTE_ARRAY)
        return error_set(FSDP_ERR_INPUT, "%s: column \"%s\" holds %s, not text", p->base.in.path, name,
                         e->type >= 0 && e->type < 8 ? types[e->type] : "values of an unknown type");
    return FSDP_OK;
}

static fsdp_status refuse_column(const parquet *p, const char *name, const char *names)
{
    return error_set(FSDP_ERR_INPUT, "%s: there is no column \"%s\"; it has %s: name one with --source_field",
                     p->base.in.path, name, names);
}

/* Where a walk through the schema is. */
typedef struct schema_walk {
    int depth;                        /* 0: at the top level */
    int64_t left[DEEPEST_SCHEMA];     /* elements to come at each depth, above this one */
    int level[DEEPEST_SCHEMA + 1];    /* optional and repeated ones on the way, by depth */
    int repeated[DEEPEST_SCHEMA + 1]; /* repeated ones */
    bool in_list;                     /* below the list that is wanted */
} schema_walk;

/* Goes down into `e`, or on to what follows it; false: the schema makes no sense. */
static bool walk_on(schema_walk *w, const schema_element *e)
{
    if (e->n_children < 0 || (e->n_children > 0 && w->depth == DEEPEST_SCHEMA))
        return false;
    if (e->n_children > 0) {
        w->left[w->depth++] = e->n_children;
        return true;
    }
    while (w->depth > 0 && --w->left[w->depth - 1] == 0)
        w->depth--;
    return true;
}

static bool is_named(const schema_element *e, const char *name, size_t bytes)
{
    return e->name_bytes == bytes && memcmp(e->name, name, bytes) == 0;
}

/* An element below the list that is wanted: what its records have beside the columns would be lost. */
static fsdp_status take_from_list(parquet *p, const schema_walk *w, const schema_element *e, const char *const *columns,
                                  int leaf)
{
    size_t list = (size_t)(strstr(columns[0], TABLE_LIST) - columns[0]), before = list + strlen(TABLE_LIST);
    if (w->depth < LIST_DEPTH && e->n_children == 1 + (w->depth == LIST_DEPTH - 1) * (p->base.n_columns - 1))
        return FSDP_OK;
    for (int c = 0; c < p->base.n_columns && w->depth == LIST_DEPTH && w->repeated[w->depth] == 1; c++) {
        if (!is_named(e, columns[c] + before, strlen(columns[c]) - before))
            continue;
        p->leaf[c] = leaf;
        p->columns[c].most_level = w->level[w->depth];
        return check_column(p, e, columns[c]);
    }
    return error_set(
        FSDP_ERR_UNSUPPORTED,
        "%s: column \"%.*s\" is no list of records with role and content alone (there is \"%.*s\"): convert "
        "it to JSONL",
        p->base.in.path, (int)list, columns[0], (int)(e->name_bytes < 100 ? e->name_bytes : 100), e->name);
}

static fsdp_status take_from_top(parquet *p, const schema_element *e, const char *const *columns, int leaf)
{
    for (int c = 0; c < p->base.n_columns && !p->lists; c++) {
        if (!is_named(e, columns[c], strlen(columns[c])))
            continue;
        FSDP_TRY(check_column(p, e, columns[c]));
        p->leaf[c] = leaf;
        p->columns[c].most_level = e->repetition == OPTIONAL;
    }
    return FSDP_OK;
}

/* Finds the wanted columns among those at the top level, or in one list there, and which leaf each is. */
static fsdp_status read_schema(parquet *p, thrift *t, thrift_type type, const char *const *columns)
{
    thrift_type element;
    schema_walk w = {0};
    char names[256] = "";
    size_t n = thrift_list(t, type, &element);
    schema_element root = n > 0 ? read_element(t) : (schema_element){0};
    int leaf = 0;
    for (size_t i = 1; i < n && !t->failed; i++) {
        schema_element e = read_element(t);
        size_t used = strlen(names);
        bool top = w.depth == 0;
        w.level[w.depth] = (top ? 0 : w.level[w.depth - 1]) + (e.repetition != REQUIRED);
        w.repeated[w.depth] = (top ? 0 : w.repeated[w.depth - 1]) + (e.repetition == REPEATED);
        if (top)
            w.in_list = p->lists && e.n_children > 0 && is_named(&e, columns[0], strcspn(columns[0], "["));
        FSDP_TRY(top ? take_from_top(p, &e, columns, leaf) : FSDP_OK);
        if (w.in_list && !top)
            FSDP_TRY(take_from_list(p, &w, &e, columns, leaf));
        if (top && used + e.name_bytes + 3 < sizeof names)
            snprintf(names + used, sizeof names - used, "%s%.*s", used ? ", " : "", (int)e.name_bytes, e.name);
        leaf += e.n_children == 0;
        if (!walk_on(&w, &e))
            return damaged(p, "the schema makes no sense");
    }
    if (t->failed || w.depth != 0 || root.n_children < 1)
        return damaged(p, "the schema makes no sense");
    for (int c = 0; c < p->base.n_columns; c++)
        if (p->leaf[c] < 0)
            return refuse_column(p, columns[c], names);
    return FSDP_OK;
}

static column_chunk read_chunk_data(thrift *t)
{
    column_chunk c = {.codec = -1};
    int64_t data = -1, dictionary = -1, bytes = -1;
    thrift_field f = {0, THRIFT_STOP};
    while (thrift_next(t, &f)) {
        if (f.id == 4)
            c.codec = (int)thrift_int(t, f.type);
        else if (f.id == 5)
            c.n_values = thrift_int(t, f.type);
        else if (f.id == 7)
            bytes = thrift_int(t, f.type);
        else if (f.id == 9)
            data = thrift_int(t, f.type);
        else if (f.id == 11)
            dictionary = thrift_int(t, f.type);
        else
            thrift_skip(t, f.type);
    }
    c.begin = dictionary > 0 && dictionary < data ? dictionary : data;
    c.end = c.begin < 0 || bytes < 0 || bytes > INT64_MAX - c.begin ? -1 : c.begin + bytes;
    return c;
}

static column_chunk read_chunk(thrift *t)
{
    column_chunk c = {.end = -1};
    thrift_field f = {0, THRIFT_STOP};
    while (thrift_next(t, &f)) {
        if (f.id == 3 && f.type == THRIFT_STRUCT)
            c = read_chunk_data(t);
        else
            thrift_skip(t, f.type);
    }
    return c;
}

static fsdp_status check_chunk(const parquet *p, const column_chunk *c, const row_group *g)
{
    static const char *const names[] = {NULL, NULL, NULL, "LZO", "Brotli", "LZ4", NULL, "LZ4"};
    if (c->codec >= 0 && c->codec < 8 && names[c->codec])
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: is compressed with %s, which is not read: write it again with snappy, gzip or zstd",
                         p->base.in.path, names[c->codec]);
    bool outside = c->begin < 4 || c->end < c->begin || c->end > p->base.in.bytes;
    int64_t n = p->lists ? g->chunks[0].n_values : g->n_rows;
    if (c->codec < 0 || c->codec > 7 || c->n_values != n || n < g->n_rows || (outside && n > 0))
        return damaged(p, "a column lies outside the file or has another number of values than rows");
    return FSDP_OK;
}

static fsdp_status read_group(parquet *p, thrift *t, row_group *g)
{
    thrift_field f = {0, THRIFT_STOP};
    thrift_type element;
    bool seen[TABLE_MAX_COLUMNS] = {false};
    while (thrift_next(t, &f)) {
        if (f.id == 3) {
            g->n_rows = thrift_int(t, f.type);
        } else if (f.id == 1) {
            size_t n = thrift_list(t, f.type, &element);
            for (size_t i = 0; i < n && !t->failed; i++) {
                column_chunk chunk = read_chunk(t);
                for (int c = 0; c < p->base.n_columns; c++)
                    if ((size_t)p->leaf[c] == i) {
                        g->chunks[c] = chunk;
                        seen[c] = true;
                    }
            }
        } else {
            thrift_skip(t, f.type);
        }
    }
    for (int c = 0; c < p->base.n_columns && !t->failed; c++) {
        if (!seen[c] || g->n_rows < 0)
            return damaged(p, "a row group lacks a column");
        FSDP_TRY(check_chunk(p, &g->chunks[c], g));
    }
    return t->failed ? damaged(p, "a row group makes no sense") : FSDP_OK;
}

static fsdp_status read_metadata(parquet *p, thrift *t, const char *const *columns)
{
    thrift_field f = {0, THRIFT_STOP};
    thrift_type element;
    bool schema = false;
    while (thrift_next(t, &f)) {
        if (f.id == 2) {
            FSDP_TRY(read_schema(p, t, f.type, columns));
            schema = true;
        } else if (f.id == 4 && schema && p->groups == NULL) {
            size_t n = thrift_list(t, f.type, &element);
            p->groups = calloc(n + 1, sizeof *p->groups);
            if (p->groups == NULL)
                return error_set(FSDP_ERR_MEMORY, "%s: out of memory", p->base.in.path);
            for (; p->n_groups < n && !t->failed; p->n_groups++)
                FSDP_TRY(read_group(p, t, &p->groups[p->n_groups]));
        } else {
            thrift_skip(t, f.type);
        }
    }
    return t->failed || !schema || p->groups == NULL ? damaged(p, "its footer cannot be read") : FSDP_OK;
}

static fsdp_status read_footer(parquet *p, const char *const *columns)
{
    uint8_t tail[FOOTER_BYTES];
    table_buffer footer = {0};
    const table_input *in = &p->base.in;
    FSDP_TRY(table_input_read(in, in->bytes - FOOTER_BYTES, tail, sizeof tail, "the end of the footer"));
    int64_t bytes = read_u32(tail);
    if (memcmp(tail + 4, "PARE", 4) == 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: is an encrypted Parquet file: decrypt it first", in->path);
    if (memcmp(tail + 4, "PAR1", 4) != 0 || bytes > in->bytes - FOOTER_BYTES - 4 || bytes > most_footer_bytes)
        return error_set(FSDP_ERR_INPUT, "%s: the Parquet file has no footer: truncated, or still being written?",
                         in->path);
    fsdp_status status = table_buffer_resize(in, &footer, bytes, "a footer");
    if (status == FSDP_OK)
        status = table_input_read(in, in->bytes - FOOTER_BYTES - bytes, footer.data, footer.bytes, "the footer");
    if (status == FSDP_OK) {
        thrift t = {.at = footer.data, .end = footer.data + footer.bytes};
        status = read_metadata(p, &t, columns);
    }
    free(footer.data);
    return status;
}

/* --- pages ------------------------------------------------------------------------------------------------------- */

typedef struct page_header {
    int type;
    int64_t bytes, packed_bytes;
    int64_t n_values;
    int encoding;
    int64_t level_bytes, repetition_bytes; /* version 2 */
    bool packed;
    size_t header_bytes;
} page_header;

static void read_page_details(thrift *t, int kind, page_header *h)
{
    thrift_field f = {0, THRIFT_STOP};
    bool v2 = kind == DATA_PAGE_V2;
    while (thrift_next(t, &f)) {
        if (f.id == 1)
            h->n_values = thrift_int(t, f.type);
        else if (f.id == (v2 ? 4 : 2))
            h->encoding = (int)thrift_int(t, f.type);
        else if (v2 && f.id == 5)
            h->level_bytes = thrift_int(t, f.type);
        else if (v2 && f.id == 6)
            h->repetition_bytes = thrift_int(t, f.type);
        else if (v2 && f.id == 7)
            h->packed = thrift_bool(t, f.type);
        else
            thrift_skip(t, f.type);
    }
}

static bool parse_page_header(const uint8_t *data, size_t bytes, page_header *h)
{
    thrift t = {.at = data, .end = data + bytes};
    thrift_field f = {0, THRIFT_STOP};
    *h = (page_header){.type = -1, .bytes = -1, .packed_bytes = -1, .n_values = -1, .encoding = -1, .packed = true};
    while (thrift_next(&t, &f)) {
        if (f.id == 1)
            h->type = (int)thrift_int(&t, f.type);
        else if (f.id == 2)
            h->bytes = thrift_int(&t, f.type);
        else if (f.id == 3)
            h->packed_bytes = thrift_int(&t, f.type);
        else if ((f.id == 5 || f.id == 7 || f.id == 8) && f.type == THRIFT_STRUCT)
            read_page_details(&t, f.id == 8 ? DATA_PAGE_V2 : DATA_PAGE, h);
        else
            thrift_skip(&t, f.type);
    }
    h->header_bytes = (size_t)(t.at - data);
    return !t.failed;
}

/* The header has no length of its own: more is read until it is whole. Statistics can make it long. */
static fsdp_status read_page_header(const parquet *p, column_reader *c, page_header *h)
{
    for (int64_t bytes = FIRST_HEADER_BYTES; bytes <= MAX_HEADER_BYTES; bytes *= 4) {
        int64_t have = c->end - c->at < bytes ? c->end - c->at : bytes;
        FSDP_TRY(table_buffer_resize(&p->base.in, &c->packed, have, "the header of a page"));
        FSDP_TRY(table_input_read(&p->base.in, c->at, c->packed.data, c->packed.bytes, "the header of a page"));
        if (parse_page_header(c->packed.data, c->packed.bytes, h))
            return FSDP_OK;
        if (have < bytes)
            break;
    }
    return damaged(p, "the header of a page cannot be read");
}

/* The page's bytes, unpacked into c->page or `out`. Levels of version 2 are never packed. */
static fsdp_status read_page_body(const parquet *p, column_reader *c, const page_header *h, table_buffer *out)
{
    bool fits = h->level_bytes >= 0 && h->level_bytes <= INT32_MAX && h->repetition_bytes >= 0 &&
                h->repetition_bytes <= (p->lists ? INT32_MAX : 0);
    int64_t levels = h->type == DATA_PAGE_V2 && fits ? h->level_bytes + h->repetition_bytes : 0;
    if (!fits || h->packed_bytes < levels || h->bytes < levels ||
        h->packed_bytes > c->end - c->at - (int64_t)h->header_bytes)
        return damaged(p, "a page lies outside its column");
    FSDP_TRY(table_buffer_resize(&p->base.in, &c->packed, h->packed_bytes, "a page"));
    FSDP_TRY(table_buffer_resize(&p->base.in, out, h->bytes, "a page"));
    FSDP_TRY(
        table_input_read(&p->base.in, c->at + (int64_t)h->header_bytes, c->packed.data, c->packed.bytes, "a page"));
    memcpy(out->data, c->packed.data, (size_t)levels);
    table_buffer rest = {.data = out->data + levels, .bytes = (size_t)(h->bytes - levels)};
    table_codec codec = h->packed ? c->codec : TABLE_PLAIN;
    if (rest.bytes == 0 && h->packed_bytes == levels)
        return FSDP_OK;
    return table_unpack(&p->base.in, codec, c->packed.data + levels, (size_t)(h->packed_bytes - levels), &rest);
}

static bool next_plain(const uint8_t **at, const uint8_t *end, table_text *out)
{
    if (end - *at < 4)
        return false;
    uint32_t bytes = read_u32(*at);
    if (bytes > (size_t)(end - *at) - 4)
        return false;
    *out = (table_text){.text = (const char *)*at + 4, .bytes = bytes};
    *at += 4 + (size_t)bytes;
    return true;
}

static fsdp_status read_dictionary(const parquet *p, column_reader *c, const page_header *h)
{
    if (c->has_dictionary || h->n_values < 0 || (h->encoding != PLAIN && h->encoding != PLAIN_DICTIONARY))
        return damaged(p, "a dictionary makes no sense");
    FSDP_TRY(read_page_body(p, c, h, &c->dictionary));
    const uint8_t *at = c->dictionary.data, *end = at + c->dictionary.bytes;
    if (h->n_values > (int64_t)(c->dictionary.bytes / 4)) /* every entry has a length */
        return damaged(p, "a dictionary is too short");
    free(c->entries);
    c->n_entries = (size_t)h->n_values;
    c->entries = malloc((c->n_entries + 1) * sizeof *c->entries);
    if (c->entries == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a dictionary", p->base.in.path);
    for (size_t i = 0; i < c->n_entries; i++)
        if (!next_plain(&at, end, &c->entries[i]))
            return damaged(p, "a dictionary is too short");
    c->has_dictionary = true;
    return FSDP_OK;
}

static fsdp_status refuse_encoding(const parquet *p, int encoding)
{
    static const char *const names[] = {NULL,
                                        NULL,
                                        NULL,
                                        "RLE",
                                        "BIT_PACKED",
                                        "DELTA_BINARY_PACKED",
                                        "DELTA_LENGTH_BYTE_ARRAY",
                                        "DELTA_BYTE_ARRAY",
                                        NULL,
                                        "BYTE_STREAM_SPLIT"};
    return error_set(FSDP_ERR_UNSUPPORTED,
                     "%s: text is encoded as %s, which is not read: write it again with plain or dictionary encoding",
                     p->base.in.path,
                     encoding >= 0 && encoding < 10 && names[encoding] ? names[encoding] : "something unknown");
}

/* `bytes` of levels, of so many bits each; -1: how many stands in front of them. */
static bool take_levels(const uint8_t **at, const uint8_t *end, int64_t bytes, int width, run_reader *out)
{
    if (bytes < 0) {
        if (end - *at < 4)
            return false;
        bytes = read_u32(*at);
        *at += 4;
    }
    if (bytes > end - *at)
        return false;
    *out = runs_over(*at, *at + bytes, width);
    *at += bytes;
    return true;
}

static fsdp_status begin_data_page(const parquet *p, column_reader *c, const page_header *h)
{
    if (h->n_values < 0 || h->n_values > c->values_left)
        return damaged(p, "a page has more values than its column");
    if (h->encoding != PLAIN && h->encoding != PLAIN_DICTIONARY && h->encoding != RLE_DICTIONARY)
        return refuse_encoding(p, h->encoding);
    FSDP_TRY(read_page_body(p, c, h, &c->page));
    const uint8_t *at = c->page.data, *end = at + c->page.bytes;
    bool v2 = h->type == DATA_PAGE_V2;
    if (!take_levels(&at, end,
                     v2         ? h->repetition_bytes
                     : p->lists ? -1
                                : 0,
                     1, &c->repetitions) ||
        !take_levels(&at, end,
                     v2                  ? h->level_bytes
                     : c->most_level > 0 ? -1
                                         : 0,
                     c->most_level > 1 ? c->most_level > 3 ? 3 : 2 : 1, &c->levels))
        return damaged(p, "the levels of a page are too long");
    c->in_dictionary = h->encoding != PLAIN;
    c->plain = at;
    c->plain_end = end;
    if (c->in_dictionary && h->n_values > 0) {
        bool none = at == end; /* a page of nulls may have no indices */
        int width = none ? 0 : *at;
        if (!c->has_dictionary || width > 32)
            return damaged(p, "a page uses a dictionary that is not there");
        c->indices = runs_over(at + !none, end, width);
    }
    c->values_left -= h->n_values;
    c->page_left = h->n_values;
    return FSDP_OK;
}

static fsdp_status begin_page(const parquet *p, column_reader *c)
{
    page_header h;
    FSDP_TRY(read_page_header(p, c, &h));
    fsdp_status status = FSDP_OK;
    if (h.type == DICTIONARY_PAGE)
        status = read_dictionary(p, c, &h);
    else if (h.type == DATA_PAGE || h.type == DATA_PAGE_V2)
        status = begin_data_page(p, c, &h);
    else if (h.type != INDEX_PAGE || h.packed_bytes < 0 || h.packed_bytes > c->end - c->at)
        status = damaged(p, "a page is of an unknown kind");
    c->at += (int64_t)h.header_bytes + h.packed_bytes;
    return status;
}

static fsdp_status next_value(const parquet *p, column_reader *c, table_text *out)
{
    while (c->page_left == 0) {
        if (c->at >= c->end)
            return damaged(p, "a column ends before its values do");
        FSDP_TRY(begin_page(p, c));
    }
    c->page_left--;
    bool there = c->most_level == 0 || runs_next(&c->levels) == (uint32_t)c->most_level;
    bool continues = p->lists && runs_next(&c->repetitions) > 0;
    *out = (table_text){.continues = continues};
    if (c->levels.failed || c->repetitions.failed)
        return damaged(p, "the levels of a page end too early");
    if (!there)
        return FSDP_OK;
    if (!c->in_dictionary) {
        bool whole = next_plain(&c->plain, c->plain_end, out);
        out->continues = continues;
        return whole ? FSDP_OK : damaged(p, "a page ends before its values do");
    }
    uint32_t index = c->indices.width == 0 ? 0 : runs_next(&c->indices);
    if (c->indices.failed || index >= c->n_entries)
        return damaged(p, "a value is not in the dictionary");
    *out = c->entries[index];
    out->continues = continues;
    return FSDP_OK;
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

static void begin_group(parquet *p)
{
    static const table_codec codecs[] = {[0] = TABLE_PLAIN, [1] = TABLE_SNAPPY, [2] = TABLE_GZIP, [6] = TABLE_ZSTD};
    const row_group *g = &p->groups[p->group++];
    p->rows_left = p->lists ? g->chunks[0].n_values : g->n_rows;
    for (int i = 0; i < p->base.n_columns; i++) {
        column_reader *c = &p->columns[i];
        c->at = g->chunks[i].begin;
        c->end = g->chunks[i].end;
        c->values_left = g->chunks[i].n_values;
        c->page_left = 0;
        c->codec = codecs[g->chunks[i].codec];
        c->has_dictionary = false;
    }
}

static fsdp_status parquet_next(table_file *t, table_text *values, bool *more)
{
    parquet *p = (parquet *)t;
    while (p->rows_left == 0 && p->group < p->n_groups)
        begin_group(p);
    *more = p->rows_left > 0;
    for (int i = 0; i < t->n_columns && *more; i++) {
        FSDP_TRY(next_value(p, &p->columns[i], &values[i]));
        if (values[i].continues != values[0].continues)
            return damaged(p, "the columns of a list do not go together");
    }
    p->rows_left -= *more;
    return FSDP_OK;
}

static fsdp_status parquet_seek(table_file *t, int64_t row)
{
    parquet *p = (parquet *)t;
    table_text passed[TABLE_MAX_COLUMNS];
    bool more = true;
    if (p->lists)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: a table of lists is read from its beginning", t->in.path);
    p->group = 0;
    p->rows_left = 0;
    while (p->group < p->n_groups && p->groups[p->group].n_rows <= row)
        row -= p->groups[p->group++].n_rows;
    for (; row > 0 && more; row--)
        FSDP_TRY(parquet_next(t, passed, &more));
    return FSDP_OK;
}

static void parquet_close(table_file *t)
{
    parquet *p = (parquet *)t;
    for (int i = 0; i < TABLE_MAX_COLUMNS; i++) {
        free(p->columns[i].packed.data);
        free(p->columns[i].page.data);
        free(p->columns[i].dictionary.data);
        free(p->columns[i].entries);
    }
    free(p->groups);
    free(p);
}

static const table_kind parquet_kind = {parquet_next, parquet_seek, parquet_close};

fsdp_status parquet_open(table_input in, const char *const *columns, int n_columns, table_file **out)
{
    parquet *p = calloc(1, sizeof *p);
    if (p == NULL) {
        fsdp_status status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", in.path);
        table_input_close(&in);
        return status;
    }
    p->base = (table_file){&parquet_kind, in, n_columns};
    p->lists = strstr(columns[0], TABLE_LIST) != NULL;
    for (int i = 0; i < TABLE_MAX_COLUMNS; i++)
        p->leaf[i] = -1;
    fsdp_status status = read_footer(p, columns);
    if (status != FSDP_OK) {
        table_close(&p->base);
        return status;
    }
    *out = &p->base;
    return FSDP_OK;
}
