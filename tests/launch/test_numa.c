/* Which cores ranks are bound to, on hosts that are made up: cores in any order, GPUs anywhere, folders of a kernel. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "launch/numa.h"
#include "launch/support_launched.h"
#include "support/draw.h"

enum { MAX_CORES = 64, MAX_RANKS = 16 };

/* Two sockets of two NUMA nodes, each with two caches of two cores of two threads: 32 in all, in hwloc's order. */
static int make_host(numa_core *out)
{
    for (int i = 0; i < 32; i++)
        out[i] = (numa_core){.id = i, .physical = i / 2, .cache = i / 4, .node = i / 8, .socket = i / 16};
    return 32;
}

static void assert_bound(const rank_cores *r, int first, int end, int threads)
{
    for (int id = 0; id < MAX_CORES; id++)
        if (!!CPU_ISSET(id, &r->set) != (id >= first && id < end))
            fail_msg("core %d is %s", id, CPU_ISSET(id, &r->set) ? "there" : "missing");
    assert_int_equal(r->n_threads, threads);
}

/* Six GPUs: two on node 3, three on node 0, one on node 2. */
static void ranks_are_bound_near_their_gpus(void **state)
{
    (void)state;
    numa_core cores[MAX_CORES];
    rank_cores bound[MAX_RANKS];
    int n = make_host(cores);
    const int near[] = {3, 0, 0, 2, 3, 0};
    assert_int_equal(numa_divide(FSDP_NUMA_NODE, cores, n, near, 6, bound), FSDP_OK);
    assert_bound(&bound[0], 24, 32, 4);
    assert_bound(&bound[1], 0, 8, 2);
    assert_bound(&bound[3], 16, 24, 8);
    assert_int_equal(bound[0].n_ranks, 2);
    assert_int_equal(bound[1].n_ranks, 3);
    assert_int_equal(bound[3].n_ranks, 1);
    assert_int_equal(numa_divide(FSDP_NUMA_SOCKET, cores, n, near, 6, bound), FSDP_OK);
    assert_bound(&bound[0], 16, 32, 5);
    assert_bound(&bound[5], 0, 16, 5);
    assert_int_equal(numa_divide(FSDP_NUMA_EXCLUSIVE, cores, n, near, 6, bound), FSDP_OK);
    assert_bound(&bound[0], 24, 28, 4);
    assert_bound(&bound[4], 28, 32, 4);
    assert_bound(&bound[1], 0, 2, 2); /* four physical cores for three */
    assert_bound(&bound[2], 2, 4, 2);
    assert_bound(&bound[5], 4, 8, 4);
    for (int i = 0; i < 6; i++)
        assert_int_equal(bound[i].n_ranks, 1);
    assert_int_equal(numa_divide(FSDP_NUMA_CORE_COMPLEX, cores, n, near, 6, bound), FSDP_OK);
    assert_bound(&bound[1], 0, 4, 2); /* the third rank shares the first cache again */
    assert_bound(&bound[2], 4, 8, 4);
    assert_bound(&bound[5], 0, 4, 2);
    assert_bound(&bound[4], 28, 32, 4);
    assert_int_equal(bound[2].n_ranks, 1);
    assert_int_equal(bound[5].n_ranks, 2);
}

static void ranks_without_gpus_are_bound_near_their_share(void **state)
{
    (void)state;
    numa_core cores[MAX_CORES];
    rank_cores bound[MAX_RANKS];
    int n = make_host(cores);
    const int near[] = {-1, -1, -1, -1, -1, -1, -1, -1};
    assert_int_equal(numa_divide(FSDP_NUMA_NODE, cores, n, near, 8, bound), FSDP_OK);
    for (int i = 0; i < 8; i++)
        assert_bound(&bound[i], i / 2 * 8, i / 2 * 8 + 8, 4);
    assert_int_equal(numa_divide(FSDP_NUMA_EXCLUSIVE, cores, n, near, 8, bound), FSDP_OK);
    for (int i = 0; i < 8; i++)
        assert_bound(&bound[i], i * 4, i * 4 + 4, 4);
}

static void what_is_not_possible_is_refused(void **state)
{
    (void)state;
    numa_core cores[MAX_CORES];
    rank_cores bound[MAX_RANKS];
    int n = make_host(cores);
    const int crowded[] = {1, 1, 1, 1, 1}, absent[] = {0, 7};
    assert_int_equal(numa_divide(FSDP_NUMA_EXCLUSIVE, cores, n, crowded, 5, bound), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "NUMA node 1 has 4 cores for 5 ranks"));
    assert_int_equal(numa_divide(FSDP_NUMA_NODE, cores, n, crowded, 5, bound), FSDP_OK);
    assert_int_equal(numa_divide(FSDP_NUMA_NODE, cores, n, absent, 2, bound), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "local rank 1 is on NUMA node 7"));
}

/* Any host, any part of its cores, any GPUs: nobody is without a core, all cores lie near, and exclusive ones are. */
static void random_hosts_keep_the_promises(void **state)
{
    (void)state;
    int done = 0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t random = seed;
        numa_core cores[MAX_CORES];
        rank_cores bound[MAX_RANKS];
        int near[MAX_RANKS], n = 0, n_ranks = 1 + draw_below(&random, MAX_RANKS);
        int threads = 1 + draw_below(&random, 2), per_cache = 1 + draw_below(&random, 6),
            per_node = per_cache * (1 + draw_below(&random, 3)), per_socket = per_node * (1 + draw_below(&random, 2));
        for (int i = 0; i < MAX_CORES; i++)
            if (draw_below(&random, 4))
                cores[n++] = (numa_core){.id = i,
                                         .physical = i / threads,
                                         .cache = i / threads / per_cache,
                                         .node = i / threads / per_node,
                                         .socket = i / threads / per_socket};
        for (int i = 0; i < n_ranks; i++)
            near[i] = draw_below(&random, 2) ? cores[draw_below(&random, n)].node : -1;
        fsdp_numa_binding how = (fsdp_numa_binding)(FSDP_NUMA_NODE + draw_below(&random, 4));
        if (numa_divide(how, cores, n, near, n_ranks, bound) != FSDP_OK) {
            assert_int_equal(how, FSDP_NUMA_EXCLUSIVE); /* too many ranks on a node */
            continue;
        }
        done++;
        for (int r = 0; r < n_ranks; r++) {
            assert_true(CPU_COUNT(&bound[r].set) > 0 && bound[r].n_threads > 0);
            assert_true(bound[r].n_threads <= CPU_COUNT(&bound[r].set));
            for (int i = 0; i < n; i++)
                if (CPU_ISSET(cores[i].id, &bound[r].set) && near[r] >= 0 && how != FSDP_NUMA_SOCKET)
                    assert_int_equal(cores[i].node, near[r]);
            for (int k = 0; k < r && how == FSDP_NUMA_EXCLUSIVE; k++) {
                cpu_set_t both;
                CPU_AND(&both, &bound[k].set, &bound[r].set);
                assert_int_equal(CPU_COUNT(&both), 0);
            }
        }
    }
    assert_true(done > 1500);
}

/* ---- where GPUs are ---- */

static void put_file(const char *root, const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    assert_int_equal(file_make_directories(path), FSDP_OK);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text)), FSDP_OK);
}

static void the_kernel_says_where_gpus_are(void **state)
{
    (void)state;
    char root[] = "/tmp/fsdp-numa-XXXXXX";
    assert_non_null(mkdtemp(root));
    assert_int_equal(numa_node_of_gpu(root, NULL, 0), -1);
    put_file(root, "proc/driver/nvidia/gpus/0000:9a:00.0", "information", "Model: \t H200\nGPU UUID: \t GPU-bbbb-2\n");
    put_file(root, "proc/driver/nvidia/gpus/0000:18:00.0", "information", "Model: \t H200\nGPU UUID: \t GPU-aaaa-1\n");
    put_file(root, "proc/driver/nvidia/gpus/0001:02:00.0", "information", "Model: \t H200\nGPU UUID: \t GPU-cccc-3\n");
    put_file(root, "sys/bus/pci/devices/0000:18:00.0", "numa_node", "0\n");
    put_file(root, "sys/bus/pci/devices/0000:9a:00.0", "numa_node", "1\n");
    put_file(root, "sys/bus/pci/devices/0001:02:00.0", "numa_node", "-1\n"); /* the firmware says nothing */
    assert_int_equal(numa_node_of_gpu(root, NULL, 0), 0);
    assert_int_equal(numa_node_of_gpu(root, NULL, 1), 1);
    assert_int_equal(numa_node_of_gpu(root, NULL, 2), -1);
    assert_int_equal(numa_node_of_gpu(root, NULL, 3), -1);
    assert_int_equal(numa_node_of_gpu(root, "1,0", 0), 1);
    assert_int_equal(numa_node_of_gpu(root, "1,0", 1), 0);
    assert_int_equal(numa_node_of_gpu(root, "1,0", 2), -1);
    assert_int_equal(numa_node_of_gpu(root, "GPU-bbbb,GPU-aaaa-1", 0), 1);
    assert_int_equal(numa_node_of_gpu(root, "GPU-bbbb,GPU-aaaa-1", 1), 0);
    assert_int_equal(numa_node_of_gpu(root, "MIG-1234,GPU-,-1,99,", 0), -1);
    for (int i = 1; i < 6; i++)
        assert_int_equal(numa_node_of_gpu(root, "MIG-1234,GPU-,-1,99,", i), -1);
    assert_int_equal(file_remove_tree(root), FSDP_OK);
}

/* ---- a launcher ---- */

/* Leaves this process two of the cores that it may use: cores[0] below cores[1]. False where it has one. */
static bool keep_two_cores(int *cores)
{
    cpu_set_t allowed, two;
    int n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    CPU_ZERO(&two);
    for (int id = 0; id < CPU_SETSIZE && n < 2; id++)
        if (CPU_ISSET(id, &allowed)) {
            CPU_SET(id, &two);
            cores[n++] = id;
        }
    return n == 2 && sched_setaffinity(0, sizeof two, &two) == 0;
}

/* The host that hwloc is told of has these two cores. */
static void make_up_host(const char *front, const int *cores)
{
    char text[96];
    snprintf(text, sizeof text, "%s pu:1(indexes=%d,%d)", front, cores[0], cores[1]);
    setenv("HWLOC_SYNTHETIC", text, 1);
}

static void assert_ran(const launched *l, int rank, int core)
{
    char line[64];
    snprintf(line, sizeof line, "%d on %d with 1\n", rank, core);
    assert_has(l, line);
}

/* Two cores, each in a NUMA node of its own, as far as hwloc is told. */
static void ranks_run_where_they_are_bound(void **state)
{
    (void)state;
#ifndef FSDP_WITH_HWLOC
    skip();
#endif
    cpu_set_t before;
    int cores[2];
    char both[64];
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (!keep_two_cores(cores))
        skip();
    snprintf(both, sizeof both, "0 on %d%c%d with 2\n", cores[0], cores[1] == cores[0] + 1 ? '-' : ',', cores[1]);
    const char *script = "echo $RANK on $(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status) "
                         "with $OMP_NUM_THREADS";
    unsetenv("OMP_NUM_THREADS");
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1); /* the GPUs of the real host lie near other cores */
    make_up_host("package:2 numa:1 core:1", cores);
    fsdp_launch_config c = ranks(4);
    c.numa_binding = FSDP_NUMA_NODE;
    launched *l = run(c, script);
    assert_int_equal(l->exit_code, 0);
    for (int rank = 0; rank < 4; rank++)
        assert_ran(l, rank, cores[rank / 2]);
    c.numa_binding = FSDP_NUMA_EXCLUSIVE;
    l = run(c, script);
    assert_int_equal(l->exit_code, 2);
    assert_has(l, "start fewer ranks, or say node");
    make_up_host("package:1 numa:1 core:2", cores);
    c.numa_binding = FSDP_NUMA_SOCKET;
    c.n_ranks = 1;
    l = run(c, script);
    unsetenv("HWLOC_SYNTHETIC");
    assert_has(l, both);
    c.share_cores = true;
    assert_int_equal(run(c, script)->exit_code, 2);
    assert_has(&current, "--share_cores");
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_bound_near_their_gpus),
        cmocka_unit_test(ranks_without_gpus_are_bound_near_their_share),
        cmocka_unit_test(what_is_not_possible_is_refused),
        cmocka_unit_test(random_hosts_keep_the_promises),
        cmocka_unit_test(the_kernel_says_where_gpus_are),
        cmocka_unit_test(ranks_run_where_they_are_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
