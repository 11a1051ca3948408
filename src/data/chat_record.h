/* One record of instruction data as tokens: a conversation, or a prompt with its response, and which tokens are the
 * assistant's. Reading records is document.h's, samples are dataset_chat.c's. */
#ifndef DATA_CHAT_RECORD_H
#define DATA_CHAT_RECORD_H

#include <fsdp/tokenizer.h>

#include "base/json.h"
#include "tokenizer/template/chat_template.h"

typedef struct chat_encoder {
    fsdp_tokenizer *tokenizer;     /* borrowed */
    const chat_template *template; /* borrowed; NULL: prompt and response are put side by side */
    const char *prompt_field, *response_field;
    text_buffer text;
    span_vector responses;
    id_vector ids;
    text_buffer trained; /* a byte a token: 1 where it is the assistant's */
} chat_encoder;

void chat_encoder_free(chat_encoder *e);

/* Whether a record is a conversation: it has a list of "messages". */
bool chat_record_has_messages(const json_t *record);

/* Fills ids and trained. On failure the message says what is wrong with the record, without its place. */
fsdp_status chat_record_encode(chat_encoder *e, const json_t *record);

#endif
