/* Layout arithmetic: packing of parameters into segments, cuts into shards. */
#include "shard/build/layout.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "device/int8_block.h"

_Static_assert(LAYOUT_BLOCK == INT8_BLOCK, "shards are cut on blocks of 8 bits");

static int64_t up_to_block(int64_t n)
{
    return ceil_div(n, LAYOUT_BLOCK) * LAYOUT_BLOCK;
}

/* Appends a parameter, or the whole group that it heads, to the segment. */
static fsdp_status place_group(layout_segment *s, fsdp_parameter *head)
{
    int64_t at = up_to_block(s->numel);
    for (fsdp_parameter *p = head; p; p = p->group_next) {
        if (p->unit != head->unit || p->trainable != head->trainable || p->int8 != head->int8 ||
            p->codable != head->codable || p->decay != head->decay)
            return error_set(FSDP_ERR_INPUT, "%s and %s form a group: they must share unit, freezing and weight decay",
                             head->name, p->name);
        layout_slot *grown = realloc(s->slots, (size_t)(s->n_slots + 1) * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "laying out %s: out of host memory", p->name);
        s->slots = grown;
        s->slots[s->n_slots++] = (layout_slot){p, at};
        at += p->numel;
    }
    s->numel = at;
    return FSDP_OK;
}

static fsdp_status fill_segment(layout_segment *s, const module_contents *contents, int unit, bool trainable, bool int8)
{
    s->trainable = trainable;
    s->int8 = int8;
    static const struct {
        bool decay, codable;
    } order[] = {{true, true}, {true, false}, {false, false}};
    int64_t ends[3];
    bool coded = false;
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < contents->n_parameters; i++) {
            fsdp_parameter *p = contents->parameters[i];
            if (p->unit == unit && p->trainable == trainable && p->int8 == int8 && p->decay == order[k].decay &&
                p->codable == order[k].codable && p->group_head == p) {
                FSDP_TRY(place_group(s, p));
                coded |= p->coded;
            }
        }
        ends[k] = up_to_block(s->numel);
    }
    s->coded_end = coded ? ends[0] : 0;
    s->decay_end = ends[1];
    return FSDP_OK;
}

/* Equal shards are all padded to the largest; weighted ones share the blocks as the weights say, the last taking the
 * rest. */
static fsdp_status cut_segment(layout_segment *s, int n_shards, const int *weights)
{
    int64_t blocks = ceil_div(s->numel, LAYOUT_BLOCK), total = 0, sum = 0;
    s->n_shards = n_shards;
    s->cuts = calloc((size_t)n_shards + 1, sizeof *s->cuts);
    if (!s->cuts)
        return error_set(FSDP_ERR_MEMORY, "cutting a segment into %d shards: out of host memory", n_shards);
    if (!weights)
        blocks = ceil_div(blocks, n_shards) * n_shards;
    s->padded = blocks * LAYOUT_BLOCK;
    for (int r = 0; r < n_shards; r++)
        total += weights ? weights[r] : 1;
    for (int r = 0; r < n_shards; r++) {
        sum += weights ? weights[r] : 1;
        s->cuts[r + 1] = blocks * sum / total * LAYOUT_BLOCK;
    }
    return FSDP_OK;
}

static fsdp_status check_weights(const layout_cut *cut, const int *weights)
{
    for (int r = 0; r < cut->n_shards; r++) {
        if (weights[r] < 1)
            return error_set(FSDP_ERR_INPUT, "shard weight %d of rank %d: weights must be positive", weights[r], r);
    }
    return FSDP_OK;
}

static fsdp_status build_unit(layout *l, int index, const char *name, const module_contents *contents,
                              const layout_cut *cut, const int *weights)
{
    layout_unit *u = &l->units[index];
    u->whole = cut->whole;
    if (cut->whole)
        weights = NULL;
    if (weights)
        FSDP_TRY(check_weights(cut, weights));
    u->name = strdup(name);
    if (!u->name)
        return error_set(FSDP_ERR_MEMORY, "laying out unit %s: out of host memory", name);
    for (int kind = 0; kind < LAYOUT_SEGMENTS; kind++) {
        layout_segment *s = &u->segments[u->n_segments];
        fsdp_status status = fill_segment(s, contents, index, kind == 0, kind == LAYOUT_SEGMENTS - 1);
        if (s->n_slots == 0 && status == FSDP_OK)
            continue;
        u->n_segments++; /* also on failure: layout_free finds it */
        FSDP_TRY(status);
        FSDP_TRY(cut_segment(s, cut->n_shards, weights));
        for (int i = 0; i < s->n_slots; i++) {
            u->parameters_numel += s->slots[i].parameter->numel;
            l->trainable_numel += kind > 0 ? 0 : s->slots[i].parameter->numel;
        }
    }
    if (u->n_segments == 0)
        return error_set(FSDP_ERR_INPUT, "unit %s has no parameters", name);
    l->parameters_numel += u->parameters_numel;
    return FSDP_OK;
}

fsdp_status layout_build(const module_contents *contents, int n_units, const char *const *names, const layout_cut *cuts,
                         const int *weights, layout **out)
{
    layout *l = calloc(1, sizeof *l);
    if (!l || !(l->units = calloc((size_t)n_units, sizeof *l->units))) {
        free(l);
        return error_set(FSDP_ERR_MEMORY, "laying out %d units: out of host memory", n_units);
    }
    l->n_units = n_units;
    for (int i = 0; i < n_units; i++) {
        fsdp_status status = build_unit(l, i, names[i], contents, &cuts[i], weights);
        if (status != FSDP_OK) {
            layout_free(l);
            return status;
        }
    }
    *out = l;
    return FSDP_OK;
}

void layout_free(layout *l)
{
    if (!l)
        return;
    for (int i = 0; i < l->n_units; i++) {
        for (int k = 0; k < l->units[i].n_segments; k++) {
            free(l->units[i].segments[k].slots);
            free(l->units[i].segments[k].cuts);
        }
        free(l->units[i].name);
    }
    free(l->units);
    free(l);
}

int64_t layout_shard_numel(const layout_segment *s, int rank)
{
    return rank < 0 ? s->padded : s->cuts[rank + 1] - s->cuts[rank];
}

size_t layout_kept_bytes(const layout_segment *s, int64_t numel, size_t element)
{
    return (size_t)(s->int8 ? numel / INT8_BLOCK : numel) * (s->int8 ? sizeof(int8_block) : element);
}

const layout_segment *layout_int8_segment(const layout_unit *u)
{
    const layout_segment *last = &u->segments[u->n_segments - 1];
    return last->int8 ? last : NULL;
}

int64_t layout_kept_first(const layout_segment *s, int size, int rank)
{
    return s->cuts[rank * (s->n_shards / size)];
}

int64_t layout_kept_numel(const layout_segment *s, int size, int rank)
{
    return layout_kept_first(s, size, rank + 1) - layout_kept_first(s, size, rank);
}

uint64_t layout_hash(const layout *l)
{
    uint64_t h = HASH_START;
    for (int i = 0; i < l->n_units; i++) {
        h = hash_text(h, l->units[i].name);
        h = hash_u64(h, l->units[i].whole);
        for (int k = 0; k < l->units[i].n_segments; k++) {
            const layout_segment *s = &l->units[i].segments[k];
            h = hash_u64(h, (uint64_t)s->trainable | (uint64_t)s->int8 << 1 | (uint64_t)s->coded_end << 2);
            for (int p = 0; p < s->n_slots; p++) {
                h = hash_text(h, s->slots[p].parameter->name);
                h = hash_u64(h, (uint64_t)s->slots[p].offset);
                h = hash_u64(h, (uint64_t)s->slots[p].parameter->numel);
            }
            for (int r = 0; r <= s->n_shards; r++)
                h = hash_u64(h, (uint64_t)s->cuts[r]);
        }
    }
    return h;
}

void layout_overlap(const layout_slot *place, int64_t first, int64_t end, int64_t *from, int64_t *n, int64_t *at)
{
    int64_t begin = max_i64(place->offset, first), stop = min_i64(place->offset + place->parameter->numel, end);
    *n = max_i64(0, stop - begin);
    *from = begin - place->offset;
    *at = begin;
}

void layout_extent(const layout_segment *s, int index, int64_t first, int64_t end, int64_t *at, int64_t *n)
{
    int64_t next = index + 1 < s->n_slots ? s->slots[index + 1].offset : s->padded;
    *at = max_i64(s->slots[index].offset, first);
    *n = max_i64(0, min_i64(next, end) - *at);
}
