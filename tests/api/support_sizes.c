#include "api/support_sizes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>

enum { EXTRA = 64 }; /* bytes by which a newer header is larger */

/* A struct of `size` bytes as its first member says, the known part as the row has it, `filler` behind `size` bytes or
 * the known ones, whichever come first. */
static unsigned char *struct_of(const sized_row *r, size_t size, unsigned char filler)
{
    unsigned char *s = malloc(r->known + EXTRA);
    assert_non_null(s);
    memset(s, filler, r->known + EXTRA);
    memcpy(s, r->full, size < r->known ? size : r->known);
    memcpy(s, &size, sizeof size);
    return s;
}

static void check_outcome(const sized_row *r, fsdp_status status, const char *which)
{
    bool right = r->message ? status != FSDP_OK && strstr(fsdp_last_error(), r->message) : status == FSDP_OK;
    if (!right)
        fail_msg("%s, %s: status %d, %s", r->type, which, status, fsdp_last_error());
}

static void check_refused(const sized_row *r, fsdp_status status, const char *which)
{
    if (status != FSDP_ERR_INPUT || !strstr(fsdp_last_error(), r->type) || !strstr(fsdp_last_error(), r->init))
        fail_msg("%s, %s: status %d, %s", r->type, which, status, fsdp_last_error());
}

static void check_all_are(const unsigned char *from, const unsigned char *to, unsigned char value, const sized_row *r)
{
    for (; from < to; from++)
        if (*from != value)
            fail_msg("%s: a byte behind what was asked for is %d, not %d", r->type, *from, value);
}

void an_older_program_gets_defaults(void **state)
{
    const sized_rows *all = *state;
    for (const sized_row *r = all->rows; r < all->rows + all->n; r++) {
        unsigned char *s = struct_of(r, r->older, 0xff);
        check_outcome(r, r->call(s), "an older program's");
        check_all_are(s + r->older, s + r->known + EXTRA, 0xff, r);
        size_t size;
        memcpy(&size, s, sizeof size);
        assert_int_equal(size, r->older);
        free(s);
    }
}

void a_newer_program_works_while_it_uses_nothing_new(void **state)
{
    const sized_rows *all = *state;
    for (const sized_row *r = all->rows; r < all->rows + all->n; r++) {
        unsigned char *s = struct_of(r, r->known + EXTRA, r->result ? 0xff : 0);
        /* Of a run or a measurement that did not begin: not. */
        bool written =
            !r->message || (strcmp(r->type, "fsdp_train_result") != 0 && strcmp(r->type, "fsdp_measurement") != 0);
        check_outcome(r, r->call(s), "a newer program's");
        if (written)
            check_all_are(s + r->known, s + r->known + EXTRA, 0, r);
        free(s);
    }
}

void a_field_that_the_library_does_not_know_is_refused_by_name(void **state)
{
    const sized_rows *all = *state;
    for (const sized_row *r = all->rows; r < all->rows + all->n; r++) {
        if (r->result)
            continue;
        unsigned char *s = struct_of(r, r->known + EXTRA, 0);
        s[r->known + EXTRA - 1] = 1;
        check_refused(r, r->call(s), "with a field of the future");
        free(s);
    }
}

void a_struct_that_was_not_initialised_is_refused_by_name(void **state)
{
    const sized_rows *all = *state;
    const size_t sizes[] = {0, sizeof(size_t) - 1, (size_t)-1 / 3};
    for (const sized_row *r = all->rows; r < all->rows + all->n; r++) {
        for (int i = 0; i < 3; i++) {
            unsigned char *s = struct_of(r, r->known, 0);
            memcpy(s, &sizes[i], sizeof sizes[i]);
            check_refused(r, r->call(s), i == 0 ? "of size 0" : "of a size that cannot be");
            free(s);
        }
    }
}

/* Not the caller's: the library hands them to callbacks, or they are of one version only. */
static bool is_excepted(const char *type)
{
    return strcmp(type, "fsdp_operation_run") == 0 || strcmp(type, "fsdp_unit_policy") == 0 ||
           strcmp(type, "fsdp_settings") == 0;
}

static int check_header(const sized_rows *all, const char *path)
{
    char line[400], type[100] = "";
    int n = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "typedef struct %99s {", type) == 1 || strncmp(line, "    size_t size;", 16) != 0)
            continue;
        const sized_row *r = all->rows, *end = all->rows + all->n;
        while (r < end && strcmp(r->type, type) != 0)
            r++;
        if (r == end && !is_excepted(type))
            fail_msg("%s: %s has a size and no row in this test", path, type);
        n++;
    }
    fclose(f);
    return n;
}

void every_struct_with_a_size_has_a_row(void **state)
{
    const sized_rows *all = *state;
    char folder[4000], path[4400];
    const char *source = getenv("FSDP_SOURCE");
    if (!source)
        skip();
    snprintf(folder, sizeof folder, "%s/include/fsdp", source);
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (!strstr(e->d_name, ".h"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        n += check_header(all, path);
    }
    closedir(d);
    assert_in_range(n, all->n, all->n + 3);
}
