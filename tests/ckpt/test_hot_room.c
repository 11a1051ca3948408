/* The memory that hot snapshots take of a host, counted against plain sums, and when it is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fsdp/status.h>

#include "ckpt/hot/room.h"
#include "ckpt/save/save.h"

static void one_node_holds_two_of_each_rank(void **state)
{
    (void)state;
    const hot_rank ranks[] = {{1, 7, 100, 30}, {1, 7, 50, 30}};
    hot_need need = hot_count_need(ranks, 2, 7);
    assert_int_equal(need.files, 300);
    assert_int_equal(need.held, 30); /* the node's, not each rank's */
    assert_int_equal(need.n_ranks, 2);
    assert_int_equal(need.n_neighbors, 0);
    assert_int_equal(need.buffers, ckpt_saver_room(100) + ckpt_saver_room(50));
    assert_int_equal(hot_next_rank(ranks, 2, 0), -1);
    assert_int_equal(hot_count_need(ranks, 2, 8).files, 0);
}

/* Three ranks and one: the small node holds the copies of the large one. */
static void nodes_of_different_sizes_hold_their_neighbors_copies(void **state)
{
    (void)state;
    const hot_rank ranks[] = {{1, 7, 10, 0}, {1, 7, 10, 0}, {1, 7, 10, 0}, {2, 8, 10, 0}};
    for (int i = 0; i < 3; i++)
        assert_int_equal(hot_next_rank(ranks, 4, i), 3);
    assert_int_equal(hot_next_rank(ranks, 4, 3), 0);
    assert_int_equal(hot_count_need(ranks, 4, 7).files, 2 * 30 + 2 * 10);
    assert_int_equal(hot_count_need(ranks, 4, 8).files, 2 * 10 + 2 * 30);
    assert_int_equal(hot_count_need(ranks, 4, 8).n_neighbors, 3);
}

/* Every rank's part is held by its own node and by exactly one other, wherever hosts and nodes lie. */
static void random_worlds_hold_every_part_four_times(void **state)
{
    (void)state;
    srand(11);
    for (int trial = 0; trial < 500; trial++) {
        hot_rank ranks[40];
        int n = 0, n_nodes = 1 + rand() % 6, n_hosts = 1 + rand() % 4;
        int64_t total = 0, held = 0, counted = 0, counted_held = 0, buffers = 0, counted_buffers = 0;
        for (int node = 0; node < n_nodes; node++) {
            uint64_t host = 100 + (uint64_t)(rand() % n_hosts);
            int64_t has = rand() % 1000;
            held += has;
            for (int i = 1 + rand() % 6; i > 0; i--, n++) {
                ranks[n] = (hot_rank){1 + (uint64_t)node, host, rand() % 100000, has};
                total += ranks[n].bytes;
                buffers += (int64_t)ckpt_saver_room(ranks[n].bytes);
            }
        }
        for (int host = 0; host < n_hosts; host++) {
            hot_need need = hot_count_need(ranks, n, 100 + (uint64_t)host);
            counted += need.files;
            counted_held += need.held;
            counted_buffers += need.buffers;
        }
        assert_int_equal(counted, total * (n_nodes > 1 ? 4 : 2));
        assert_int_equal(counted_held, held);
        assert_int_equal(counted_buffers, buffers);
    }
}

static void what_does_not_fit_is_refused_in_one_line(void **state)
{
    (void)state;
    const int64_t mib = 1 << 20;
    hot_need need = {.files = 40 * mib, .buffers = 10 * mib, .n_ranks = 2, .n_neighbors = 2};
    assert_int_equal(hot_check_room(&need, 40 * mib, 50 * mib), FSDP_OK);
    assert_int_equal(hot_check_room(&need, 0, 0), FSDP_OK); /* unknown */
    assert_int_equal(hot_check_room(&need, 40 * mib - 1, 50 * mib), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "take 40.0 MiB of /dev/shm"));
    assert_null(strchr(fsdp_last_error(), '\n'));
    assert_int_equal(hot_check_room(&need, 40 * mib, 50 * mib - 1), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "take 50.0 MiB of this host's memory, of which"));
    need.held = 30 * mib; /* earlier snapshots give way to later ones */
    assert_int_equal(hot_check_room(&need, 10 * mib, 20 * mib), FSDP_OK);
    assert_int_equal(hot_check_room(&need, 10 * mib - 1, 20 * mib), FSDP_ERR_INPUT);
}

static void files_are_counted_through_folders_and_not_through_links(void **state)
{
    (void)state;
    char folder[] = "/tmp/fsdp-test-room-XXXXXX", path[128], big[8192] = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/part", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/part/file", folder);
    FILE *file = fopen(path, "w");
    fwrite(big, 1, sizeof big, file);
    fclose(file);
    int64_t bytes = hot_bytes_in(folder);
    assert_true(bytes >= (int64_t)sizeof big && bytes < 1 << 20);
    char link_path[128];
    snprintf(link_path, sizeof link_path, "%s/loop", folder);
    assert_int_equal(symlink(folder, link_path), 0);
    assert_int_equal(hot_bytes_in(folder), bytes);
    assert_int_equal(hot_bytes_in("/no/such/folder"), 0);
    assert_true(hot_host_of(folder) == hot_host_of("/tmp"));
    assert_true(hot_host_of("/proc") != hot_host_of("/tmp"));
    unlink(link_path);
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_holds_two_of_each_rank),
        cmocka_unit_test(nodes_of_different_sizes_hold_their_neighbors_copies),
        cmocka_unit_test(random_worlds_hold_every_part_four_times),
        cmocka_unit_test(what_does_not_fit_is_refused_in_one_line),
        cmocka_unit_test(files_are_counted_through_folders_and_not_through_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
