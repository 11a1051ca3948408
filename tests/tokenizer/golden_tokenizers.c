/* Compares a tokenizer with reference vectors: golden_tokenizers FOLDER, where FOLDER holds tokenizer.json and
 * vectors.jsonl (text, ids, ids_plain, decoded, decoded_raw; perhaps any_ids, any_decoded). Prints what differs; exits
 * 0 only when nothing does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <fsdp/tokenizer.h>

static int differ(size_t line, const char *field)
{
    printf("line %zu: %s differs\n", line, field);
    return 1;
}

static int check_ids(fsdp_tokenizer *t, const json_t *vector, size_t line, const char *field, bool special)
{
    const json_t *text = json_object_get(vector, "text"), *expected = json_object_get(vector, field);
    const int32_t *ids;
    size_t n;
    if (fsdp_tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, &n) != FSDP_OK) {
        printf("line %zu: %s\n", line, fsdp_last_error());
        return 1;
    }
    if (n != json_array_size(expected))
        return differ(line, field);
    for (size_t i = 0; i < n; i++)
        if (ids[i] != json_integer_value(json_array_get(expected, i)))
            return differ(line, field);
    return 0;
}

static int check_text(fsdp_tokenizer *t, const json_t *vector, size_t line, const char *ids_field, const char *field,
                      bool skip_special)
{
    const json_t *list = json_object_get(vector, ids_field), *expected = json_object_get(vector, field);
    size_t n = json_array_size(list), bytes;
    const char *text;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (ids == NULL)
        return differ(line, "memory");
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    int failed = fsdp_tokenizer_decode(t, ids, n, skip_special, &text, &bytes) != FSDP_OK ||
                 bytes != json_string_length(expected) || memcmp(text, json_string_value(expected), bytes) != 0;
    free(ids);
    return failed ? differ(line, field) : 0;
}

static int check_vector(fsdp_tokenizer *t, const json_t *vector, size_t line)
{
    return check_ids(t, vector, line, "ids", true) + check_ids(t, vector, line, "ids_plain", false) +
           check_text(t, vector, line, "ids", "decoded", true) +
           check_text(t, vector, line, "ids", "decoded_raw", false) +
           (json_object_get(vector, "any_ids") == NULL ? 0
                                                       : check_text(t, vector, line, "any_ids", "any_decoded", false));
}

int main(int argc, char **argv)
{
    fsdp_tokenizer *tokenizer;
    char path[4096], *line = NULL;
    size_t capacity = 0, n = 0;
    int failures = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    if (fsdp_tokenizer_load(argv[1], &tokenizer) != FSDP_OK) {
        fprintf(stderr, "%s\n", fsdp_last_error());
        return 1;
    }
    snprintf(path, sizeof path, "%s/vectors.jsonl", argv[1]);
    FILE *file = fopen(path, "r");
    for (ssize_t got; file != NULL && (got = getline(&line, &capacity, file)) > 0;) {
        json_t *vector = json_loadb(line, (size_t)got, JSON_ALLOW_NUL, NULL);
        failures += vector == NULL ? differ(n + 1, "JSON") : check_vector(tokenizer, vector, n + 1);
        json_decref(vector);
        n++;
    }
    if (file != NULL)
        fclose(file);
    free(line);
    fsdp_tokenizer_free(tokenizer);
    printf("%s: %zu vectors, %d differences\n", argv[1], n, failures);
    return n > 0 && failures == 0 ? 0 : 1;
}
