/* Runs a fuzz target without libFuzzer: over every file of the corpus folders given as arguments, and over a fixed
 * number of damaged copies of each (cut short, bytes overwritten), the same ones every time. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/rng.h"

enum { DAMAGED_COPIES = 300, DAMAGED_BYTES = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The target gets a block of exactly its size, so that reading past the end is seen by the sanitizer and valgrind. */
static void run_copy(const char *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    if (!copy)
        abort();
    memcpy(copy, data, bytes);
    LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static void run_damaged(char *data, size_t bytes, uint64_t number)
{
    rng_key key = rng_key_make(number);
    char old[DAMAGED_BYTES];
    size_t places[DAMAGED_BYTES];
    for (uint64_t i = 0; i < DAMAGED_BYTES; i++) {
        places[i] = rng_word(key, 0, 2 * i) % bytes;
        old[i] = data[places[i]];
        data[places[i]] = (char)rng_word(key, 0, 2 * i + 1);
    }
    size_t kept = number % 2 ? bytes : rng_word(key, 1, 0) % (bytes + 1);
    run_copy(data, kept);
    for (int i = DAMAGED_BYTES - 1; i >= 0; i--)
        data[places[i]] = old[i];
}

static int run_file(const char *path)
{
    char *data;
    size_t bytes;
    if (file_read(path, &data, &bytes) != FSDP_OK) {
        fprintf(stderr, "%s\n", fsdp_last_error());
        return 1;
    }
    run_copy(data, bytes);
    for (uint64_t i = 0; bytes > 0 && i < DAMAGED_COPIES; i++)
        run_damaged(data, bytes, i);
    free(data);
    return 0;
}

static int run_folder(const char *path, int *n_files)
{
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (struct dirent *entry; (entry = readdir(folder)) && !failed;) {
        if (entry->d_name[0] == '.')
            continue;
        char *name = file_join(path, entry->d_name);
        failed = !name || run_file(name);
        free(name);
        (*n_files)++;
    }
    closedir(folder);
    return failed;
}

int main(int n_arguments, char **arguments)
{
    int n_files = 0;
    for (int i = 1; i < n_arguments; i++)
        if (run_folder(arguments[i], &n_files) != 0)
            return 1;
    if (n_files == 0) {
        fprintf(stderr, "no corpus: name folders with at least one file\n");
        return 1;
    }
    printf("%d files, %d damaged copies of each\n", n_files, DAMAGED_COPIES);
    return 0;
}
