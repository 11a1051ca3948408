/* Loads tokenizer.json, and from the files beside it which tokens begin, end and pad. */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/hash.h"
#include "tokenizer/component.h"
#include "tokenizer/config_tokens.h"
#include "format/hub/hub.h"

enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORD_PIECE, MODEL_WORD_LEVEL };

static const component_kind models[] = {
    {"BPE", MODEL_BPE}, {"Unigram", MODEL_UNIGRAM}, {"WordPiece", MODEL_WORD_PIECE}, {"WordLevel", MODEL_WORD_LEVEL},
    {NULL, 0},
};

static fsdp_status read_model(const char *name, const json_t *object, tokenizer_tables *t)
{
    int kind = 0;
    if (!json_is_object(object))
        return error_set(FSDP_ERR_INPUT, "%s: there is no \"model\"; is this a tokenizer.json?", name);
    if (json_object_get(object, "type") != NULL)
        FSDP_TRY(component_find(name, "model", object, models, &kind));
    else if (json_is_array(json_object_get(object, "vocab")))
        kind = MODEL_UNIGRAM;
    else if (json_object_get(object, "merges") != NULL)
        kind = MODEL_BPE;
    else
        kind = json_object_get(object, "continuing_subword_prefix") != NULL ? MODEL_WORD_PIECE : MODEL_WORD_LEVEL;
    return kind == MODEL_BPE       ? bpe_create(name, object, &t->bpe)
           : kind == MODEL_UNIGRAM ? unigram_create(name, object, &t->unigram)
                                   : word_list_create(name, object, kind == MODEL_WORD_PIECE, &t->words);
}

/* Settings of the file that would change ids in ways a training set cannot want. */
static fsdp_status refuse_settings(const char *name, const json_t *root)
{
    static const char *const refused[] = {"truncation", "padding"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const json_t *value = json_object_get(root, refused[i]);
        if (value != NULL && !json_is_null(value))
            return error_set(FSDP_ERR_UNSUPPORTED, "%s: \"%s\" is set, which is not supported; set it to null", name,
                             refused[i]);
    }
    const char *version = json_string_value(json_object_get(root, "version"));
    if (version != NULL && strcmp(version, "1.0") != 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: tokenizer version \"%s\" is not known; 1.0 is", name, version);
    return FSDP_OK;
}

/* Byte-level words need not be spelled when the model can take bytes. */
static fsdp_status shorten_byte_level(tokenizer_tables *t)
{
    byte_alphabet alphabet;
    bool taken = false;
    if (t->bpe == NULL || !pretokenizer_spells_bytes(t->pretokenizer))
        return FSDP_OK;
    byte_alphabet_init(&alphabet);
    FSDP_TRY(bpe_take_bytes(t->bpe, &alphabet, &taken));
    if (taken)
        pretokenizer_keep_bytes(t->pretokenizer);
    return FSDP_OK;
}

/* Metaspace's "first" is about offsets in the text as given, which are not kept here; where a normalizer can move them
 * the answer would be a guess. */
static fsdp_status check_start(const char *name, const tokenizer_tables *t)
{
    size_t at = pretokenizer_asks_for_start(t->pretokenizer);
    if (at == 0 || (at == 1 && !normalizer_drops_front(t->normalizer)) || normalizer_is_empty(t->normalizer))
        return FSDP_OK;
    return error_set(FSDP_ERR_UNSUPPORTED,
                     "%s: Metaspace with prepend_scheme first after this normalizer is not supported", name);
}

/* The ids that are put around a text must be rows of an embedding too. */
static fsdp_status check_specials(const char *name, const tokenizer_tables *t, const vocabulary *model)
{
    int32_t end = vocabulary_end(model), added = vocabulary_end(added_tokens_vocabulary(t->added));
    end = added > end ? added : end;
    for (size_t i = 0; i < t->postprocessor.pieces.n; i++)
        if (t->postprocessor.pieces.data[i] >= end)
            return error_set(FSDP_ERR_INPUT, "%s: the post_processor uses id %d, but ids end at %d", name,
                             t->postprocessor.pieces.data[i], end - 1);
    return FSDP_OK;
}

static fsdp_status read_tables(const char *name, const json_t *root, tokenizer_tables *t)
{
    FSDP_TRY(refuse_settings(name, root));
    FSDP_TRY(unicode_create(&t->unicode));
    FSDP_TRY(read_model(name, json_object_get(root, "model"), t));
    FSDP_TRY(normalizer_create(name, json_object_get(root, "normalizer"), t->unicode, &t->normalizer));
    FSDP_TRY(pretokenizer_create(name, json_object_get(root, "pre_tokenizer"), t->unicode, &t->pretokenizer));
    FSDP_TRY(check_start(name, t));
    const vocabulary *model = tokenizer_tables_model(t);
    FSDP_TRY(
        added_tokens_create(name, json_object_get(root, "added_tokens"), model, t->normalizer, t->unicode, &t->added));
    FSDP_TRY(postprocessor_create(name, json_object_get(root, "post_processor"), &t->postprocessor));
    FSDP_TRY(check_specials(name, t, model));
    FSDP_TRY(decoder_create(name, json_object_get(root, "decoder"), t->unicode, &t->decoder));
    FSDP_TRY(shorten_byte_level(t));
    text_cuts_find(t);
    return FSDP_OK;
}

fsdp_status tokenizer_tables_read(const char *name, const json_t *root, tokenizer_tables **out)
{
    tokenizer_tables *t = calloc(1, sizeof *t);
    if (t == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    atomic_init(&t->n_handles, 1);
    t->bos = t->eos = t->pad = -1;
    fsdp_status status = read_tables(name, root, t);
    if (status != FSDP_OK) {
        tokenizer_tables_free(t);
        return status;
    }
    *out = t;
    return FSDP_OK;
}

/* --- begin, end, pad --------------------------------------------------------------------------------------------- */

/* Roles by the key of the configuration files, then by the names that such tokens usually have. */
typedef struct role {
    const char *key;
    const char *names[6];
} role;

enum { ROLE_BOS, ROLE_EOS, ROLE_PAD, N_ROLES };

static const role roles[N_ROLES] = {
    {"bos_token", {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", NULL}},
    {"eos_token", {"</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "<|eot_id|>", NULL}},
    {"pad_token", {"<pad>", "[PAD]", "<|finetune_right_pad_id|>", "<|pad|>", NULL}},
};

/* The content of "eos_token": a string, or an object with "content". */
static const char *token_content(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    const char *text = json_string_value(value);
    return text != NULL ? text : json_string_value(json_object_get(value, "content"));
}

static fsdp_status read_roles(const char *folder, const char *file, tokenizer_tables *t, int32_t ids[N_ROLES])
{
    json_t *config = NULL;
    char *path = file_join(folder, file);
    fsdp_status status = path == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory") : FSDP_OK;
    if (status == FSDP_OK && file_exists(path))
        status = json_read_file_as(path, JSON_AS_PYTHON | JSON_WITH_NUL, &config);
    for (int r = 0; r < N_ROLES && config != NULL; r++) {
        const char *content = token_content(config, roles[r].key);
        if (content != NULL && ids[r] < 0)
            ids[r] = tokenizer_tables_id(t, content, strlen(content));
    }
    json_decref(config);
    free(path);
    return status;
}

static fsdp_status find_roles(const char *folder, tokenizer_tables *t)
{
    int32_t ids[N_ROLES] = {-1, -1, -1};
    FSDP_TRY(read_roles(folder, "tokenizer_config.json", t, ids));
    FSDP_TRY(read_roles(folder, "special_tokens_map.json", t, ids));
    const vocabulary *added = added_tokens_vocabulary(t->added);
    for (int r = 0; r < N_ROLES; r++)
        for (size_t i = 0; ids[r] < 0 && roles[r].names[i] != NULL; i++)
            ids[r] = vocabulary_id(added, roles[r].names[i], strlen(roles[r].names[i]));
    t->bos = ids[ROLE_BOS];
    t->eos = ids[ROLE_EOS];
    t->pad = ids[ROLE_PAD];
    return FSDP_OK;
}

/* A hash of the file and of tokens that others list, which tells tokenizers apart where their tokens are cached. */
static fsdp_status fingerprint(const char *file, const json_t *appended, uint64_t *out)
{
    file_map map;
    hash_stream hash;
    char *more = json_array_size(appended) == 0 ? NULL : json_dumps(appended, JSON_COMPACT | JSON_SORT_KEYS);
    if (more == NULL && json_array_size(appended) > 0)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", file);
    fsdp_status status = file_map_open(file, &map);
    if (status != FSDP_OK) {
        free(more);
        return status;
    }
    hash_stream_start(&hash);
    hash_stream_add(&hash, map.data, map.bytes);
    if (more != NULL)
        hash_stream_add(&hash, more, strlen(more));
    free(more);
    *out = hash_stream_end(&hash);
    file_map_close(&map);
    return FSDP_OK;
}

static fsdp_status load(const char *file, const char *folder, fsdp_tokenizer **out)
{
    json_t *root = NULL, *appended = NULL;
    tokenizer_tables *tables = NULL;
    fsdp_status status;
    TRY_OR(done, json_read_file_as(file, JSON_UNIQUE_KEYS | JSON_WITH_NUL | JSON_AS_SERDE, &root));
    if (json_is_object(root))
        TRY_OR(done, config_tokens_add(folder, root, &appended));
    TRY_OR(done, tokenizer_tables_read(file, root, &tables));
    TRY_OR(done, find_roles(folder, tables));
    tables->folder = strdup(folder);
    if (tables->folder == NULL)
        TRY_OR(done, error_set(FSDP_ERR_MEMORY, "%s: out of memory", file));
    TRY_OR(done, fingerprint(file, appended, &tables->fingerprint));
    TRY_OR(done, tokenizer_new(tables, out));
    tables = NULL;
done:
    tokenizer_tables_free(tables);
    json_decref(appended);
    json_decref(root);
    return status;
}

static fsdp_status no_tokenizer(const char *folder)
{
    char *model = file_join(folder, "tokenizer.model");
    bool sentencepiece = model != NULL && file_exists(model);
    free(model);
    return error_set(FSDP_ERR_INPUT, "%s: the folder has no tokenizer.json%s", folder,
                     sentencepiece ? ", only a tokenizer.model; save it once with the tokenizers library" : "");
}

/* From a file, with its folder; or from a folder. */
static fsdp_status load_path(const char *path, fsdp_tokenizer **out)
{
    const char *slash = strrchr(path, '/');
    bool is_folder = file_is_directory(path);
    char *file = is_folder ? file_join(path, "tokenizer.json") : strdup(path);
    char *folder = is_folder ? strdup(path) : slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    fsdp_status status;
    if (file == NULL || folder == NULL)
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    else
        status = file_exists(file) ? load(file, folder, out) : no_tokenizer(folder);
    free(folder);
    free(file);
    return status;
}

fsdp_status fsdp_tokenizer_load(const char *path, fsdp_tokenizer **out)
{
    char *found = NULL;
    FSDP_TRY(hub_find(HUB_MODEL, path, NULL, &found));
    fsdp_status status = load_path(found, out);
    free(found);
    return status;
}
