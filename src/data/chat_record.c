/* Conversations are rendered by the template and made tokens of as a whole, as transformers does. A response begins
 * with the token that holds its first character: as many tokens are before it as the text in front of it, made tokens
 * of by itself, has in common with the whole. */
#include "data/chat_record.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/utf8_check.h"

void chat_encoder_free(chat_encoder *e)
{
    text_free(&e->text);
    span_free(&e->responses);
    id_free(&e->ids);
    text_free(&e->trained);
}

bool chat_record_has_messages(const json_t *record)
{
    return json_is_array(json_object_get(record, "messages"));
}

/* --- messages ---------------------------------------------------------------------------------------------------- */

/* Appends a field of a record: a list of messages, or the text of one. */
static fsdp_status add_messages(json_t *messages, const json_t *record, const char *field, const char *role)
{
    json_t *content = json_object_get(record, field), *message;
    size_t i;
    if (json_is_array(content)) {
        json_array_foreach(content, i, message) json_array_append(messages, message);
        return FSDP_OK;
    }
    if (!json_is_string(content))
        return error_set(FSDP_ERR_INPUT, "no string under \"%s\"", field);
    return json_array_append_new(messages, json_pack("{s:s, s:O}", "role", role, "content", content)) == 0
               ? FSDP_OK
               : error_set(FSDP_ERR_MEMORY, "out of memory");
}

/* The conversation of a record, for the caller to release. */
static fsdp_status make_messages(const chat_encoder *e, const json_t *record, json_t **out)
{
    json_t *messages = json_object_get(record, "messages");
    if (json_is_array(messages)) {
        *out = json_incref(messages);
        return FSDP_OK;
    }
    *out = json_array();
    fsdp_status status = *out == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory") : FSDP_OK;
    if (status == FSDP_OK)
        status = add_messages(*out, record, e->prompt_field, "user");
    if (status == FSDP_OK)
        status = add_messages(*out, record, e->response_field, "assistant");
    return status;
}

/* --- tokens ------------------------------------------------------------------------------------------------------ */

/* How many tokens of the whole the first `bytes` of the text make by themselves; *exact says whether they end there. */
static fsdp_status tokens_before(chat_encoder *e, size_t bytes, size_t *n, bool *exact)
{
    const int32_t *ids;
    size_t n_ids;
    *n = 0;
    FSDP_TRY(fsdp_tokenizer_encode(e->tokenizer, e->text.data, bytes, false, &ids, &n_ids));
    while (*n < n_ids && *n < e->ids.n && ids[*n] == e->ids.data[*n])
        ++*n;
    *exact = *n == n_ids;
    return FSDP_OK;
}

static fsdp_status mark_responses(chat_encoder *e)
{
    e->trained.bytes = 0;
    FSDP_TRY(text_reserve(&e->trained, e->ids.n));
    memset(e->trained.data, 0, e->ids.n);
    e->trained.bytes = e->ids.n;
    for (size_t i = 0; i < e->responses.n; i++) {
        size_t first, end;
        bool exact;
        FSDP_TRY(tokens_before(e, e->responses.data[i].start, &first, &exact));
        FSDP_TRY(tokens_before(e, e->responses.data[i].end, &end, &exact));
        end += !exact && end < e->ids.n; /* the token that holds the last character too */
        if (first < end)
            memset(e->trained.data + first, 1, end - first);
    }
    return FSDP_OK;
}

static fsdp_status encode_rendered(chat_encoder *e, const json_t *messages, const json_t *tools)
{
    const int32_t *ids;
    size_t n;
    chat c = {.messages = messages, .tools = tools};
    e->text.bytes = e->responses.n = e->ids.n = 0;
    FSDP_TRY(chat_template_responses(e->template, &c, &e->text, &e->responses));
    if (utf8_valid_bytes(e->text.data, e->text.bytes) < e->text.bytes)
        return error_set(FSDP_ERR_INPUT, "half of a surrogate pair in a message");
    FSDP_TRY(fsdp_tokenizer_encode(e->tokenizer, e->text.data, e->text.bytes, false, &ids, &n));
    FSDP_TRY(id_append_all(&e->ids, ids, n));
    return mark_responses(e);
}

/* Without a template: the tokens of the prompt as of any text that begins, then those of the response and the end. */
static fsdp_status encode_plain(chat_encoder *e, const json_t *record)
{
    const char *const fields[] = {e->prompt_field, e->response_field};
    int32_t end = fsdp_tokenizer_eos(e->tokenizer);
    e->ids.n = e->trained.bytes = 0;
    for (int i = 0; i < 2; i++) {
        const json_t *text = json_object_get(record, fields[i]);
        const int32_t *ids;
        size_t n, bytes = json_string_length(text);
        if (!json_is_string(text) || utf8_valid_bytes(json_string_value(text), bytes) < bytes)
            return error_set(FSDP_ERR_INPUT, "no string under \"%s\"", fields[i]);
        FSDP_TRY(fsdp_tokenizer_encode(e->tokenizer, json_string_value(text), bytes, i == 0, &ids, &n));
        n -= i == 0 && n > 0 && ids[n - 1] == end;
        FSDP_TRY(id_append_all(&e->ids, ids, n));
        if (i == 1 && end >= 0)
            FSDP_TRY(id_append(&e->ids, end));
        FSDP_TRY(text_reserve(&e->trained, e->ids.n - e->trained.bytes));
        memset(e->trained.data + e->trained.bytes, i, e->ids.n - e->trained.bytes);
        e->trained.bytes = e->ids.n;
    }
    return FSDP_OK;
}

fsdp_status chat_record_encode(chat_encoder *e, const json_t *record)
{
    json_t *messages = NULL;
    if (e->template == NULL && !chat_record_has_messages(record))
        return encode_plain(e, record);
    if (e->template == NULL)
        return error_set(FSDP_ERR_INPUT, "messages want a chat template, and the tokenizer's folder has none");
    fsdp_status status = make_messages(e, record, &messages);
    if (status == FSDP_OK)
        status = encode_rendered(e, messages, json_object_get(record, "tools"));
    json_decref(messages);
    return status;
}
