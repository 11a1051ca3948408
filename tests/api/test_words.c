/* Small things that programs print, parse and ask: names of types, states and strategies, tokens, log lines, the place
 * of a rank. */
#include "api/support_ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void types_have_one_name_each_and_are_found_by_all_spellings(void **state)
{
    (void)state;
    fsdp_dtype found;
    for (int i = 0; i < FSDP_DTYPE_COUNT; i++) {
        assert_true(fsdp_dtype_size((fsdp_dtype)i) >= 1 && fsdp_dtype_size((fsdp_dtype)i) <= 8);
        assert_int_equal(fsdp_dtype_parse(fsdp_dtype_name((fsdp_dtype)i), &found), FSDP_OK);
        assert_int_equal(found, i);
    }
    assert_string_equal(fsdp_dtype_safetensors_name(FSDP_BF16), "BF16");
    assert_int_equal(fsdp_dtype_parse("torch.bfloat16", &found), FSDP_OK);
    assert_int_equal(found, FSDP_BF16);
    assert_int_equal(fsdp_dtype_parse("bf17", &found), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "bf17"));
    assert_int_equal(found, FSDP_BF16); /* as it was */
}

static void strategies_have_names_that_can_be_parsed(void **state)
{
    (void)state;
    fsdp_strategy found;
    for (int i = 0; i < FSDP_STRATEGY_COUNT; i++) {
        assert_int_equal(fsdp_strategy_parse(fsdp_strategy_name((fsdp_strategy)i), &found), FSDP_OK);
        assert_int_equal(found, i);
    }
    assert_int_equal(fsdp_strategy_parse("half_shard", &found), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "half_shard"));
}

static void failures_have_a_word_and_an_exit_code(void **state)
{
    (void)state;
    for (int i = FSDP_OK; i <= FSDP_ERR_DEVICE; i++) {
        for (int j = FSDP_OK; j < i; j++)
            assert_string_not_equal(fsdp_status_name((fsdp_status)i), fsdp_status_name((fsdp_status)j));
    }
    assert_int_equal(fsdp_exit_code(FSDP_OK), 0);
    assert_int_equal(fsdp_exit_code(FSDP_ERR_INPUT), 2);
    assert_int_equal(fsdp_exit_code(FSDP_ERR_UNSUPPORTED), 2);
    assert_int_equal(fsdp_exit_code(FSDP_ERR_PEER), 1);
}

/* ---- Tokens ---- */

static void bytes_are_tokens_of_themselves(void **state)
{
    (void)state;
    fsdp_tokenizer *first, *second;
    const int32_t *ids;
    const char *text;
    size_t n, bytes;
    assert_int_equal(fsdp_tokenizer_byte(&first), FSDP_OK);
    assert_int_equal(fsdp_tokenizer_share(first, &second), FSDP_OK);
    fsdp_tokenizer_free(first); /* in any order */
    assert_int_equal(fsdp_tokenizer_encode(second, "h\xc3\xa9", 3, false, &ids, &n), FSDP_OK);
    assert_int_equal(n, 3);
    assert_true(ids[0] == 'h' && ids[1] == 0xc3 && ids[2] == 0xa9);
    assert_int_equal(fsdp_tokenizer_decode(second, (int32_t[]){'h', 0xc3, 0xa9}, 3, true, &text, &bytes), FSDP_OK);
    assert_true(bytes == 3 && strcmp(text, "h\xc3\xa9") == 0);
    assert_int_equal(fsdp_tokenizer_vocab_size(second), 256);
    assert_int_equal(fsdp_tokenizer_eos(second), 0);
    fsdp_tokenizer_free(second);
    fsdp_tokenizer_free(NULL);
}

static void a_tokenizer_of_a_file_has_its_tokens(void **state)
{
    (void)state;
    static const char json[] =
        "{\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[UNK]\": 0, "
        "\"one\": 1, \"two\": 2, \"<s>\": 3, \"</s>\": 4}}, "
        "\"pre_tokenizer\": {\"type\": \"Whitespace\"}, \"added_tokens\": []}";
    static const char marks[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"pad_token\": \"[UNK]\"}";
    char folder[] = "/tmp/fsdp-words-XXXXXX", path[64];
    fsdp_tokenizer *tokenizer = NULL;
    const int32_t *ids;
    size_t n;
    assert_non_null(mkdtemp(folder));
    assert_int_not_equal(fsdp_tokenizer_load(folder, &tokenizer), FSDP_OK); /* nothing there yet */
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "special_tokens_map.json" : "tokenizer.json");
        FILE *f = fopen(path, "w");
        assert_true(f && fputs(i ? marks : json, f) >= 0 && fclose(f) == 0);
    }
    assert_int_equal(fsdp_tokenizer_load(folder, &tokenizer), FSDP_OK);
    assert_int_equal(fsdp_tokenizer_id(tokenizer, "two"), 2);
    assert_int_equal(fsdp_tokenizer_id(tokenizer, "three"), -1);
    assert_string_equal(fsdp_tokenizer_token(tokenizer, 1), "one");
    assert_null(fsdp_tokenizer_token(tokenizer, 99));
    assert_null(fsdp_tokenizer_token(tokenizer, -1));
    assert_int_equal(fsdp_tokenizer_bos(tokenizer), 3);
    assert_int_equal(fsdp_tokenizer_eos(tokenizer), 4);
    assert_int_equal(fsdp_tokenizer_pad(tokenizer), 0);
    assert_int_equal(fsdp_tokenizer_encode(tokenizer, "two three one", 13, true, &ids, &n), FSDP_OK);
    assert_true(n == 3 && ids[0] == 2 && ids[1] == 0 && ids[2] == 1);
    fsdp_tokenizer_free(tokenizer);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "special_tokens_map.json" : "tokenizer.json");
        unlink(path);
    }
    rmdir(folder);
}

/* ---- The process ---- */

typedef struct lines {
    int n;
    char last[256];
} lines;

static void keep_line(void *context, fsdp_log_level level, const char *line)
{
    lines *l = context;
    (void)level;
    l->n++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

/* Without a GPU, "auto" says why it takes the CPU: on level info. */
static fsdp_status open_automatically(fsdp_world **w)
{
    fsdp_world_config config = FSDP_WORLD_CONFIG_INIT;
    config.threads = 1;
    return fsdp_world_open(&config, w);
}

static void log_lines_go_where_the_program_says(void **state)
{
    (void)state;
    lines heard = {0};
    fsdp_world *w;
    if (access("/dev/nvidiactl", R_OK) == 0)
        skip(); /* with a GPU there is nothing to say */
    fsdp_log_set_sink(keep_line, &heard, FSDP_LOG_INFO);
    assert_int_equal(open_automatically(&w), FSDP_OK);
    fsdp_world_close(w);
    assert_true(heard.n >= 1);
    assert_non_null(strstr(heard.last, "using the CPU"));
    fsdp_log_set_sink(keep_line, &heard, FSDP_LOG_ERROR); /* less than that is not told */
    heard.n = 0;
    assert_int_equal(open_automatically(&w), FSDP_OK);
    fsdp_world_close(w);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    assert_int_equal(open_automatically(&w), FSDP_OK);
    fsdp_world_close(w);
    assert_int_equal(heard.n, 0);
}

static void the_library_says_what_it_is(void **state)
{
    (void)state;
    char cpu[256] = "";
    assert_true(strlen(fsdp_build_options()) > 3);
    assert_int_equal(fsdp_describe_cpu("portable", cpu, sizeof cpu), FSDP_OK);
    assert_true(strlen(cpu) > 3);
    assert_int_equal(fsdp_describe_cpu("abacus", cpu, sizeof cpu), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "abacus"));
}

static fsdp_status look_around(fsdp_world *w, void *context)
{
    (void)context;
    EXPECT(w, fsdp_world_size(w) == 3 && fsdp_world_local_rank(w) == fsdp_world_rank(w));
    EXPECT(w, fsdp_world_threads(w) == 1 && strlen(fsdp_world_description(w)) > 2);
    EXPECT(w, strcmp(fsdp_world_backend(w), ranks_are_on_gpu() ? "nccl" : "shm") == 0);
    EXPECT(w, strcmp(fsdp_world_device(w), ranks_are_on_gpu() ? "cuda" : "cpu") == 0);
    return FSDP_OK;
}

static void a_rank_knows_its_place(void **state)
{
    (void)state;
    assert_true(ranks_run(3, look_around, NULL));
}

/* The report goes to standard error, the signal stays what ends the process. */
static void crashes_are_reported_and_remain_crashes(void **state)
{
    (void)state;
    int ends[2], how = 0;
    char text[4096] = "";
    size_t used = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL); /* cmocka's is not the program's */
        fsdp_report_crashes();
        raise(SIGSEGV);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; used < sizeof text - 1 && (n = read(ends[0], text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!strstr(text, "Sanitizer"))
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV);
    assert_non_null(strstr(text, "SEGV"));
}

static void nothing_can_be_freed(void **state)
{
    (void)state;
    fsdp_dataset_free(NULL);
    fsdp_group_free(NULL);
    fsdp_loader_free(NULL);
    fsdp_memory_meter_free(NULL);
    fsdp_model_free(NULL);
    fsdp_module_free(NULL);
    fsdp_optimizer_free(NULL);
    fsdp_parameter_set_init(NULL, FSDP_INIT_ONE, 1);
    fsdp_state_close(NULL);
    fsdp_tokenizer_free(NULL);
    fsdp_world_abort(NULL);
    fsdp_world_close(NULL);
    assert_int_equal(fsdp_reshard(NULL, true), FSDP_OK);
}

/* ---- Shares ---- */

static void shares_cover_every_sample_once(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 23; n++) {
        for (int size = 1; size < 6; size++) {
            int64_t next = 0;
            for (int rank = 0; rank < size; rank++) {
                int64_t first, count;
                fsdp_sampler_share(n, rank, size, &first, &count);
                assert_int_equal(first, next);
                assert_true(count >= n / size && count <= n / size + 1);
                next += count;
            }
            assert_int_equal(next, n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_have_one_name_each_and_are_found_by_all_spellings),
        cmocka_unit_test(strategies_have_names_that_can_be_parsed),
        cmocka_unit_test(failures_have_a_word_and_an_exit_code),
        cmocka_unit_test(bytes_are_tokens_of_themselves),
        cmocka_unit_test(a_tokenizer_of_a_file_has_its_tokens),
        cmocka_unit_test(a_rank_knows_its_place),
        cmocka_unit_test(crashes_are_reported_and_remain_crashes),
        cmocka_unit_test(nothing_can_be_freed),
        cmocka_unit_test(shares_cover_every_sample_once),
        cmocka_unit_test(log_lines_go_where_the_program_says),
        cmocka_unit_test(the_library_says_what_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
