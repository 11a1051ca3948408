/* Any bytes as a chat template with a conversation behind it: the input up to the first NUL is the template, the rest
 * the messages as JSON. What parses must render, or fail, without a crash, and responses must lie inside the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/template/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char usual[] =
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b c\"}]";
    const uint8_t *end = memchr(data, 0, bytes);
    size_t template_bytes = end == NULL ? bytes : (size_t)(end - data);
    json_t *messages = NULL;
    chat_template *t = NULL;
    if (end != NULL)
        json_parse_as("fuzz", (const char *)end + 1, bytes - template_bytes - 1, JSON_AS_PYTHON | JSON_WITH_NUL,
                      &messages);
    if (messages == NULL && json_parse("fuzz", usual, strlen(usual), &messages) != FSDP_OK)
        return 0;
    if (bytes < 1 << 16 && chat_template_create("fuzz", (const char *)data, template_bytes, NULL, &t) == FSDP_OK) {
        chat c = {.messages = messages};
        text_buffer text = {0};
        span_vector responses = {0};
        if (chat_template_responses(t, &c, &text, &responses) == FSDP_OK)
            for (size_t i = 0; i < responses.n; i++)
                if (responses.data[i].start > responses.data[i].end || responses.data[i].end > text.bytes)
                    abort();
        span_free(&responses);
        text_free(&text);
        chat_template_free(t);
    }
    json_decref(messages);
    return 0;
}
