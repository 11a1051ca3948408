/* fsdp_checkpoint_diff: where two checkpoints differ, and by how much. Streams; holds two small blocks of elements. */
#include <fsdp/checkpoint.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ckpt/commands/report.h"

enum { BLOCK_NUMEL = 64 << 10 };

typedef struct difference {
    int64_t n_different, first;
    int64_t n_not_finite;              /* of them: NaN or infinite on either side, or too far apart to say */
    double max_absolute, max_relative; /* among the others */
} difference;

static void compare_block(const float *a, const float *b, int64_t base, int64_t n, double tolerance, difference *d)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) == 0)
            continue;
        double gap = fabs((double)a[i] - (double)b[i]), scale = fmax(fabs((double)a[i]), fabs((double)b[i]));
        if (gap <= tolerance && tolerance > 0)
            continue;
        if (d->n_different++ == 0)
            d->first = base + i;
        if (isfinite(gap)) {
            d->max_absolute = fmax(d->max_absolute, gap);
            d->max_relative = fmax(d->max_relative, scale > 0 ? gap / scale : 0);
        } else {
            d->n_not_finite++;
        }
    }
}

static fsdp_status compare_tensor(const source_tensor *a, const source_tensor *b, double tolerance, float *room,
                                  difference *d)
{
    for (int64_t done = 0; done < a->numel; done += BLOCK_NUMEL) {
        int64_t n = min_i64(BLOCK_NUMEL, a->numel - done);
        FSDP_TRY(source_read(a, done, n, room));
        FSDP_TRY(source_read(b, done, n, room + BLOCK_NUMEL));
        compare_block(room, room + BLOCK_NUMEL, done, n, tolerance, d);
    }
    return FSDP_OK;
}

static void add(json_t *report, const char *list, const source_tensor *tensor)
{
    json_array_append_new(json_object_get(report, list),
                          json_pack("{s:s, s:s}", "role", ckpt_role_name(tensor->role), "name", tensor->name));
}

static fsdp_status compare_pair(const source_tensor *a, const source_tensor *b, double tolerance, float *room,
                                json_t *report)
{
    difference d = {0};
    char shape_a[160], shape_b[160];
    if (a->n_dims != b->n_dims || memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) != 0) {
        json_array_append_new(json_object_get(report, "shapes"),
                              json_pack("{s:s, s:s, s:s, s:s}", "role", ckpt_role_name(a->role), "name", a->name, "a",
                                        safetensors_shape_text(a->n_dims, a->shape, shape_a, sizeof shape_a), "b",
                                        safetensors_shape_text(b->n_dims, b->shape, shape_b, sizeof shape_b)));
        return FSDP_OK;
    }
    FSDP_TRY(compare_tensor(a, b, tolerance, room, &d));
    if (d.n_different > 0)
        json_array_append_new(json_object_get(report, "differ"),
                              json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "role", ckpt_role_name(a->role),
                                        "name", a->name, "elements", (json_int_t)a->numel, "different",
                                        (json_int_t)d.n_different, "not_finite", (json_int_t)d.n_not_finite, "first",
                                        (json_int_t)d.first, "max_absolute", d.max_absolute, "max_relative",
                                        d.max_relative));
    return FSDP_OK;
}

/* Flags are how a run was called, not what it had reached. */
static bool same_extra(const json_t *a, const json_t *b)
{
    json_t *left = json_copy((json_t *)(uintptr_t)a), *right = json_copy((json_t *)(uintptr_t)b);
    json_object_del(left, "flags");
    json_object_del(right, "flags");
    bool same = json_equal(left, right);
    json_decref(right);
    json_decref(left);
    return same;
}

static fsdp_status compare_sources(const ckpt_source *a, const ckpt_source *b, double tolerance, json_t *report)
{
    float *room = malloc(2 * BLOCK_NUMEL * sizeof *room);
    if (!room)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a comparison");
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < source_count(a) && status == FSDP_OK; i++) {
        const source_tensor *mine = source_at(a, i), *other = source_find(b, mine->role, mine->name);
        if (other)
            status = compare_pair(mine, other, tolerance, room, report);
        else
            add(report, "only_a", mine);
    }
    for (int i = 0; i < source_count(b) && status == FSDP_OK; i++)
        if (!source_find(a, source_at(b, i)->role, source_at(b, i)->name))
            add(report, "only_b", source_at(b, i));
    free(room);
    const manifest *ma = source_manifest(a), *mb = source_manifest(b);
    if (ma && mb)
        json_object_set_new(report, "same_state",
                            json_boolean(ma->step == mb->step && same_extra(ma->extra, mb->extra)));
    return status;
}

static void print_names(FILE *out, const json_t *list, const char *format, const char *path)
{
    const json_t *entry;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, entry)
    {
        fprintf(out, "  %-10s %s: ", report_string(entry, "role"), report_string(entry, "name"));
        fprintf(out, "%s%s\n", format, path);
    }
}

static void print_difference(FILE *out, const json_t *entry)
{
    int64_t n_different = report_int(entry, "different"), n_not_finite = report_int(entry, "not_finite");
    fprintf(out, "  %-10s %s: %" PRId64 " of %" PRId64 " elements, from %" PRId64 " on", report_string(entry, "role"),
            report_string(entry, "name"), n_different, report_int(entry, "elements"), report_int(entry, "first"));
    if (n_different > n_not_finite)
        fprintf(out, ", by up to %g (relative %g)", json_number_value(json_object_get(entry, "max_absolute")),
                json_number_value(json_object_get(entry, "max_relative")));
    if (n_not_finite > 0)
        fprintf(out, ", %" PRId64 " of them NaN or infinite in one or both", n_not_finite);
    fputc('\n', out);
}

static void print_report(FILE *out, const json_t *report)
{
    const json_t *entry, *state = json_object_get(report, "same_state");
    size_t i;
    bool same = json_is_true(json_object_get(report, "same"));
    fprintf(out, "a %s\nb %s\n%s\n", report_string(report, "a"), report_string(report, "b"),
            same ? "all tensors are the same" : "they differ:");
    if (json_is_false(state))
        fprintf(out, "  step or training state differ\n");
    print_names(out, json_object_get(report, "only_a"), "only in ", "a");
    print_names(out, json_object_get(report, "only_b"), "only in ", "b");
    json_array_foreach(json_object_get(report, "shapes"), i, entry)
        fprintf(out, "  %-10s %s: shape %s and %s\n", report_string(entry, "role"), report_string(entry, "name"),
                report_string(entry, "a"), report_string(entry, "b"));
    json_array_foreach(json_object_get(report, "differ"), i, entry) print_difference(out, entry);
}

static fsdp_status open_resolved(const char *path, ckpt_source **out)
{
    char *resolved;
    FSDP_TRY(report_resolve(path, &resolved));
    fsdp_status status = source_open(resolved, out);
    free(resolved);
    return status;
}

fsdp_status fsdp_checkpoint_diff(const char *a, const char *b, double tolerance, bool json, bool *same, char **text)
{
    static const char *const lists[] = {"only_a", "only_b", "shapes", "differ"};
    ckpt_source *left = NULL, *right = NULL;
    json_t *report = NULL;
    fsdp_status status;
    *text = NULL;
    *same = true;
    TRY_OR(done, open_resolved(a, &left));
    TRY_OR(done, open_resolved(b, &right));
    report = json_pack("{s:s, s:s}", "a", source_path(left), "b", source_path(right));
    for (size_t i = 0; i < 4; i++)
        json_object_set_new(report, lists[i], json_array());
    TRY_OR(done, compare_sources(left, right, tolerance, report));
    for (size_t i = 0; i < 4; i++)
        *same &= json_array_size(json_object_get(report, lists[i])) == 0;
    json_object_set_new(report, "same", json_boolean(*same));
    status = report_text(report, json, print_report, text);
    report = NULL;
done:
    json_decref(report);
    source_close(right);
    source_close(left);
    return status;
}
