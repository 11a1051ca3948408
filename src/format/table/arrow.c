/* Arrow's IPC format: messages of a flatbuffer and a body each. The first is the schema, the others are batches of
 * rows; a file is such a stream between two magics. Of a batch only the buffers of the wanted columns are read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/table/table_reader.h"

enum { SCHEMA = 1, DICTIONARY_BATCH = 2, RECORD_BATCH = 3 };
enum { DEEPEST = 32, FILE_MAGIC_BYTES = 8 };
static const int64_t most_metadata = (int64_t)256 << 20;

/* Numbers of Arrow's types, with the buffers that a column of each has. */
enum { TYPE_BINARY = 4, TYPE_TEXT = 5, TYPE_UNION = 14, TYPE_LARGE_BINARY = 19, TYPE_LARGE_TEXT = 20, N_TYPES = 27 };
static const struct {
    const char *name;
    int n_buffers; /* -1: not known from the schema alone */
} types[N_TYPES] = {{"nothing", -1},       {"nulls", 0},          {"integers", 2},      {"numbers", 2},
                    {"bytes", 3},          {"text", 3},           {"truth values", 2},  {"decimals", 2},
                    {"dates", 2},          {"times", 2},          {"timestamps", 2},    {"intervals", 2},
                    {"lists", 2},          {"records", 1},        {"unions", -1},       {"bytes of fixed length", 2},
                    {"lists", 1},          {"maps", 2},           {"durations", 2},     {"bytes", 3},
                    {"text", 3},           {"lists", 2},          {"runs", 0},          {"views of bytes", -1},
                    {"views of text", -1}, {"views of lists", 3}, {"views of lists", 3}};

typedef struct arrow_column {
    int node, buffer; /* of the batch: its field node, its first buffer */
    bool large;       /* offsets of 64 bits */
    table_buffer validity, offsets, text;
    bool has_nulls;
} arrow_column;

typedef struct arrow {
    table_file base;
    int64_t first, at;   /* where messages begin, and the next one */
    int64_t row, n_rows; /* of the batch */
    bool ended;
    arrow_column columns[TABLE_MAX_COLUMNS];
    table_buffer metadata, packed;
} arrow;

static fsdp_status damaged(const arrow *a, const char *what)
{
    return error_set(FSDP_ERR_INPUT, "%s: %s: the Arrow file is damaged", a->base.in.path, what);
}

/* --- flatbuffers ------------------------------------------------------------------------------------------------- */

/* A place in a flatbuffer; data NULL: nothing is there, which reads as defaults. */
typedef struct flat {
    const uint8_t *data;
    size_t bytes, at;
    bool *failed;
} flat;

static bool has(const flat *f, size_t at, size_t bytes)
{
    if (f->data != NULL && at <= f->bytes && bytes <= f->bytes - at)
        return true;
    *f->failed = true;
    return false;
}

static flat nothing(const flat *f)
{
    return (flat){.failed = f->failed};
}

/* Where field `index` of a table lies; 0: it is not set. */
static size_t field_at(const flat *table, int index, size_t bytes)
{
    if (table->data == NULL || !has(table, table->at, 4))
        return 0;
    int64_t vtable = (int64_t)table->at - (int32_t)read_u32(table->data + table->at);
    if (vtable < 0 || !has(table, (size_t)vtable, 4))
        return 0;
    size_t vtable_bytes = table->data[vtable] | (size_t)table->data[vtable + 1] << 8, slot = 4 + 2 * (size_t)index;
    if (slot + 2 > vtable_bytes || !has(table, (size_t)vtable, vtable_bytes))
        return 0;
    const uint8_t *p = table->data + vtable + slot;
    size_t offset = p[0] | (size_t)p[1] << 8;
    return offset > 0 && has(table, table->at + offset, bytes) ? table->at + offset : 0;
}

static int64_t flat_int(const flat *table, int index, size_t bytes)
{
    size_t at = field_at(table, index, bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && at > 0; i++)
        value |= (uint64_t)table->data[at + i] << (8 * i);
    return bytes == 2 ? (int16_t)value : bytes == 1 ? (int64_t)value : (int64_t)value;
}

/* What an offset at `at` leads to. */
static flat follow(const flat *f, size_t at)
{
    flat out = *f;
    if (at == 0 || !has(f, at, 4))
        return nothing(f);
    out.at = at + read_u32(f->data + at);
    return has(&out, out.at, 4) ? out : nothing(f);
}

static flat flat_table(const flat *table, int index)
{
    return follow(table, field_at(table, index, 4));
}

/* The elements of a vector: *out is at the first of them. */
static size_t flat_vector(const flat *table, int index, size_t element_bytes, flat *out)
{
    *out = follow(table, field_at(table, index, 4));
    if (out->data == NULL)
        return 0;
    size_t n = read_u32(out->data + out->at);
    out->at += 4;
    return n <= out->bytes / element_bytes && has(out, out->at, n * element_bytes) ? n : 0;
}

/* --- the schema -------------------------------------------------------------------------------------------------- */

/* Counts the nodes and buffers of a field and those below it. */
static void count_field(const flat *field, int depth, int *nodes, int *buffers)
{
    flat children, type = flat_table(field, 3);
    int64_t number = flat_int(field, 2, 1);
    bool encoded = flat_table(field, 4).data != NULL;
    if (depth > DEEPEST || number >= N_TYPES || *nodes > 1 << 20) {
        *field->failed = true;
        return;
    }
    ++*nodes;
    if (encoded) { /* by a dictionary: what the batch holds are its numbers */
        *buffers += 2;
        return;
    }
    int n_buffers = number == TYPE_UNION ? 1 + (flat_int(&type, 0, 2) == 1) : types[number].n_buffers;
    if (n_buffers < 0)
        *field->failed = true;
    *buffers += n_buffers;
    size_t n = flat_vector(field, 5, 4, &children);
    for (size_t i = 0; i < n && !*field->failed; i++) {
        flat child = follow(&children, children.at + 4 * i);
        count_field(&child, depth + 1, nodes, buffers);
    }
}

static fsdp_status take_column(arrow *a, const flat *field, const char *name, arrow_column *c)
{
    int64_t type = flat_int(field, 2, 1);
    if (flat_table(field, 4).data != NULL)
        return error_set(
            FSDP_ERR_UNSUPPORTED,
            "%s: column \"%s\" is encoded with a dictionary, which is not read: write it again as plain text",
            a->base.in.path, name);
    if (type != TYPE_TEXT && type != TYPE_BINARY && type != TYPE_LARGE_TEXT && type != TYPE_LARGE_BINARY)
        return error_set(type < N_TYPES && types[type].n_buffers >= 0 ? FSDP_ERR_INPUT : FSDP_ERR_UNSUPPORTED,
                         "%s: column \"%s\" holds %s, not text", a->base.in.path, name,
                         type < N_TYPES ? types[type].name : "something unknown");
    c->large = type == TYPE_LARGE_TEXT || type == TYPE_LARGE_BINARY;
    return FSDP_OK;
}

static fsdp_status read_schema(arrow *a, const flat *schema, const char *const *columns)
{
    flat fields, text;
    char names[256] = "";
    int nodes = 0, buffers = 0;
    if (flat_int(schema, 0, 2) != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: is big-endian: write it again on another machine", a->base.in.path);
    size_t n = flat_vector(schema, 1, 4, &fields);
    for (size_t i = 0; i < n && !*schema->failed; i++) {
        flat field = follow(&fields, fields.at + 4 * i);
        size_t bytes = flat_vector(&field, 0, 1, &text), used = strlen(names);
        const char *name = bytes > 0 ? (const char *)text.data + text.at : "";
        for (int c = 0; c < a->base.n_columns; c++) {
            if (strlen(columns[c]) != bytes || memcmp(columns[c], name, bytes) != 0 || a->columns[c].node >= 0)
                continue;
            FSDP_TRY(take_column(a, &field, columns[c], &a->columns[c]));
            a->columns[c].node = nodes;
            a->columns[c].buffer = buffers;
        }
        if (used + bytes + 3 < sizeof names)
            snprintf(names + used, sizeof names - used, "%s%.*s", used ? ", " : "", (int)bytes, name);
        count_field(&field, 0, &nodes, &buffers);
    }
    if (*schema->failed)
        return damaged(a, "the schema makes no sense, or has types that are not known here");
    for (int c = 0; c < a->base.n_columns; c++)
        if (a->columns[c].node < 0)
            return error_set(FSDP_ERR_INPUT, "%s: there is no column \"%s\"; it has %s: name one with --source_field",
                             a->base.in.path, columns[c], names);
    return FSDP_OK;
}

/* --- messages ---------------------------------------------------------------------------------------------------- */

typedef struct message {
    int type; /* 0: the end */
    flat header;
    int64_t body, body_bytes; /* in the file */
} message;

static fsdp_status read_message(arrow *a, bool *failed, message *out)
{
    uint8_t head[8] = {0};
    const table_input *in = &a->base.in;
    *out = (message){0};
    if (a->at == in->bytes) /* a stream may end without saying so */
        return FSDP_OK;
    FSDP_TRY(table_input_read(in, a->at, head, 4, "a message"));
    bool marked = read_u32(head) == UINT32_MAX; /* files of old versions have no mark */
    if (marked)
        FSDP_TRY(table_input_read(in, a->at, head, 8, "a message"));
    int64_t bytes = read_u32(head + (marked ? 4 : 0)), start = a->at + (marked ? 8 : 4);
    if (bytes == 0)
        return FSDP_OK;
    if (bytes > most_metadata)
        return damaged(a, "a message has too much metadata");
    FSDP_TRY(table_buffer_resize(in, &a->metadata, bytes, "a message"));
    FSDP_TRY(table_input_read(in, start, a->metadata.data, a->metadata.bytes, "a message"));
    flat root = {a->metadata.data, a->metadata.bytes, 0, failed};
    root = bytes >= 8 ? (flat){root.data, root.bytes, read_u32(root.data), failed} : nothing(&root);
    out->type = (int)flat_int(&root, 1, 1);
    out->header = flat_table(&root, 2);
    out->body = start + bytes;
    out->body_bytes = flat_int(&root, 3, 8);
    if (*failed || out->header.data == NULL || out->type < SCHEMA || out->body_bytes < 0 ||
        out->body_bytes > in->bytes - out->body)
        return damaged(a, "a message makes no sense, or the file is truncated");
    a->at = out->body + out->body_bytes;
    return FSDP_OK;
}

/* Buffer `index` of a batch, unpacked. */
static fsdp_status read_buffer(arrow *a, const message *m, const flat *buffers, size_t n, int index, int codec,
                               table_buffer *out)
{
    if ((size_t)index >= n)
        return damaged(a, "a batch lacks a buffer");
    const uint8_t *p = buffers->data + buffers->at + 16 * (size_t)index;
    int64_t offset = read_i64(p), bytes = read_i64(p + 8), whole;
    if (offset < 0 || bytes < 0 || offset > m->body_bytes || bytes > m->body_bytes - offset)
        return damaged(a, "a buffer lies outside its batch");
    table_buffer *to = codec < 0 || bytes == 0 ? out : &a->packed;
    FSDP_TRY(table_buffer_resize(&a->base.in, to, bytes, "a buffer"));
    FSDP_TRY(table_input_read(&a->base.in, m->body + offset, to->data, to->bytes, "a buffer"));
    if (to == out)
        return FSDP_OK;
    if (bytes < 8)
        return damaged(a, "a packed buffer is too short");
    whole = read_i64(to->data);
    FSDP_TRY(table_buffer_resize(&a->base.in, out, whole == -1 ? bytes - 8 : whole, "a buffer"));
    return table_unpack(&a->base.in, whole == -1 ? TABLE_PLAIN : TABLE_ZSTD, to->data + 8, (size_t)bytes - 8, out);
}

static int64_t offset_of(const arrow_column *c, int64_t row)
{
    return c->large ? read_i64(c->offsets.data + 8 * row) : (int64_t)(int32_t)read_u32(c->offsets.data + 4 * row);
}

static fsdp_status read_column(arrow *a, const message *m, arrow_column *c)
{
    flat nodes, buffers, packing = flat_table(&m->header, 3);
    size_t n_nodes = flat_vector(&m->header, 1, 16, &nodes), n = flat_vector(&m->header, 2, 16, &buffers);
    int codec = packing.data == NULL ? -1 : (int)flat_int(&packing, 0, 1);
    if (*m->header.failed || (size_t)c->node >= n_nodes)
        return damaged(a, "a batch makes no sense");
    if (codec == 0)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: is compressed with LZ4, which is not read: write it again with zstd", a->base.in.path);
    const uint8_t *node = nodes.data + nodes.at + 16 * (size_t)c->node;
    c->has_nulls = read_i64(node + 8) != 0;
    if (read_i64(node) != a->n_rows)
        return damaged(a, "a column has another number of values than rows");
    FSDP_TRY(read_buffer(a, m, &buffers, n, c->buffer, codec, &c->validity));
    FSDP_TRY(read_buffer(a, m, &buffers, n, c->buffer + 1, codec, &c->offsets));
    FSDP_TRY(read_buffer(a, m, &buffers, n, c->buffer + 2, codec, &c->text));
    size_t width = c->large ? 8 : 4;
    if (a->n_rows > 0 && c->offsets.bytes / width < (uint64_t)a->n_rows + 1)
        return damaged(a, "a batch lacks offsets");
    if (c->has_nulls && c->validity.bytes < ((uint64_t)a->n_rows + 7) / 8)
        return damaged(a, "a batch does not say which values are null");
    return FSDP_OK;
}

/* The next batch that has rows; a->ended at the end. */
static fsdp_status next_batch(arrow *a, int64_t skip)
{
    bool failed = false;
    message m;
    a->row = a->n_rows = 0;
    while (a->n_rows == 0) {
        FSDP_TRY(read_message(a, &failed, &m));
        a->ended = m.type == 0;
        if (a->ended)
            return FSDP_OK;
        if (m.type != RECORD_BATCH)
            continue;
        a->n_rows = flat_int(&m.header, 0, 8);
        if (failed || a->n_rows < 0)
            return damaged(a, "a batch makes no sense");
        for (int i = 0; i < a->base.n_columns && a->n_rows > skip; i++)
            FSDP_TRY(read_column(a, &m, &a->columns[i]));
    }
    return FSDP_OK;
}

static fsdp_status arrow_next(table_file *t, table_text *values, bool *more)
{
    arrow *a = (arrow *)t;
    if (a->row == a->n_rows && !a->ended)
        FSDP_TRY(next_batch(a, 0));
    *more = !a->ended;
    for (int i = 0; i < t->n_columns && *more; i++) {
        const arrow_column *c = &a->columns[i];
        values[i] = (table_text){0};
        if (c->has_nulls && !(c->validity.data[a->row / 8] >> (a->row % 8) & 1))
            continue;
        int64_t from = offset_of(c, a->row), to = offset_of(c, a->row + 1);
        if (from < 0 || to < from || to > (int64_t)c->text.bytes)
            return damaged(a, "a value lies outside its buffer");
        values[i] =
            (table_text){.text = to > from ? (const char *)c->text.data + from : "", .bytes = (size_t)(to - from)};
    }
    a->row += *more;
    return FSDP_OK;
}

static fsdp_status arrow_seek(table_file *t, int64_t row)
{
    arrow *a = (arrow *)t;
    a->at = a->first;
    a->ended = false;
    a->row = a->n_rows = 0;
    for (; !a->ended; row -= a->n_rows) {
        FSDP_TRY(next_batch(a, row));
        if (row < a->n_rows)
            break;
    }
    a->row = a->ended ? a->n_rows : row;
    return FSDP_OK;
}

static void arrow_close(table_file *t)
{
    arrow *a = (arrow *)t;
    for (int i = 0; i < TABLE_MAX_COLUMNS; i++) {
        free(a->columns[i].validity.data);
        free(a->columns[i].offsets.data);
        free(a->columns[i].text.data);
    }
    free(a->metadata.data);
    free(a->packed.data);
    free(a);
}

static const table_kind arrow_kind = {arrow_next, arrow_seek, arrow_close};

static fsdp_status open_messages(arrow *a, const char *const *columns)
{
    uint8_t magic[6];
    bool failed = false;
    message m;
    const table_input *in = &a->base.in;
    FSDP_TRY(table_input_read(in, 0, magic, sizeof magic, "the beginning"));
    if (memcmp(magic, "ARROW1", 6) == 0) {
        a->at = FILE_MAGIC_BYTES;
        FSDP_TRY(table_input_read(in, in->bytes - 6, magic, sizeof magic, "the end"));
        if (memcmp(magic, "ARROW1", 6) != 0)
            return error_set(FSDP_ERR_INPUT, "%s: the Arrow file has no end: truncated, or still being written?",
                             in->path);
    }
    FSDP_TRY(read_message(a, &failed, &m));
    if (m.type != SCHEMA)
        return damaged(a, "it does not begin with a schema");
    a->first = a->at;
    return read_schema(a, &m.header, columns);
}

fsdp_status arrow_open(table_input in, const char *const *columns, int n_columns, table_file **out)
{
    arrow *a = calloc(1, sizeof *a);
    if (a == NULL) {
        fsdp_status status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", in.path);
        table_input_close(&in);
        return status;
    }
    a->base = (table_file){&arrow_kind, in, n_columns};
    for (int i = 0; i < TABLE_MAX_COLUMNS; i++)
        a->columns[i].node = -1;
    fsdp_status status =
        strstr(columns[0], TABLE_LIST)
            ? error_set(FSDP_ERR_UNSUPPORTED, "%s: lists are read from Parquet, not from Arrow: convert it", in.path)
            : open_messages(a, columns);
    if (status != FSDP_OK) {
        table_close(&a->base);
        return status;
    }
    *out = &a->base;
    return FSDP_OK;
}
