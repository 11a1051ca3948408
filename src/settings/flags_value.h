/* Values of flags: text into a field and back. For the files of src/train/flags*.c. */
#ifndef SETTINGS_FLAGS_VALUE_H
#define SETTINGS_FLAGS_VALUE_H

#include <jansson.h>

#include <fsdp/flags.h>

/* Names are equal when they differ only in dashes against underscores, and choices also in case. */
bool flags_same_name(const char *a, const char *b, size_t b_length, bool ignore_case);
/* Whether `word` is one of `words`, which spaces separate (NULL: none). */
bool flags_has_word(const char *words, const char *word, bool ignore_case);

/* The choice of that name; NULL when there is none. */
const fsdp_choice *flags_choice(const fsdp_flag *flag, const char *text);
/* Whether `text` is a word that a switch takes, and which. */
bool flags_switch(const char *text, bool *out);

/* Stores `text` in the field of `flag`. FSDP_ERR_INPUT, with the flag named, when it is not what the flag takes. */
fsdp_status flags_store(const fsdp_flag *flag, void *values, fsdp_flag_state *state, const char *text);
/* Stores a list of texts that are already apart. */
fsdp_status flags_store_list(const fsdp_flag *flag, void *values, fsdp_flag_state *state, const char *const *items,
                             int n);

/* What fsdp_flags_read does with the text of a file; `text` has a NUL after its `bytes` and is modified. */
fsdp_status flags_read_text(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                            const char *path, char *text, size_t bytes);

/* A JSON value as the command line would spell it: its own text, or one in `room`; NULL for null, lists and objects. */
enum { FLAGS_NUMBER = 40 };
const char *flags_json_text(const json_t *value, char room[FLAGS_NUMBER]);

/* FSDP_ERR_INPUT names the first text that is not UTF-8: JSON cannot hold it, fsdp_flags_json would lose it. */
fsdp_status flags_check_texts(const fsdp_flag *table, const void *values);

#endif
