/* A model's chat template: conversations become the text that the model was made for, as transformers renders them. */
#ifndef TOKENIZER_TEMPLATE_CHAT_TEMPLATE_H
#define TOKENIZER_TEMPLATE_CHAT_TEMPLATE_H

#include <stdbool.h>

#include <jansson.h>

#include "tokenizer/text/text_buffer.h"

typedef struct chat_template chat_template;

/* `name` is what errors call it. `variables` (an object, or NULL) are seen by the template beside the conversation:
 * bos_token and the like. */
fsdp_status chat_template_create(const char *name, const char *text, size_t bytes, const json_t *variables,
                                 chat_template **out);
/* The template of a tokenizer's folder (NULL: there is none): chat_template.jinja, else "chat_template" of
 * tokenizer_config.json, whose special tokens it sees. `file` (may be NULL) is a template to take instead. *out is NULL
 * when there is none. */
fsdp_status chat_template_load(const char *folder, const char *file, chat_template **out);
void chat_template_free(chat_template *t); /* NULL is legal */

typedef struct chat {
    const json_t *messages; /* [{"role": ..., "content": ...}, ...] */
    const json_t *tools;    /* may be NULL */
    bool add_generation_prompt;
    int64_t now; /* what strftime_now takes for the time, seconds since 1970; 0: the clock's */
} chat;

/* Appends the text to `out`, and the places of its {% generation %} blocks to `generated` (may be NULL). Any number of
 * threads may render with one template. */
fsdp_status chat_template_render(const chat_template *t, const chat *c, text_buffer *out, span_vector *generated);

/* The text of the whole conversation, and which parts of it the assistant responds with: its {% generation %} blocks,
 * or, in a template without them, what each of its messages adds to the conversation before it with a generation
 * prompt. An error where a template renders earlier messages otherwise when more follow: then that cannot be told. */
fsdp_status chat_template_responses(const chat_template *t, const chat *c, text_buffer *out, span_vector *responses);

#endif
