/* Any bytes as a file of records and as a file of text. What the parser makes of the whole, or of every line, is what
 * the reader gives, record by record, and the parser agrees with jansson's; text comes back as it went in. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text/json_parser.h"
#include "data/document.h"
#include "tokenizer/text/text_buffer.h"
#include "tokenizer/text/utf8.h"
#include "format/signature.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

/* Texts of records, one behind the other, each with its length in front. */
static void keep(text_buffer *list, const char *text, size_t bytes)
{
    require(text_append(list, (const char *)&bytes, sizeof bytes) == FSDP_OK);
    require(text_append(list, text, bytes) == FSDP_OK);
}

static void keep_record(text_buffer *list, const json_t *record)
{
    const json_t *text = json_object_get(record, "text");
    size_t bytes = json_string_length(text);
    if (json_is_string(text) && utf8_valid_bytes(json_string_value(text), bytes) == bytes)
        keep(list, json_string_value(text), bytes);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The parser takes what jansson takes, as the same value; and more. */
static json_t *parse(const char *text, size_t bytes)
{
    json_fault fault;
    json_t *ours = json_parser_read(text, bytes, JSON_AS_PYTHON | JSON_WITH_NUL, &fault);
    json_t *theirs = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    require(theirs == NULL || (ours != NULL && json_equal(ours, theirs)));
    json_decref(theirs);
    return ours;
}

/* What must come out, where that is plain: a whole that is one array, or lines. */
static bool expected(const char *data, size_t bytes, text_buffer *list)
{
    size_t first = 0, behind;
    if (bytes >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0) {
        data += 3;
        bytes -= 3;
    }
    while (first < bytes && is_blank(data[first]))
        first++;
    for (behind = first + 1; behind < bytes && (data[behind] == ' ' || data[behind] == '\t' || data[behind] == '\r');)
        behind++;
    bool array = first < bytes && data[first] == '[';
    if (array) {
        json_t *whole = parse(data, bytes), *record;
        size_t i;
        json_array_foreach(whole, i, record) keep_record(list, record);
        json_decref(whole);
        return whole != NULL;
    }
    if (first < bytes && data[first] == '{' && (behind >= bytes || data[behind] == '\n'))
        return false; /* values over several lines */
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(data + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - data) - at : bytes - at;
        json_t *record = parse(data + at, length);
        keep_record(list, record);
        json_decref(record);
        at += length + 1;
    }
    return true;
}

static fsdp_status read_all(const char *path, source_kind kind, fsdp_tokenizer *t, text_buffer *list)
{
    source_file file = {.path = (char *)(uintptr_t)path, .kind = kind};
    source_list files = {.files = &file, .n_files = 1};
    document_reader *reader;
    document d;
    bool more = true;
    require(document_reader_open(&files, "text", NULL, false, t, &reader) == FSDP_OK);
    fsdp_status status = FSDP_OK;
    while (status == FSDP_OK && more) {
        status = document_reader_next(reader, &d, &more);
        if (status == FSDP_OK && more && kind == SOURCE_JSONL)
            keep(list, d.text, d.bytes);
        else if (status == FSDP_OK && more)
            require(text_append(list, d.text, d.bytes) == FSDP_OK);
    }
    require(document_reader_skipped(reader) >= 0);
    document_reader_close(reader);
    return status;
}

static void require_same(const text_buffer *a, const char *b, size_t bytes)
{
    require(a->bytes == bytes && (bytes == 0 || memcmp(a->data, b, bytes) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static fsdp_tokenizer *t;
    char path[64];
    const char *text = (const char *)data;
    text_buffer wanted = {0}, got = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    require(fd >= 0 && (t || fsdp_tokenizer_byte(&t) == FSDP_OK));
    require(write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool packed = bytes >= 2 && (memcmp(data, "\x1F\x8B", 2) == 0 || data[0] == 0x28 || (data[0] & 0xF0) == 0x50);
    size_t mark = bytes >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    bool is_text = signature_check_text("fuzz", text + mark, bytes - mark) == FSDP_OK;
    fsdp_status status = read_all(path, SOURCE_JSONL, t, &got);
    if (!packed && is_text && expected(text, bytes, &wanted)) {
        require(status == FSDP_OK);
        require_same(&got, wanted.data, wanted.bytes);
    }
    got.bytes = 0;
    status = read_all(path, SOURCE_TEXT, t, &got);
    require(packed || status == (is_text ? FSDP_OK : FSDP_ERR_INPUT));
    if (!packed && status == FSDP_OK)
        require_same(&got, text + mark, bytes - mark);
    text_free(&wanted);
    text_free(&got);
    close(fd);
    return 0;
}
