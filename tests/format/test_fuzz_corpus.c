/* Replays the corpus of the safetensors fuzzer: every input once as it is, and once cut in half. */
#include "format/scratch.h"

#include <dirent.h>
#include <libgen.h>

#include "fuzz/fuzz_safetensors.c"

static char corpus_folder[1024];

/* The corpus lies beside this source: tests/fuzz/corpus/safetensors. */
static int find_corpus(void **state)
{
    (void)state;
    char source[] = __FILE__;
    snprintf(corpus_folder, sizeof corpus_folder, "%s/../fuzz/corpus/safetensors", dirname(source));
    return file_is_directory(corpus_folder) ? 0 : -1;
}

static void every_input_of_the_corpus_is_harmless(void **state)
{
    (void)state;
    size_t n_inputs = 0;
    DIR *folder = opendir(corpus_folder);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.')
            continue;
        char *path = file_join(corpus_folder, entry->d_name);
        assert_non_null(path);
        size_t bytes;
        uint8_t *data = scratch_read(path, &bytes), *half = malloc(bytes / 2 + 1);
        LLVMFuzzerTestOneInput(data, bytes);
        memcpy(half, data, bytes / 2);
        LLVMFuzzerTestOneInput(half, bytes / 2);
        free(half);
        free(data);
        free(path);
        n_inputs++;
    }
    closedir(folder);
    assert_true(n_inputs >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_input_of_the_corpus_is_harmless),
    };
    return cmocka_run_group_tests(tests, find_corpus, NULL);
}
