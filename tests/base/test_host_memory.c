/* Memory that is left: the system's figure, and the limits of control groups of both versions, under a made-up root. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/host/host_memory.h"
#include "scratch.h"

static void put(const char *root, const char *path, const char *text)
{
    char *whole = file_join(root, path), *slash = strrchr(whole, '/');
    *slash = '\0';
    assert_int_equal(file_make_directories(whole), FSDP_OK);
    *slash = '/';
    assert_int_equal(file_write_atomic(whole, text, strlen(text)), FSDP_OK);
    free(whole);
}

static void without_groups_it_is_what_the_system_says(void **state)
{
    assert_int_equal(host_memory_available_in(*state), 0); /* which may be nothing */
    put(*state, "proc/meminfo", "MemTotal:       16000 kB\nMemFree:         100 kB\nMemAvailable:    8000 kB\n");
    assert_int_equal(host_memory_available_in(*state), 8000 * 1024);
}

static void the_tightest_group_above_the_process_counts(void **state)
{
    put(*state, "proc/meminfo", "MemAvailable:    8000 kB\n");
    put(*state, "proc/self/cgroup", "0::/jobs/one\n");
    put(*state, "sys/fs/cgroup/jobs/one/memory.max", "max\n");
    put(*state, "sys/fs/cgroup/jobs/one/memory.current", "1000\n");
    assert_int_equal(host_memory_available_in(*state), 8000 * 1024);
    put(*state, "sys/fs/cgroup/jobs/memory.max", "1000000\n");
    put(*state, "sys/fs/cgroup/jobs/memory.current", "700000\n");
    assert_int_equal(host_memory_available_in(*state), 300000);
    put(*state, "sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file 50000\nactive_file 7\n");
    assert_int_equal(host_memory_available_in(*state), 350000); /* pages of files can be dropped */
    put(*state, "sys/fs/cgroup/jobs/one/memory.max", "21000\n");
    assert_int_equal(host_memory_available_in(*state), 20000);
    put(*state, "sys/fs/cgroup/jobs/one/memory.current", "22000\n");
    assert_int_equal(host_memory_available_in(*state), 1); /* nothing, but known */
}

static void a_container_sees_its_own_limit_at_the_root(void **state)
{
    put(*state, "proc/meminfo", "MemAvailable:    8000 kB\n");
    put(*state, "proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n");
    put(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
    put(*state, "sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
    put(*state, "sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 20000\n");
    assert_int_equal(host_memory_available_in(*state), 420000);
    put(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_int_equal(host_memory_available_in(*state), 8000 * 1024);
}

static void this_machine_has_some(void **state)
{
    (void)state;
    assert_true(host_memory_available() > 1 << 20);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(without_groups_it_is_what_the_system_says),
        TEST(the_tightest_group_above_the_process_counts),
        TEST(a_container_sees_its_own_limit_at_the_root),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
