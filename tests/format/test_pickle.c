/* Pickles are read as data: what torch.save writes is understood, and every other thing that a pickle can ask for is
 * refused by name, without effect. The hostile ones are files (tests/fuzz/corpus/pickle, written by
 * tests/pytorch/make_fixtures.py). */
#include "format/scratch.h"

#include <dirent.h>
#include <unistd.h>

#include "format/torch/names.h"
#include "format/torch/pickle.h"

#define BYTES(text) text, sizeof(text) - 1

static arena *memory;

static fsdp_status read_bytes(const char *data, size_t bytes, pickle_value **out)
{
    return pickle_read("test.pkl", data, bytes, torch_globals, memory, out, NULL);
}

static int set_up(void **state)
{
    (void)state;
    return arena_create(0, &memory) == FSDP_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    arena_free(memory);
    return 0;
}

static void read_corpus(const char *prefix, bool accepted, int at_least)
{
    char folder[1024];
    struct dirent *entry;
    int n = 0;
    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/pickle", getenv("FSDP_SOURCE"));
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    while ((entry = readdir(directory))) {
        pickle_value *value;
        char *path, *data;
        size_t bytes;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        path = file_join(folder, entry->d_name);
        assert_ok(file_read(path, &data, &bytes));
        bool read = read_bytes(data, bytes, &value) == FSDP_OK;
        if (read != accepted)
            fail_msg("%s was %s: %s", entry->d_name, read ? "read" : "refused", read ? "" : fsdp_last_error());
        if (!read)
            assert_non_null(strstr(fsdp_last_error(), "pickle refused at byte"));
        free(data);
        free(path);
        n++;
    }
    closedir(directory);
    assert_true(n >= at_least);
}

static void hostile_pickles_are_refused_without_effect(void **state)
{
    (void)state;
    read_corpus("refused", false, 60);
    assert_int_not_equal(access("fsdp-was-here", F_OK), 0);
}

static void unusual_but_harmless_pickles_are_read(void **state)
{
    (void)state;
    read_corpus("accepted", true, 8);
}

static void a_refusal_names_what_was_asked_for_and_where(void **state)
{
    (void)state;
    pickle_value *value;
    assert_int_equal(read_bytes(BYTES("\x80\x02}cos\nsystem\n."), &value), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "byte 3 (GLOBAL): it asks for os.system"));
    assert_int_equal(read_bytes(BYTES("\x80\x02ios\nsystem\n."), &value), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "byte 2 (INST)"));
}

static void numbers_keep_their_sign_and_width(void **state)
{
    (void)state;
    pickle_value *v;
    assert_ok(read_bytes(BYTES("\x80\x02(J\xff\xff\xff\xffM\xff\xff\x8a\x01\xff\x8a\x00\x8a\x02\x00\x80"
                               "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80G\xbf\xf8\x00\x00\x00\x00\x00\x00t."),
                         &v));
    static const int64_t expected[] = {-1, 65535, -1, 0, -32768, INT64_MIN};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(pickle_item(v, i)->integer, expected[i]);
    assert_true(pickle_item(v, 6)->number == -1.5);
    assert_null(pickle_item(v, 7));
}

static void the_last_of_equal_keys_counts(void **state)
{
    (void)state;
    pickle_value *v;
    assert_ok(read_bytes(BYTES("\x80\x02}(U\x01"
                               "aK\x01U\x01"
                               "aK\x02U\x01"
                               "bK\x03u."),
                         &v));
    assert_int_equal(pickle_find(v, "a")->integer, 2);
    assert_null(pickle_find(v, "c"));
    assert_null(pickle_find(NULL, "a"));
}

static void a_call_is_kept_as_data(void **state)
{
    (void)state;
    pickle_value *v;
    assert_ok(read_bytes(BYTES("\x80\x02"
                               "ctorch\nSize\nK\x03K\x04\x86\x85R."),
                         &v));
    assert_int_equal(v->kind, PICKLE_OBJECT);
    assert_string_equal(v->global->name, "torch.Size");
    assert_int_equal(pickle_item(pickle_item(v->arguments, 0), 1)->integer, 4);
}

static void memory_follows_the_input(void **state)
{
    (void)state;
    /* A list of 1,000, then as many sets of it: each is the list itself, not a copy. */
    enum { N = 1000 };
    static char data[64 + 8 * N];
    size_t n = 0;
    pickle_value *v;
    n += (size_t)sprintf(data, "\x80\x02](");
    memset(data + n, 'N', N), n += N;
    data[n++] = 'e', data[n++] = 'q', data[n++] = 0;
    n += (size_t)sprintf(data + n, "0(cbuiltins\nset\n");
    data[n++] = 'q', data[n++] = 1, data[n++] = '0';
    for (int i = 0; i < N; i++) {
        memcpy(data + n, "h\1h\0\x85R", 6);
        n += 6;
    }
    data[n++] = 't', data[n++] = '.';
    assert_ok(read_bytes(data, n, &v));
    assert_int_equal(v->n_items, N);
    assert_true(arena_bytes(memory) < (size_t)1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hostile_pickles_are_refused_without_effect, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unusual_but_harmless_pickles_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_refusal_names_what_was_asked_for_and_where, set_up, tear_down),
        cmocka_unit_test_setup_teardown(numbers_keep_their_sign_and_width, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_last_of_equal_keys_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_call_is_kept_as_data, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_follows_the_input, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
