/* Parts of a text give the ids of the whole: for random tokenizers (every kind of normalizer, pre-tokenizer, added
 * token and model, thrown together) at every place where they say that a text may be cut, and for real ones on long
 * files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/host/environment.h"
#include "base/rng.h"
#include "base/scratch.h"
#include "data/files.h"
#include "tokenizer/tokenizer_internal.h"
#include "format/token/token_file.h"

typedef struct draw {
    rng_key key;
    uint64_t n;
} draw;

static uint32_t pick(draw *d, uint32_t below)
{
    return (uint32_t)(rng_word(d->key, 0, d->n++) % below);
}

#define ONE_OF(d, list) (list)[pick(d, sizeof(list) / sizeof *(list))]

/* --- random tokenizers ------------------------------------------------------------------------------------------- */

/* Steps as tokenizer.json has them; those that cutting must be refused for are among them. */
static const char *const normalizers[] = {
    "{\"type\":\"NFC\"}",
    "{\"type\":\"NFD\"}",
    "{\"type\":\"NFKC\"}",
    "{\"type\":\"Lowercase\"}",
    "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}",
    "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}",
    "{\"type\":\"StripAccents\"}",
    "{\"type\":\"Nmt\"}",
    "{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"}",
    "{\"type\":\"Prepend\",\"prepend\":\"b\"}",
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}",
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}",
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"!!\"},\"content\":\" \"}",
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"b a\"},\"content\":\"e\"}",
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"b\"},\"content\":\" \"}",
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\\\\s\"},\"content\":\"c\"}",
    "{\"type\":\"ByteLevel\"}",
};

static const char *const pretokenizers[] = {
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\",\"split\":true}",
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"never\",\"split\":true}",
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\",\"split\":false}",
    "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":false}",
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\",\"split\":true}",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}",
    "{\"type\":\"Whitespace\"}",
    "{\"type\":\"WhitespaceSplit\"}",
    "{\"type\":\"Digits\",\"individual_digits\":true}",
    "{\"type\":\"Punctuation\",\"behavior\":\"MergedWithPrevious\"}",
    "{\"type\":\"BertPreTokenizer\"}",
    "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\" \"}",
    "{\"type\":\"FixedLength\",\"length\":3}",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithNext\",\"invert\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\",\"invert\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Contiguous\",\"invert\":true}",
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a b|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
    "\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":"
    "\"Isolated\",\"invert\":false}",
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|"
    "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":"
    "\"Removed\",\"invert\":true}",
};

static const char *const added[] = {"<x>", "a b", "ab", " ", "\\n", "b ", " c", "\xE2\x96\x81", "  ", "!!"};

/* What texts are made of. */
static const char *const fragments[] = {
    " ",
    "  ",
    "\\n",
    "\\n\\n",
    "\\r\\n",
    "\\t",
    "a",
    "b",
    "c",
    "ab",
    "d",
    "A",
    "e\xCC\x81",
    "\xC3\xA9",
    "\xC3\x89",
    "'s",
    "'ll",
    "1",
    "234",
    "!",
    "!!",
    ".",
    "<x>",
    "\xE4\xB8\xAD",
    "\xE6\x96\x87",
    "\xE2\x96\x81",
    "\xEF\xBC\xA1",
    "\xCE\xA3",
    "\xD0\xB6",
    "\xC4\xA0",
    "_",
    "_a",
    "a b",
    "b\\na",
    "\xE0\xB5\x8E",
    "\xC2\xA0",
};

/* The alphabet of the models, as JSON. */
static const char *const letters[] = {"a",        "b",        "c",
                                      "d",        "e",        "\xC3\xA9",
                                      "'",        "s",        "l",
                                      "1",        "2",        "3",
                                      "4",        "!",        ".",
                                      " ",        "\\n",      "\xE2\x96\x81",
                                      "\xC4\xA0", "\xC4\x8A", "\xE4\xB8\xAD",
                                      "_",        "A"};

enum { N_LETTERS = sizeof letters / sizeof *letters, MAX_TOKENS = 80, ROOM = 64 << 10 };

typedef struct words {
    char text[MAX_TOKENS][64];
    int n;
} words;

static int find_word(const words *w, const char *text)
{
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->text[i], text) == 0)
            return i;
    return -1;
}

static size_t add(char *json, size_t used, const char *text)
{
    assert_true(used + strlen(text) < ROOM);
    strcpy(json + used, text);
    return used + strlen(text);
}

static size_t add_list(draw *d, char *json, size_t used, const char *head, const char *const *from, uint32_t n_from,
                       uint32_t most)
{
    uint32_t n = pick(d, most + 1);
    used = add(json, used, head);
    for (uint32_t i = 0; i < n; i++) {
        used = add(json, used, i ? "," : "");
        used = add(json, used, from[pick(d, n_from)]);
    }
    return add(json, used, "]}");
}

static size_t add_added_tokens(draw *d, char *json, size_t used)
{
    char entry[256];
    uint32_t n = pick(d, 3);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = pick(d, 5) == 0 ? pick(d, 16) : pick(d, 2);
        snprintf(entry, sizeof entry,
                 "%s{\"content\":\"%s\",\"normalized\":%s,\"single_word\":%s,\"lstrip\":%s,\"rstrip\":%s}",
                 i ? "," : "", ONE_OF(d, added), bits & 1 ? "true" : "false", bits & 2 ? "true" : "false",
                 bits & 4 ? "true" : "false", bits & 8 ? "true" : "false");
        used = add(json, used, entry);
    }
    return used;
}

/* Merges of random pairs; some join letters over a space, which forbids cuts where words are not cut. */
static size_t add_bpe(draw *d, char *json, size_t used)
{
    words w = {.n = 0};
    char merges[ROOM / 2] = "", entry[256];
    size_t merges_used = 0;
    for (; w.n < N_LETTERS; w.n++)
        strcpy(w.text[w.n], letters[w.n]);
    int n_merges = (int)pick(d, MAX_TOKENS - N_LETTERS), first = 1;
    bool crossing = pick(d, 2);
    for (int i = 0; i < n_merges; i++) {
        const char *left = w.text[pick(d, (uint32_t)w.n)], *right = w.text[pick(d, (uint32_t)w.n)];
        char whole[64] = "";
        if (strlen(left) + strlen(right) > 24 || (!crossing && strstr(right, "\xE2\x96\x81")))
            continue;
        strcat(strcat(whole, left), right);
        if (find_word(&w, whole) >= 0)
            continue;
        snprintf(entry, sizeof entry, "%s[\"%s\",\"%s\"]", first ? "" : ",", left, right);
        merges_used = add(merges, merges_used, entry);
        strcpy(w.text[w.n++], whole);
        first = 0;
    }
    used = add(json, used, "\"model\":{\"type\":\"BPE\",\"unk_token\":\"!\",\"fuse_unk\":");
    used = add(json, used, pick(d, 2) ? "true" : "false");
    used = add(json, used, ",\"ignore_merges\":");
    used = add(json, used, pick(d, 4) == 0 ? "true" : "false");
    if (pick(d, 6) == 0)
        used = add(json, used, ",\"end_of_word_suffix\":\"a\"");
    used = add(json, used, ",\"vocab\":{");
    for (int i = 0; i < w.n; i++) {
        snprintf(entry, sizeof entry, "%s\"%s\":%d", i ? "," : "", w.text[i], i);
        used = add(json, used, entry);
    }
    used = add(json, used, "},\"merges\":[");
    used = add(json, used, merges);
    return add(json, used, "]}");
}

static size_t add_unigram(draw *d, char *json, size_t used)
{
    words w = {.n = 0};
    char entry[256];
    used = add(json, used, "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0]");
    for (int i = 0; i < 40; i++) {
        char whole[64] = "";
        for (uint32_t k = 0; k <= pick(d, 3); k++)
            strcat(whole, ONE_OF(d, letters));
        if (find_word(&w, whole) >= 0)
            continue;
        strcpy(w.text[w.n++], whole);
        snprintf(entry, sizeof entry, ",[\"%s\",-%u.%u]", whole, 1 + pick(d, 9), pick(d, 1000));
        used = add(json, used, entry);
    }
    return add(json, used, "]}");
}

static char *random_tokenizer(draw *d)
{
    static const char *const templates[] = {
        "null", "{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",1]}",
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{\"Sequence\":{\"id\":\"A\"}}],"
        "\"special_tokens\":{}}"};
    char *json = calloc(1, ROOM);
    size_t used = add(json, 0, "{\"version\":\"1.0\",\"added_tokens\":[");
    used = add_added_tokens(d, json, used);
    used = add_list(d, json, used, "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", normalizers,
                    sizeof normalizers / sizeof *normalizers, 2);
    used = add_list(d, json, used, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[", pretokenizers,
                    sizeof pretokenizers / sizeof *pretokenizers, 2);
    used = add(json, used, ",\"post_processor\":");
    used = add(json, used, templates[pick(d, 8) == 0 ? 2 : pick(d, 2)]);
    used = add(json, used, ",");
    used = pick(d, 3) ? add_bpe(d, json, used) : add_unigram(d, json, used);
    add(json, used, "}");
    return json;
}

/* The fragments are JSON: line breaks and the like become themselves here. */
static size_t random_text(draw *d, char *text, size_t room)
{
    size_t used = 0;
    bool plain = pick(d, 2); /* mostly words with single spaces, so that there are places */
    while (used + 16 < room) {
        const char *f =
            plain && pick(d, 4) ? (const char *[]){"a", "b", "ab", "c", " ", "\\n"}[pick(d, 6)] : ONE_OF(d, fragments);
        for (; *f; f++) {
            bool escape = *f == '\\';
            f += escape;
            text[used++] = !escape ? *f : *f == 'n' ? '\n' : *f == 'r' ? '\r' : '\t';
        }
        if (pick(d, 40) == 0)
            text[used++] = (char)0xE4; /* not UTF-8 */
    }
    text[used] = '\0';
    return used;
}

/* --- comparing --------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    long tokenizers, with_places, places, refused;
} outcome;

static fsdp_status encode(fsdp_tokenizer *t, const char *text, size_t bytes, int part, id_vector *to)
{
    const int32_t *ids;
    size_t n;
    FSDP_TRY(tokenizer_encode_part(t, text, bytes, part, &ids, &n));
    return id_append_all(to, ids, n);
}

/* Cuts at every place by itself, then at all of them at once. */
static long compare(fsdp_tokenizer *t, const char *text, size_t bytes, const char *json)
{
    id_vector whole = {0}, parts = {0}, all = {0};
    size_t place = 0, before = 0;
    long places = 0;
    if (encode(t, text, bytes, TOKENIZER_FRONT | TOKENIZER_BACK, &whole) != FSDP_OK)
        return 0;
    for (;; places++) {
        assert_int_equal(text_cut_place(t, text, bytes, place + 1, &place), FSDP_OK);
        if (place == bytes)
            break;
        parts.n = 0;
        assert_int_equal(encode(t, text, place, TOKENIZER_FRONT, &parts), FSDP_OK);
        assert_int_equal(encode(t, text + place, bytes - place, TOKENIZER_CONTINUES | TOKENIZER_BACK, &parts), FSDP_OK);
        if (parts.n != whole.n || memcmp(parts.data, whole.data, whole.n * sizeof *whole.data) != 0)
            fail_msg("cut at %zu of:\n%s\ngives other ids with\n%s", place, text, json);
        assert_int_equal(encode(t, text + before, place - before, before ? TOKENIZER_CONTINUES : TOKENIZER_FRONT, &all),
                         FSDP_OK);
        before = place;
    }
    if (places > 0) {
        assert_int_equal(encode(t, text + before, bytes - before, TOKENIZER_CONTINUES | TOKENIZER_BACK, &all), FSDP_OK);
        assert_int_equal(all.n, whole.n);
        assert_memory_equal(all.data, whole.data, whole.n * sizeof *whole.data);
    }
    id_free(&whole);
    id_free(&parts);
    id_free(&all);
    return places;
}

static void try_tokenizer(draw *d, outcome *o)
{
    char text[400], *json = random_tokenizer(d);
    tokenizer_tables *tables = NULL;
    fsdp_tokenizer *t = NULL;
    json_error_t error;
    json_t *root = json_loads(json, 0, &error);
    if (root == NULL)
        fail_msg("%s in %s", error.text, json);
    if (tokenizer_tables_read("random", root, &tables) == FSDP_OK) {
        long places = 0;
        assert_int_equal(tokenizer_new(tables, &t), FSDP_OK);
        for (int i = 0; i < 8; i++) {
            size_t bytes = random_text(d, text, sizeof text);
            places += compare(t, text, bytes, json);
        }
        o->tokenizers++;
        o->with_places += places > 0;
        o->places += places;
    } else {
        o->refused++;
    }
    fsdp_tokenizer_free(t);
    json_decref(root);
    free(json);
}

static void parts_give_the_ids_of_the_whole_for_random_tokenizers(void **state)
{
    (void)state;
    outcome o = {0};
    draw d = {.key = rng_key_make(20)};
    for (int i = 0; i < 400; i++)
        try_tokenizer(&d, &o);
    print_message("%ld tokenizers, %ld of which cut, %ld places; %ld refused\n", o.tokenizers, o.with_places, o.places,
                  o.refused);
    assert_true(o.tokenizers > 300 && o.with_places > 40 && o.places > 5000);
}

/* --- real tokenizers --------------------------------------------------------------------------------------------- */

static const char *long_text(void **state, size_t *bytes, char **text)
{
    enum { BYTES = 300000 };
    draw d = {.key = rng_key_make(7)};
    *text = malloc(BYTES + 64);
    *bytes = 0;
    while (*bytes < BYTES) {
        static const char *const pieces[] = {"the",  "quick", "brown", "fox,",        "jumps",
                                             "over", "it's",  "1234",  "caf\xC3\xA9", "\xE4\xB8\xAD\xE6\x96\x87",
                                             "end.", "\n",    "\n\n",  "  two",       "don't"};
        *bytes += (size_t)sprintf(*text + *bytes, "%s%s", ONE_OF(&d, pieces), pick(&d, 6) ? " " : "\n");
    }
    return files_write(*state, "long.txt", *text, *bytes);
}

/* The tokens of a file are those of its text, however it is cut inside, with the end token behind. */
static void expect_file_tokens(void **state, fsdp_tokenizer *t, const char *input, const char *text, size_t bytes)
{
    const char *output = files_path(*state, "long.bin");
    fsdp_tokenize_config c = FSDP_TOKENIZE_CONFIG_INIT;
    token_file *file = NULL;
    const int32_t *ids;
    size_t n;
    c.inputs = &input;
    c.n_inputs = 1;
    c.output = output;
    c.n_threads = 3;
    assert_int_equal(fsdp_tokenize_files(t, &c, NULL), FSDP_OK);
    assert_int_equal(token_file_open(output, &file), FSDP_OK);
    assert_int_equal(token_file_documents(file), 1);
    assert_int_equal(fsdp_tokenizer_encode(t, text, bytes, true, &ids, &n), FSDP_OK);
    bool ended = fsdp_tokenizer_eos(t) < 0 || ids[n - 1] == fsdp_tokenizer_eos(t);
    assert_int_equal(token_file_count(file), (int64_t)n + !ended);
    int32_t *read = malloc((n + 1) * sizeof *read);
    assert_int_equal(token_file_read(file, 0, token_file_count(file), read), FSDP_OK);
    assert_memory_equal(read, ids, n * sizeof *ids);
    free(read);
    token_file_close(file);
}

static void long_files_have_the_tokens_of_their_text(void **state)
{
    static const char *const names[] = {"tokenizer_llama2", "tokenizer_llama3", "tokenizer_t5"};
    const char *root = environment_text("FSDP_GOLDEN_DIR");
    char *text = NULL, path[4096];
    size_t bytes;
    const char *input = long_text(state, &bytes, &text);
    fsdp_tokenizer *t = NULL;
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    expect_file_tokens(state, t, input, text, bytes);
    fsdp_tokenizer_free(t);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", root ? root : FSDP_GOLDEN_DEFAULT, names[i]);
        if (!file_is_directory(path))
            continue;
        assert_int_equal(fsdp_tokenizer_load(path, &t), FSDP_OK);
        assert_true(t->tables->cuts.at_spaces);
        expect_file_tokens(state, t, input, text, bytes);
        fsdp_tokenizer_free(t);
    }
    free(text);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(parts_give_the_ids_of_the_whole_for_random_tokenizers),
        TEST(long_files_have_the_tokens_of_their_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
