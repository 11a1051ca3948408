/* Plain text is gathered into parts of about 64 KiB that end where the tokenizer permits; JSONL gives a document for
 * each line, a table for each row. A file that is one JSON array gives one for each element, one of objects that span
 * lines one for each. */
#include "data/document.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/text/json_parser.h"
#include "base/log.h"
#include "base/text/utf8_check.h"
#include "tokenizer/text/text_buffer.h"
#include "tokenizer/text_cut.h"
#include "format/byte_stream.h"
#include "format/signature.h"
#include "format/text_reader.h"

enum { PART_BYTES = 64 << 10, MAX_WARNINGS = 20, USUAL_COMPRESSION = 3 };

struct document_reader {
    const source_list *files;
    const char *text_field, *target_field;
    bool strict;
    fsdp_tokenizer *tokenizer;
    size_t file;         /* index of the open one, or of the next */
    text_reader *lines;  /* of a JSONL file; NULL between files */
    table_file *rows;    /* of a table; NULL between files */
    json_t *begun;       /* the first messages of the conversation to come, from a table; NULL: none */
    bool in_values;      /* records are values, not lines */
    json_t *record;      /* whose strings the last document borrows */
    int64_t line_number; /* of it */
    byte_stream *text;   /* of a file of text; NULL between files */
    text_buffer part;    /* plain text that was read; its first `given` bytes were given out */
    size_t given;
    bool text_ended;
    bool in_parts;      /* the next part goes on with a document */
    bool spans_lines;   /* the open file began with records that span lines: they are counted */
    int64_t n_records;  /* of those so far */
    int64_t text_bytes; /* of the open file of text, up to the part that comes next */
    int64_t skipped;
    int64_t total_bytes, done_bytes; /* of all files, of the finished ones, as they are on disk */
    int64_t file_bytes, read_bytes;  /* of the open one: on disk, and of text so far */
};

fsdp_status document_reader_open(const source_list *files, const char *text_field, const char *target_field,
                                 bool strict, fsdp_tokenizer *tokenizer, document_reader **out)
{
    document_reader *r = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    *r = (document_reader){.files = files,
                           .text_field = text_field,
                           .target_field = target_field,
                           .strict = strict,
                           .tokenizer = tokenizer};
    for (size_t i = 0; i < files->n_files; i++)
        r->total_bytes += source_file_bytes(&files->files[i]);
    *out = r;
    return FSDP_OK;
}

void document_reader_close(document_reader *r)
{
    if (r == NULL)
        return;
    json_decref(r->record);
    json_decref(r->begun);
    text_reader_close(r->lines);
    table_close(r->rows);
    byte_stream_close(r->text);
    text_free(&r->part);
    free(r);
}

int64_t document_reader_skipped(const document_reader *r)
{
    return r->skipped;
}

double document_reader_part(const document_reader *r)
{
    if (r->file >= r->files->n_files || r->total_bytes <= 0)
        return 1.0;
    const char *path = r->files->files[r->file].path;
    size_t length = strlen(path);
    bool compressed =
        (length > 3 && strcmp(path + length - 3, ".gz") == 0) || (length > 4 && strcmp(path + length - 4, ".zst") == 0);
    double in_file = (double)r->read_bytes / (compressed ? USUAL_COMPRESSION : 1), most = (double)r->file_bytes;
    return ((double)r->done_bytes + (in_file < most ? in_file : most)) / (double)r->total_bytes;
}

/* A bad record: an error when strict, else a line in the log. Later ones are only counted. */
static fsdp_status skip_record(document_reader *r, const char *path, int64_t line, const char *why)
{
    if (r->strict)
        return error_set(FSDP_ERR_INPUT, "%s:%lld: %s", path, (long long)line, why);
    if (++r->skipped <= MAX_WARNINGS)
        log_write(FSDP_LOG_WARNING, "%s:%lld: %s; the record is skipped%s", path, (long long)line, why,
                  r->skipped == MAX_WARNINGS ? " (more are not reported)" : "");
    return FSDP_OK;
}

fsdp_status document_reader_skip(document_reader *r, const char *why)
{
    return skip_record(r, r->files->files[r->file].path, r->line_number, why);
}

/* Python writes half of a surrogate pair as it is, and can no more make tokens of it than we can. */
static bool is_text(const json_t *value)
{
    return json_is_string(value) &&
           utf8_valid_bytes(json_string_value(value), json_string_length(value)) == json_string_length(value);
}

/* What is missing, what is there instead, and the flag that names it. */
static void say_missing(const json_t *record, const char *field, const char *flag, char why[256])
{
    const char *key;
    json_t *value;
    size_t used = (size_t)snprintf(why, 256, "no string under \"%.60s\"", field), n = 0;
    json_object_foreach((json_t *)(uintptr_t)record, key, value)
    {
        if (json_is_string(value) && used < 200)
            used += (size_t)snprintf(why + used, 256 - used, "%s\"%.30s\"", n++ == 0 ? "; there is " : ", ", key);
    }
    if (n > 0 && used < 220)
        snprintf(why + used, 256 - used, ": name one with --%s", flag);
}

/* `why` is empty for a good record, else what is wrong with it. */
static void parse_record(document_reader *r, const text_line *line, document *out, char why[256])
{
    json_fault fault;
    why[0] = '\0';
    json_decref(r->record);
    r->record = json_parser_read(line->text, line->bytes, JSON_AS_PYTHON | JSON_WITH_NUL, &fault);
    const json_t *text = r->text_field == NULL ? NULL : json_object_get(r->record, r->text_field);
    const json_t *target = r->target_field == NULL ? NULL : json_object_get(r->record, r->target_field);
    if (r->record == NULL)
        snprintf(why, 256, "not JSON: %.200s", fault.text);
    else if (!json_is_object(r->record))
        snprintf(why, 256, "not a JSON object");
    else if (r->text_field == NULL)
        *out = (document){.ends = true, .record = r->record};
    else if (!json_is_string(text))
        say_missing(r->record, r->text_field, "source_field", why);
    else if (r->target_field != NULL && !json_is_string(target))
        say_missing(r->record, r->target_field, "target_field", why);
    else if (!is_text(text) || (target != NULL && !is_text(target)))
        snprintf(why, 256, "half of a surrogate pair under \"%.100s\"",
                 is_text(text) ? r->target_field : r->text_field);
    else
        *out = (document){json_string_value(text),
                          json_string_length(text),
                          json_string_value(target),
                          target == NULL ? 0 : json_string_length(target),
                          true,
                          {0},
                          NULL};
}

static bool is_blank(const text_line *line)
{
    for (size_t i = 0; i < line->bytes; i++)
        if (strchr(" \t\r", line->text[i]) == NULL || line->text[i] == '\0')
            return false;
    return true;
}

/* The next line; a line that is too long is a bad record. *got is false at the end of the file. */
static fsdp_status next_line(document_reader *r, text_line *line, bool *got)
{
    for (;;) {
        bool more = false;
        fsdp_status status = text_reader_next(r->lines, line, &more);
        *got = more;
        r->read_bytes += status == FSDP_OK && more ? (int64_t)line->bytes + 1 : 0;
        if (status == FSDP_OK || !more || r->strict)
            return status;
        if (++r->skipped <= MAX_WARNINGS)
            log_write(FSDP_LOG_WARNING, "%s; the record is skipped", fsdp_last_error());
    }
}

/* The next line or value. *got is false at the end of the file. */
static fsdp_status next_json(document_reader *r, text_line *line, bool *got)
{
    r->n_records++;
    if (r->in_values) {
        FSDP_TRY(text_reader_next_value(r->lines, true, line, got));
        r->read_bytes += (int64_t)line->bytes;
        r->in_values = *got;
        if (*got)
            return FSDP_OK;
    }
    return next_line(r, line, got);
}

static fsdp_status next_record(document_reader *r, document *out, bool *got)
{
    text_line line;
    char why[256];
    for (;;) {
        document_place place = {.file = (int64_t)r->file, .record = r->n_records};
        if (!r->spans_lines) {
            place.offset = text_reader_offset(r->lines);
            place.record = text_reader_lines(r->lines);
        }
        FSDP_TRY(next_json(r, &line, got));
        if (!*got)
            return FSDP_OK;
        if (line.number == 1)
            FSDP_TRY(signature_check_text(r->files->files[r->file].path, line.text, line.bytes));
        if (is_blank(&line))
            continue;
        r->line_number = line.number;
        parse_record(r, &line, out, why);
        out->place = place;
        if (why[0] == '\0')
            return FSDP_OK;
        FSDP_TRY(skip_record(r, r->files->files[r->file].path, line.number, why));
    }
}

static fsdp_status open_records(document_reader *r, const char *path)
{
    char first;
    bool alone;
    FSDP_TRY(text_reader_open(path, 0, &r->lines));
    FSDP_TRY(text_reader_peek(r->lines, &first, &alone));
    r->in_values = first == '[' || (first == '{' && alone);
    r->spans_lines = r->in_values;
    r->n_records = 0;
    return FSDP_OK;
}

/* --- tables ------------------------------------------------------------------------------------------------------ */

static fsdp_status open_rows(document_reader *r, const char *path)
{
    const char *const columns[] = {r->text_field, r->target_field};
    r->n_records = 0;
    if (r->text_field == NULL)
        return document_open_messages(path, &r->rows);
    return table_open(path, columns, r->target_field == NULL ? 1 : 2, &r->rows);
}

fsdp_status document_open_messages(const char *path, table_file **out)
{
    static const char *const columns[] = {"messages" TABLE_LIST "role", "messages" TABLE_LIST "content"};
    return table_open(path, columns, 2, out);
}

static json_t *text_or_null(const table_text *value)
{
    return value->text == NULL ? json_null() : json_stringn_nocheck(value->text, value->bytes);
}

/* A message goes to the conversation it belongs to; one without a role is a list that is empty. */
static bool add_message(json_t **conversation, const table_text *values)
{
    if (*conversation == NULL)
        *conversation = json_array();
    return values[0].text == NULL ||
           json_array_append_new(*conversation, json_pack("{s:o, s:o}", "role", text_or_null(&values[0]), "content",
                                                          text_or_null(&values[1]))) == 0;
}

/* The messages up to the one that begins another conversation, which is kept. */
static fsdp_status next_conversation(document_reader *r, document *out, bool *got)
{
    bool more = true;
    json_t *messages = r->begun;
    fsdp_status status = FSDP_OK;
    r->begun = NULL;
    while (more && r->begun == NULL && status == FSDP_OK) {
        table_text values[TABLE_MAX_COLUMNS] = {{.text = NULL}};
        status = table_next(r->rows, values, &more);
        if (status != FSDP_OK || !more)
            break;
        r->read_bytes += (int64_t)values[1].bytes;
        if (!add_message(messages == NULL || values[0].continues ? &messages : &r->begun, values))
            status = error_set(FSDP_ERR_MEMORY, "out of memory");
    }
    *got = messages != NULL;
    json_decref(r->record);
    r->record = messages == NULL ? NULL : json_pack("{s:o}", "messages", messages);
    *out = (document){.ends = true, .record = r->record, .place = {(int64_t)r->file, 0, r->n_records++, false}};
    r->line_number = r->n_records;
    return status;
}

static fsdp_status next_row(document_reader *r, document *out, bool *got)
{
    table_text values[TABLE_MAX_COLUMNS] = {{.text = NULL}};
    for (;;) {
        char why[256];
        FSDP_TRY(table_next(r->rows, values, got));
        if (!*got)
            return FSDP_OK;
        const table_text *text = &values[0], *target = r->target_field == NULL ? NULL : &values[1];
        document_place place = {.file = (int64_t)r->file, .record = r->n_records++};
        r->line_number = r->n_records;
        bool null = text->text == NULL || (target != NULL && target->text == NULL);
        bool valid = !null && utf8_valid_bytes(text->text, text->bytes) == text->bytes &&
                     (target == NULL || utf8_valid_bytes(target->text, target->bytes) == target->bytes);
        r->read_bytes += (int64_t)text->bytes;
        if (valid) {
            *out = (document){
                text->text, text->bytes, target == NULL ? NULL : target->text, target == NULL ? 0 : target->bytes, true,
                place,      NULL};
            return FSDP_OK;
        }
        snprintf(why, sizeof why, "%s under \"%.100s\"", null ? "null" : "not UTF-8",
                 text->text == NULL || target == NULL ? r->text_field : r->target_field);
        FSDP_TRY(skip_record(r, r->files->files[r->file].path, r->n_records, why));
    }
}

/* --- plain text -------------------------------------------------------------------------------------------------- */

static fsdp_status read_text(document_reader *r, size_t wanted)
{
    while (!r->text_ended && r->part.bytes < wanted) {
        size_t got;
        FSDP_TRY(text_reserve(&r->part, PART_BYTES));
        FSDP_TRY(byte_stream_read(r->text, r->part.data + r->part.bytes, PART_BYTES, &got));
        r->part.bytes += got;
        r->read_bytes += (int64_t)got;
        r->text_ended = got == 0;
    }
    return text_reserve(&r->part, 1);
}

static fsdp_status open_text(document_reader *r, const char *path)
{
    FSDP_TRY(byte_stream_open(path, &r->text));
    r->part.bytes = r->given = 0;
    r->text_ended = r->in_parts = false;
    r->text_bytes = 0;
    FSDP_TRY(read_text(r, SIGNATURE_BYTES));
    if (r->part.bytes >= 3 && memcmp(r->part.data, "\xEF\xBB\xBF", 3) == 0) /* a byte order mark is not text */
        r->given = 3;
    return signature_check_text(path, r->part.data + r->given, r->part.bytes - r->given);
}

/* Text up to the first place past the size of a part where it may be cut. The last part of a file ends the document,
 * empty though it may be. */
static fsdp_status next_part(document_reader *r, document *out)
{
    memmove(r->part.data, r->part.data + r->given, r->part.bytes - r->given);
    r->part.bytes -= r->given;
    r->text_bytes += (int64_t)r->given;
    size_t from = PART_BYTES, place;
    do {
        FSDP_TRY(read_text(r, from + PART_BYTES));
        FSDP_TRY(text_cut_place(r->tokenizer, r->part.data, r->part.bytes, from, &place));
        if (r->part.bytes > from + TEXT_CUT_BEHIND)
            from = r->part.bytes - TEXT_CUT_BEHIND; /* up to there, nothing was found */
    } while (place == r->part.bytes && !r->text_ended);
    r->given = place;
    *out = (document){.text = r->part.data,
                      .bytes = place,
                      .ends = place == r->part.bytes,
                      .place = {.file = (int64_t)r->file, .offset = r->text_bytes, .continues = r->in_parts}};
    r->in_parts = true;
    return FSDP_OK;
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static void close_file(document_reader *r)
{
    json_decref(r->begun);
    r->begun = NULL;
    text_reader_close(r->lines);
    table_close(r->rows);
    byte_stream_close(r->text);
    r->lines = NULL;
    r->rows = NULL;
    r->text = NULL;
    r->file++;
    r->done_bytes += r->file_bytes;
    r->read_bytes = 0;
}

static fsdp_status open_file(document_reader *r, const source_file *file)
{
    if (file->kind == SOURCE_TEXT && r->target_field != NULL)
        return error_set(FSDP_ERR_INPUT, "%s: pairs need JSONL with \"%s\" and \"%s\"", file->path, r->text_field,
                         r->target_field);
    FSDP_TRY(source_list_await(r->files, r->file));
    r->file_bytes = source_file_bytes(file);
    return file->kind == SOURCE_TEXT   ? open_text(r, file->path)
           : file->kind == SOURCE_ROWS ? open_rows(r, file->path)
                                       : open_records(r, file->path);
}

fsdp_status document_reader_next(document_reader *r, document *out, bool *more)
{
    *more = true;
    while (r->file < r->files->n_files) {
        const source_file *file = &r->files->files[r->file];
        bool got = true;
        if (r->lines == NULL && r->text == NULL && r->rows == NULL)
            FSDP_TRY(open_file(r, file));
        if (file->kind == SOURCE_ROWS)
            FSDP_TRY(r->text_field == NULL ? next_conversation(r, out, &got) : next_row(r, out, &got));
        else if (file->kind != SOURCE_TEXT)
            FSDP_TRY(next_record(r, out, &got));
        else
            FSDP_TRY(next_part(r, out));
        if (!got || (file->kind == SOURCE_TEXT && out->ends))
            close_file(r);
        if (got)
            return FSDP_OK;
    }
    *more = false;
    return FSDP_OK;
}

fsdp_status document_reader_seek(document_reader *r, const document_place *place)
{
    if (r->lines != NULL || r->text != NULL || r->rows != NULL)
        close_file(r);
    r->file = (size_t)place->file;
    r->done_bytes = 0;
    for (size_t i = 0; i < r->file && i < r->files->n_files; i++)
        r->done_bytes += source_file_bytes(&r->files->files[i]);
    if (r->file >= r->files->n_files)
        return FSDP_OK;
    FSDP_TRY(open_file(r, &r->files->files[r->file]));
    if (r->text != NULL) {
        if (place->offset == 0)
            return FSDP_OK;
        r->part.bytes = r->given = 0;
        r->text_ended = false;
        r->text_bytes = r->read_bytes = place->offset;
        r->in_parts = place->continues;
        return byte_stream_seek(r->text, place->offset);
    }
    if (r->rows != NULL) {
        r->n_records = place->record;
        return table_seek(r->rows, place->record);
    }
    if (!r->spans_lines) {
        r->read_bytes = place->offset;
        return text_reader_seek(r->lines, place->offset, place->record);
    }
    text_line line;
    for (bool got = true; got && r->n_records < place->record;)
        FSDP_TRY(next_json(r, &line, &got));
    return FSDP_OK;
}
