/* The manifest reader: what it takes comes back as it was printed, what it refuses is named. Bytes that nobody would
 * write are the fuzzer's (tests/fuzz/fuzz_manifest.c). */
#include "ckpt/fixture.h"

#include "ckpt/format/manifest.h"

#define HEAD "{\"format\": \"fsdp-checkpoint\", \"version\": 1, \"kind\": \"sharded\", \"step\": 3, \"world_size\": 2, "
#define FILES "\"files\": [{\"name\": \"rank-00000.safetensors\", \"bytes\": 100}], "
#define PIECE(first, count) "[0, " #first ", " #count ", \"0123456789abcdef\"]"
#define TENSOR(shape, pieces)                                                                                          \
    "{\"name\": \"w\", \"role\": \"parameter\", \"shape\": " shape ", \"pieces\": [" pieces "]}"
#define TENSORS(list) "\"tensors\": [" list "]"
#define GOOD_TENSOR TENSOR("[2, 3]", PIECE(0, 2) ", " PIECE(2, 4))

#define WITH_EXTRA(fields) HEAD FILES TENSORS(GOOD_TENSOR) ", \"extra\": {" fields "}}"

static fsdp_status parse(const char *text, manifest **out)
{
    return manifest_parse("checkpoint.json", text, strlen(text), out);
}

static void what_is_printed_reads_back_the_same(void **state)
{
    (void)state;
    static const uint8_t choices[] = {0, 1, 0x7f, 0x80, 0xff};
    manifest *m, *again;
    char *text, *second;
    size_t bytes, second_bytes;
    assert_ok(parse(HEAD "\"strategy\": \"hybrid\", " FILES TENSORS(
                        GOOD_TENSOR) ", \"extra\": {\"lr\": 0.1}, \"ranks\": [null, {\"a\": 1}]}",
                    &m));
    assert_int_equal(m->autotune_bytes, 0);
    m->autotune = choices;
    m->autotune_bytes = sizeof choices;
    assert_ok(manifest_print(m, &text, &bytes));
    assert_ok(manifest_parse("printed", text, bytes, &again));
    assert_int_equal(again->step, 3);
    assert_int_equal(again->world_size, 2);
    assert_string_equal(again->strategy, "hybrid");
    assert_int_equal(again->tensors[0].n_pieces, 2);
    assert_int_equal(again->tensors[0].pieces[1].checksum, 0x0123456789abcdef);
    assert_true(json_equal(again->extra, m->extra));
    assert_int_equal(again->autotune_bytes, sizeof choices);
    assert_memory_equal(again->autotune, choices, sizeof choices);
    assert_ok(manifest_print(again, &second, &second_bytes));
    assert_int_equal(bytes, second_bytes);
    assert_memory_equal(text, second, bytes);
    free(second);
    free(text);
    manifest_free(again);
    manifest_free(m);
}

typedef struct refusal {
    const char *text, *reason;
} refusal;

static const refusal refusals[] = {
    {"[]", "format"},
    {"{\"format\": \"zip\"}", "\"format\" is \"zip\""},
    {"{\"format\": \"fsdp-checkpoint\", \"version\": 0}", "this program reads version 1"},
    {"{\"format\": \"fsdp-checkpoint\", \"version\": 1, \"kind\": \"half\"}", "\"half\" is not a kind of checkpoint"},
    {HEAD "\"files\": [{\"name\": \"../x\", \"bytes\": 1}]}", "file \"../x\""},
    {HEAD "\"files\": [{\"name\": \"x\", \"bytes\": -1}]}", "file \"x\" of -1 bytes"},
    {HEAD FILES "\"tensors\": 7}", "\"tensors\" is missing or not an array"},
    {HEAD FILES TENSORS(TENSOR("[-1]", "")) "}", "its shape is no list of sizes"},
    {HEAD FILES TENSORS(TENSOR("[4294967296, 4294967296]", "")) "}", "or too large"},
    {HEAD FILES TENSORS(TENSOR("[2, 3]", PIECE(0, 2))) "}", "elements from 2 on are missing"},
    {HEAD FILES TENSORS(TENSOR("[2, 3]", PIECE(0, 2) ", " PIECE(1, 5))) "}", "elements from 1 on are there twice"},
    {HEAD FILES TENSORS(TENSOR("[2, 3]", PIECE(0, 7))) "}", "does not lie within its 6"},
    {HEAD FILES TENSORS(TENSOR("[2]", "[1, 0, 2, \"0123456789abcdef\"]")) "}", "lies in file 1, there are 1"},
    {HEAD FILES TENSORS(TENSOR("[2]", "[0, 0, 2, \"0123456789ABCDEF\"]")) "}", "\"checksum\"]"},
    {HEAD FILES TENSORS(GOOD_TENSOR ", " GOOD_TENSOR) "}", "parameter w is there twice"},
    {HEAD FILES TENSORS(GOOD_TENSOR) ", \"extra\": []}", "\"extra\" must be an object"},
    {"{\"format\": \"fsdp-checkpoint\", \"version\": 1, \"kind\": \"full\", \"step\": 9223372036854775807}",
     "\"step\" is"},
    {"{\"format\": \"fsdp-checkpoint\", \"version\": 1, \"kind\": \"full\", \"step\": 1, \"world_size\": 16777216}",
     "\"world_size\" is 16777216"},
    {WITH_EXTRA("\"step\": 4"), "is of step 3, but its training state is of step 4"},
    {WITH_EXTRA("\"step\": -1"), "\"step\" of \"extra\" is -1"},
    {WITH_EXTRA("\"step\": 9223372036854775807"), "\"step\" of \"extra\" is"},
    {WITH_EXTRA("\"step\": 3.0"), "\"step\" of \"extra\" is 3"},
    {WITH_EXTRA("\"position\": -2"), "\"position\" of \"extra\" is -2"},
    {WITH_EXTRA("\"position\": 9223372036854775807"), "\"position\" of \"extra\" is"},
    {WITH_EXTRA("\"optimizer_steps\": -1"), "\"optimizer_steps\" of \"extra\" is -1"},
    {WITH_EXTRA("\"good_steps\": 9223372036854775807"), "\"good_steps\" of \"extra\" is"},
    {WITH_EXTRA("\"micro_batches\": -7"), "\"micro_batches\" of \"extra\" is -7"},
    {WITH_EXTRA("\"loss_scale\": -1.5"), "\"loss_scale\" of \"extra\" is -1.5"},
    {WITH_EXTRA("\"loss_scale\": 0"), "\"loss_scale\" of \"extra\" is 0"},
    {WITH_EXTRA("\"loss_scale\": 1e300"), "\"loss_scale\" of \"extra\" is"},
    {WITH_EXTRA("\"expected_count\": \"many\""), "\"expected_count\" of \"extra\" is"},
    {WITH_EXTRA("\"base\": {}"), "\"base\" of \"extra\" has no name"},
    {WITH_EXTRA("\"base\": 1"), "\"base\" of \"extra\" has no name"},
    {WITH_EXTRA("\"base\": {\"name\": \"m\", \"digest\": \"0123456789abcdeF\", \"tensors\": [\"w\"]}"),
     "has no digest"},
    {WITH_EXTRA("\"base\": {\"name\": \"m\", \"digest\": \"0123456789abcdef\", \"tensors\": []}"), "has no names"},
    {WITH_EXTRA("\"base\": {\"name\": \"m\", \"digest\": \"0123456789abcdef\", \"tensors\": [\"w\", 1]}"),
     "whose name is no text"},
    {HEAD FILES TENSORS(GOOD_TENSOR) ", \"beside\": 3}", "\"beside\" is not an array"},
    {HEAD FILES TENSORS(
         GOOD_TENSOR) ", \"beside\": [{\"name\": \"../x\", \"bytes\": 1, \"checksum\": \"0123456789abcdef\"}]}",
     "file \"../x\" beside"},
    {HEAD FILES TENSORS(GOOD_TENSOR) ", \"choices\": \"abc\"}", "\"choices\" is not"},
    {HEAD FILES TENSORS(GOOD_TENSOR) ", \"choices\": \"AB\"}", "\"choices\" is not"},
    {HEAD FILES TENSORS(GOOD_TENSOR) ", \"choices\": 5}", "choices"},
};

static void every_contradiction_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        manifest *m = NULL;
        assert_fails(FSDP_ERR_INPUT, parse(refusals[i].text, &m), "checkpoint.json", refusals[i].reason);
        assert_null(m);
    }
}

static void a_version_of_the_future_is_refused_as_such(void **state)
{
    (void)state;
    manifest *m;
    assert_fails(FSDP_ERR_UNSUPPORTED, parse("{\"format\": \"fsdp-checkpoint\", \"version\": 2}", &m),
                 "format version 2; this program reads version 1");
}

/* What docs/checkpoint-format.md promises to those who add fields. */
static void unknown_fields_are_ignored(void **state)
{
    (void)state;
    manifest *m;
    assert_ok(parse(HEAD FILES TENSORS(GOOD_TENSOR) ", \"weather\": {\"rain\": true}}", &m));
    manifest_free(m);
}

static void a_state_with_too_many_choices_is_refused(void **state)
{
    (void)state;
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    f->state.autotune = "x";
    f->state.autotune_bytes = CKPT_MAX_AUTOTUNE_BYTES + 1;
    assert_fails(FSDP_ERR_STATE, ckpt_state_check(&f->state), "4194305 bytes of autotuned kernels");
    f->state.autotune = NULL;
    f->state.autotune_bytes = 1;
    assert_fails(FSDP_ERR_STATE, ckpt_state_check(&f->state), "1 bytes of autotuned kernels");
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_printed_reads_back_the_same),
        cmocka_unit_test(every_contradiction_is_refused_by_name),
        cmocka_unit_test(a_version_of_the_future_is_refused_as_such),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(a_state_with_too_many_choices_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
