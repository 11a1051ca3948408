/* Memory that saving and loading take, by interposed allocation calls: never a whole tensor, whatever the kind. (An
 * asynchronous save has its snapshot, the size of the rank's own slices, and says so: ckpt_saver_bytes.) */
#include "ckpt/fixture.h"

#include <malloc.h>
#include <sys/syscall.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
    __has_feature(thread_sanitizer)
#define SANITIZED 1 /* has allocation calls of its own */
#else
#define SANITIZED 0
#endif

static atomic_llong live_bytes, peak_bytes;

#if !SANITIZED

static void count(long long bytes)
{
    long long now = atomic_fetch_add(&live_bytes, bytes) + bytes, peak = atomic_load(&peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now))
        continue;
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
    void *memory = __libc_malloc(bytes);
    count((long long)malloc_usable_size(memory));
    return memory;
}

void *calloc(size_t n, size_t bytes)
{
    void *memory = __libc_calloc(n, bytes);
    count((long long)malloc_usable_size(memory));
    return memory;
}

void *realloc(void *old, size_t bytes)
{
    long long before = (long long)malloc_usable_size(old);
    void *memory = __libc_realloc(old, bytes);
    if (memory)
        count((long long)malloc_usable_size(memory) - before);
    return memory;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    void *memory = __libc_memalign(alignment, bytes);
    count((long long)malloc_usable_size(memory));
    return memory;
}

void free(void *memory)
{
    count(-(long long)malloc_usable_size(memory));
    __libc_free(memory);
}

/* Mappings of files are the page cache's memory, not the rank's. */
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fd < 0)
        count((long long)bytes);
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

#endif

enum { WIDTH = 43000, LARGEST = 97 * WIDTH * 4, ALLOWED = 12 << 20 };

/* Above what is there now. */
static void peak_restart(void)
{
    atomic_store(&peak_bytes, atomic_load(&live_bytes));
}

static void assert_little_was_taken(long long before, const char *what)
{
    long long taken = atomic_load(&peak_bytes) - before;
    if (taken > ALLOWED)
        fail_msg("%s took %.1f MiB; its largest tensor has %.1f", what, (double)taken / 1048576,
                 (double)LARGEST / 1048576);
}

static void save_counted(const char *directory, fsdp_checkpoint_kind kind, bool callbacks)
{
    fixture *f = fixture_make_sized(CUT_FLAT, 0, 1, callbacks, WIDTH);
    fixture_fill(f, 10);
    ckpt_save_config config = fixture_config(directory, kind, 10);
    long long before = atomic_load(&live_bytes);
    peak_restart();
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    assert_little_was_taken(before, "a save");
    fixture_free(f);
}

static void no_save_holds_a_whole_tensor(void **state)
{
    (void)state;
    assert_true(ALLOWED < LARGEST);
    save_counted(scratch_path("full"), FSDP_CKPT_FULL, false);
    save_counted(scratch_path("full-remote"), FSDP_CKPT_FULL, true);
    save_counted(scratch_path("sharded"), FSDP_CKPT_SHARDED, true);
}

static void no_export_holds_a_whole_tensor(void **state)
{
    (void)state;
    fixture *f = fixture_make_sized(CUT_FLAT, 0, 1, true, WIDTH);
    fixture_fill(f, 10);
    ckpt_save_config config = fixture_config(scratch_path("export"), FSDP_CKPT_FULL, 10);
    long long before = atomic_load(&live_bytes);
    peak_restart();
    assert_ok(ckpt_export(&config, &f->state, FSDP_BF16, NULL));
    assert_little_was_taken(before, "an export");
    fixture_free(f);
}

static void load_counted(const char *directory, bool callbacks)
{
    fixture *f = fixture_make_sized(CUT_UNEVEN, 1, 2, callbacks, WIDTH);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    long long before = atomic_load(&live_bytes);
    peak_restart();
    assert_ok(ckpt_resume(directory, &config, &f->state, NULL, &result));
    assert_little_was_taken(before, "a load");
    assert_true(fixture_holds(f, 10, CKPT_ROLES_ALL));
    ckpt_load_result_free(&result);
    fixture_free(f);
}

static void no_load_holds_a_whole_tensor(void **state)
{
    (void)state;
    assert_ok(file_remove_tree(scratch_path("full-remote")));
    load_counted(scratch_path("full"), false);
    load_counted(scratch_path("full"), true);
    load_counted(scratch_path("sharded"), true);
}

static void allocations_are_seen(void **state)
{
    (void)state;
    long long before = atomic_load(&live_bytes);
    peak_restart();
    void *volatile memory = malloc(ALLOWED + 1);
    free(memory);
    assert_true(atomic_load(&peak_bytes) - before > ALLOWED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_seen),
        cmocka_unit_test(no_save_holds_a_whole_tensor),
        cmocka_unit_test(no_export_holds_a_whole_tensor),
        cmocka_unit_test(no_load_holds_a_whole_tensor),
    };
    if (SANITIZED) {
        printf("skipped: a sanitizer has the allocation calls\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, fixture_setup_one_thread, scratch_teardown);
}
