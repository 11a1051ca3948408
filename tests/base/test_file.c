/* What base/file promises: whole reads, mappings, and files that appear complete or not at all. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/scratch.h"

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    assert_non_null(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(folder);
    return n;
}

static void assert_file_holds(const char *path, const void *data, size_t bytes)
{
    char *text;
    size_t length;
    assert_int_equal(file_read(path, &text, &length), FSDP_OK);
    assert_int_equal(length, bytes);
    assert_int_equal(text[length], '\0');
    assert_memory_equal(text, data, bytes ? bytes : 1);
    free(text);
}

static void what_was_written_is_read_and_mapped(void **state)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 1 << 20};
    char *path = file_join(*state, "data.bin");
    char *data = calloc(1, (1 << 20) + 1);
    for (size_t i = 0; i < 1 << 20; i++)
        data[i] = (char)(i * 31);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char first = data[0];
        if (sizes[i] == 0)
            data[0] = '\0';
        assert_int_equal(file_write_atomic(path, data, sizes[i]), FSDP_OK);
        assert_file_holds(path, data, sizes[i]);
        data[0] = first;
        file_map map;
        assert_int_equal(file_map_open(path, &map), FSDP_OK);
        assert_int_equal(map.bytes, sizes[i]);
        if (sizes[i])
            assert_memory_equal(map.data, data, sizes[i]);
        else
            assert_null(map.data);
        file_map_close(&map);
        file_map_close(&map);
    }
    assert_int_equal(count_entries(*state), 1);
    free(data);
    free(path);
}

static void files_without_a_size_are_read_to_their_end(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    assert_int_equal(file_read("/proc/self/status", &text, &bytes), FSDP_OK);
    assert_true(bytes > 100);
    assert_int_equal(strlen(text), bytes);
    free(text);
}

static void a_missing_file_is_the_users_error_and_named(void **state)
{
    char *path = file_join(*state, "absent.json");
    char *text;
    size_t bytes;
    file_map map;
    assert_int_equal(file_read(path, &text, &bytes), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), path));
    assert_int_equal(file_map_open(path, &map), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), path));
    assert_int_equal(file_read(*state, &text, &bytes), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "directory"));
    assert_int_equal(file_map_open("/dev/null", &map), FSDP_ERR_INPUT);
    free(path);
}

/* A path that anyone may have written to leads to a FIFO, a device or a socket: refused before open waits for them. */
static void only_regular_files_are_read(void **state)
{
    static const char *const devices[] = {"/dev/zero", "/dev/null", "/dev/tty"};
    char *fifo = file_join(*state, "fifo"), *link = file_join(*state, "link.json"), *text;
    size_t bytes;
    file_map map;
    int fd;
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(symlink("/dev/zero", link), 0);
    alarm(20); /* a reader that waits for the FIFO's writer does not come back */
    assert_int_equal(file_read(fifo, &text, &bytes), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "a FIFO"));
    assert_int_equal(file_map_open(fifo, &map), FSDP_ERR_INPUT);
    assert_int_equal(file_open_regular(fifo, FILE_ANY_SIZE, &fd, NULL), FSDP_ERR_INPUT);
    assert_int_equal(fd, -1);
    assert_int_equal(file_read(link, &text, &bytes), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "a character device"));
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        assert_int_equal(file_read(devices[i], &text, &bytes), FSDP_ERR_INPUT);
    alarm(0);
    free(link), free(fifo);
}

static void a_file_larger_than_its_kind_is_refused(void **state)
{
    char *path = file_join(*state, "sparse"), *text;
    size_t bytes;
    int fd;
    assert_int_equal(file_write_atomic(path, "12345", 5), FSDP_OK);
    assert_int_equal(file_read_at_most(path, 5, &text, &bytes), FSDP_OK);
    free(text);
    assert_int_equal(file_read_at_most(path, 4, &text, &bytes), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), path));
    assert_int_equal(file_open_regular(path, 4, &fd, NULL), FSDP_ERR_INPUT);
    /* A file whose size does not tell, as those of /proc. */
    assert_int_equal(file_read_at_most("/proc/self/status", 64, &text, &bytes), FSDP_ERR_INPUT);
    assert_int_equal(truncate(path, (off_t)1 << 40), 0);
    assert_int_equal(file_read(path, &text, &bytes), FSDP_ERR_INPUT);
    free(path);
}

static void pieces_and_placed_writes_make_one_file(void **state)
{
    enum { BYTES = 700000 };
    char *path = file_join(*state, "pieces.bin");
    unsigned char *expected = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        expected[i] = (unsigned char)(i * 7 + (i >> 8));
    file_writer *w;
    assert_int_equal(file_writer_create(path, &w), FSDP_OK);
    for (size_t at = 0, piece = 1; at < BYTES; at += piece, piece = piece * 3 % 300007 + 1) {
        if (piece > BYTES - at)
            piece = BYTES - at;
        assert_int_equal(file_writer_write(w, expected + at, piece), FSDP_OK);
    }
    memset(expected + 5, 0xEE, 11);
    assert_int_equal(file_writer_write_at(w, 5, expected + 5, 11), FSDP_OK);
    assert_false(file_exists(path));
    assert_int_equal(file_writer_commit(w), FSDP_OK);
    assert_file_holds(path, expected, BYTES);
    assert_int_equal(count_entries(*state), 1);
    free(expected);
    free(path);
}

static void a_later_placed_write_wins_over_a_buffered_one(void **state)
{
    char *path = file_join(*state, "header.bin");
    file_writer *w;
    assert_int_equal(file_writer_create(path, &w), FSDP_OK);
    assert_int_equal(file_writer_write(w, "????body", 8), FSDP_OK);
    assert_int_equal(file_writer_write_at(w, 0, "HEAD", 4), FSDP_OK);
    assert_int_equal(file_writer_write(w, "+end", 4), FSDP_OK);
    assert_int_equal(file_writer_commit(w), FSDP_OK);
    assert_file_holds(path, "HEADbody+end", 12);
    free(path);
}

static void an_aborted_write_leaves_the_old_file_and_nothing_else(void **state)
{
    char *path = file_join(*state, "kept.txt");
    assert_int_equal(file_write_atomic(path, "old", 3), FSDP_OK);
    file_writer *w;
    assert_int_equal(file_writer_create(path, &w), FSDP_OK);
    assert_int_equal(file_writer_write(w, "new", 3), FSDP_OK);
    file_writer_abort(w);
    assert_file_holds(path, "old", 3);
    assert_int_equal(count_entries(*state), 1);
    file_writer_abort(NULL);
    free(path);
}

static void a_folder_is_no_file_to_write(void **state)
{
    char *path = file_join(*state, "taken");
    assert_int_equal(file_make_directories(path), FSDP_OK);
    file_writer *w;
    assert_int_equal(file_writer_create(path, &w), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), path));
    assert_int_equal(count_entries(*state), 1);
    free(path);
}

static void a_commit_that_cannot_rename_leaves_nothing(void **state)
{
    char *path = file_join(*state, "taken");
    file_writer *w;
    assert_int_equal(file_writer_create(path, &w), FSDP_OK);
    assert_int_equal(file_writer_write(w, "x", 1), FSDP_OK);
    assert_int_equal(file_make_directories(path), FSDP_OK); /* meanwhile */
    assert_int_equal(file_writer_commit(w), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), path));
    assert_int_equal(count_entries(*state), 1);
    free(path);
}

/* Where the file system can: otherwise there is one file, with the writer's number in its name. */
static void a_killed_writer_leaves_nothing(void **state)
{
    char *path = file_join(*state, "killed.bin");
    int fd = open(*state, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    pid_t child = fork();
    if (child == 0) {
        static char data[1 << 20];
        file_writer *w;
        if (file_writer_create(path, &w) != FSDP_OK || file_writer_write(w, data, sizeof data) != FSDP_OK)
            _exit(1);
        raise(SIGKILL);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    assert_int_equal(count_entries(*state), fd < 0);
    if (fd >= 0)
        close(fd);
    free(path);
}

/* What a link names stays, too: the folder may be a stranger's. */
static void pipes_and_devices_stay_what_they_are(void **state)
{
    char *target = file_join(*state, "target"), *link = file_join(*state, "link"), *fifo = file_join(*state, "fifo");
    struct stat info;
    char got[8] = "";
    assert_int_equal(file_write_atomic(target, "old", 3), FSDP_OK);
    for (int device = 0; device < 2; device++) {
        assert_int_equal(symlink(device ? "/dev/null" : "target", link), 0);
        assert_int_equal(file_write_atomic(link, "new", 3), FSDP_OK);
        assert_file_holds(link, "new", 3);
        assert_true(lstat(link, &info) == 0 && S_ISREG(info.st_mode));
        unlink(link);
    }
    assert_file_holds(target, "old", 3);
    if (mknod(link, S_IFCHR | 0666, makedev(1, 3)) == 0) { /* for root */
        assert_int_equal(file_write_atomic(link, "new", 3), FSDP_ERR_INPUT);
        assert_true(lstat(link, &info) == 0 && S_ISCHR(info.st_mode));
        unlink(link);
    }

    assert_int_equal(mkfifo(fifo, 0666), 0);
    assert_int_equal(file_write_atomic(fifo, "x", 1), FSDP_ERR_INPUT); /* and does not wait for a reader */
    assert_non_null(strstr(fsdp_last_error(), fifo));
    int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_int_equal(file_write_atomic(fifo, "piped", 5), FSDP_OK);
    assert_int_equal(read(reader, got, sizeof got), 5);
    assert_memory_equal(got, "piped", 5);
    close(reader);
    assert_true(lstat(fifo, &info) == 0 && S_ISFIFO(info.st_mode));

    file_writer *w;
    assert_int_equal(file_write_atomic("/dev/null", "gone", 4), FSDP_OK);
    assert_true(stat("/dev/null", &info) == 0 && S_ISCHR(info.st_mode));
    assert_int_equal(file_writer_create("/dev/null", &w), FSDP_OK);
    assert_int_equal(file_writer_write_at(w, 8, "x", 1), FSDP_ERR_INPUT);
    file_writer_abort(w);
    assert_int_equal(access("/dev/null", F_OK), 0);
    assert_int_equal(count_entries(*state), 2);
    free(fifo);
    free(link);
    free(target);
}

/* A child with a limit on file sizes stands in for a full disk. */
static void a_full_disk_is_reported_and_leaves_nothing(void **state)
{
    char *path = file_join(*state, "big.bin");
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {1 << 16, 1 << 16};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        char *data = calloc(1, 1 << 20);
        fsdp_status status = file_write_atomic(path, data, 1 << 20);
        bool named = strstr(fsdp_last_error(), path) != NULL;
        free(data);
        free(path);
        _exit(status == FSDP_ERR_IO && named ? 0 : 1);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_int_equal(count_entries(*state), 0);
    free(path);
}

static void a_writer_into_a_missing_folder_is_refused(void **state)
{
    char *path = file_join(*state, "no/such/folder.bin");
    file_writer *w;
    assert_int_equal(file_writer_create(path, &w), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), path));
    free(path);
}

static void directories_are_made_and_trees_removed(void **state)
{
    char *root = file_join(*state, "a"), *deep = file_join(root, "b//c/d/"), *file = file_join(root, "b/file");
    char *outside = file_join(*state, "outside"), *link = file_join(root, "link");
    assert_int_equal(file_make_directories(deep), FSDP_OK);
    assert_int_equal(file_make_directories(deep), FSDP_OK);
    assert_true(file_is_directory(deep));
    assert_int_equal(file_write_atomic(file, "x", 1), FSDP_OK);
    assert_false(file_is_directory(file));
    assert_int_equal(file_make_directories(file), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), file));
    assert_int_equal(file_make_directories(outside), FSDP_OK);
    assert_int_equal(symlink(outside, link), 0);
    assert_int_equal(file_sync_directory(root), FSDP_OK);
    assert_int_equal(file_sync_directory(file), FSDP_ERR_INPUT);
    assert_int_equal(file_remove_tree(root), FSDP_OK);
    assert_false(file_exists(root));
    assert_true(file_is_directory(outside));
    assert_int_equal(file_remove_tree(root), FSDP_OK);
    assert_int_equal(file_make_directories(""), FSDP_ERR_INPUT);
    free(link), free(outside), free(file), free(deep), free(root);
}

static void joining_puts_one_slash_between(void **state)
{
    (void)state;
    static const char *const cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *joined = file_join(cases[i][0], cases[i][1]);
        assert_string_equal(joined, cases[i][2]);
        free(joined);
    }
}

#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(what_was_written_is_read_and_mapped),
        IN_SCRATCH(files_without_a_size_are_read_to_their_end),
        IN_SCRATCH(a_missing_file_is_the_users_error_and_named),
        IN_SCRATCH(only_regular_files_are_read),
        IN_SCRATCH(a_file_larger_than_its_kind_is_refused),
        IN_SCRATCH(pieces_and_placed_writes_make_one_file),
        IN_SCRATCH(a_later_placed_write_wins_over_a_buffered_one),
        IN_SCRATCH(an_aborted_write_leaves_the_old_file_and_nothing_else),
        IN_SCRATCH(a_commit_that_cannot_rename_leaves_nothing),
        IN_SCRATCH(a_folder_is_no_file_to_write),
        IN_SCRATCH(a_killed_writer_leaves_nothing),
        IN_SCRATCH(pipes_and_devices_stay_what_they_are),
        IN_SCRATCH(a_full_disk_is_reported_and_leaves_nothing),
        IN_SCRATCH(a_writer_into_a_missing_folder_is_refused),
        IN_SCRATCH(directories_are_made_and_trees_removed),
        cmocka_unit_test(joining_puts_one_slash_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
