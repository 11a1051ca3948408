/* Codes of weights: chosen by use and shape, rounded part by part; measured here where no update has done it. */
#include "shard/build/codes.h"

#include "base/checked.h"

/* Floats from one group's scale to the next: {scale, magnitude, -, -}; GPUs want them 16 bytes apart. */
enum { STRIDE = 4 };
/* Parts are rounded as rows of this many elements, as many as there are, and the rest as rows of one block. */
enum { COLUMNS = 4096 };
/* Multiples that products in 8 bits want of every dimension. */
enum { DIVISOR = 16 };

/* ---- Which weights ---- */

static bool unit_keeps_codes(const fsdp_model *m, int index)
{
    bool spread = m->shardings[index].n_shards > 1 && !m->shardings[index].whole;
    bool wanted = m->config.fp8_weights == FSDP_FP8_WEIGHTS_EACH_STEP ||
                  (m->config.fp8_weights == FSDP_FP8_WEIGHTS_AUTO && spread);
    /* Offloaded units are updated by a thread that meets no other rank. */
    return wanted && !m->policies[index].ignored && !m->offloaded[index] && m->keep_groups[index] == 0;
}

/* A group is one matrix. */
static bool fits(const fsdp_parameter *head)
{
    int64_t rows = 0;
    for (const fsdp_parameter *p = head; p; p = p->group_next) {
        if (p->linear != LINEAR_OUTPUT_MAJOR || p->output || p->n_dims != 2 || p->int8 || !p->decay ||
            p->trainable != head->trainable || p->unit != head->unit)
            return false;
        rows += p->shape[0];
    }
    return head->fp8 != FSDP_FP8_OFF && rows % DIVISOR == 0 && head->shape[1] % DIVISOR == 0;
}

/* Gathering codes takes a byte an element of the segment, and what has none as it is: less than before where most
 * elements have codes. */
static bool is_worth_it(const fsdp_model *m, int index, bool trainable)
{
    int64_t coded = 0, others = 0;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        if (p->unit == index && p->trainable == trainable && !p->int8)
            *(p->coded ? &coded : &others) += p->numel;
    }
    return coded > others;
}

void codes_choose(fsdp_model *m)
{
    for (int i = 0; i < m->contents.n_parameters && m->config.fp8 != FSDP_FP8_OFF; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        p->codable = fits(p->group_head);
        p->coded = p->codable && unit_keeps_codes(m, p->unit);
    }
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        if (!p->coded || is_worth_it(m, p->unit, p->trainable))
            continue;
        for (int k = i; k < m->contents.n_parameters; k++) { /* none of them is */
            fsdp_parameter *other = m->contents.parameters[k];
            other->coded &= other->unit != p->unit || other->trainable != p->trainable;
        }
    }
}

/* ---- Memory ---- */

size_t codes_bytes(const fsdp_model *m, int index, const layout_segment *s)
{
    if (s->coded_end == 0)
        return 0;
    /* A shard sends one for every element, so that all ranks send alike. */
    return (size_t)(model_has_all_at_hand(m, index) ? s->coded_end : model_part(m, index, s).n);
}

static bool has_codes(const layout_segment *s, int slot)
{
    return s->slots[slot].offset < s->coded_end && s->slots[slot].parameter->group_head == s->slots[slot].parameter;
}

/* Groups with codes; those that are trained come first, so that their scales lie together. */
static int count_groups(const fsdp_model *m, bool trainable)
{
    int n = 0;
    for (int i = 0; i < m->layout->n_units; i++)
        for (int k = 0; k < m->layout->units[i].n_segments; k++) {
            const layout_segment *s = &m->layout->units[i].segments[k];
            for (int j = 0; j < s->n_slots; j++)
                n += s->trainable == trainable && has_codes(s, j);
        }
    return n;
}

size_t codes_scales_bytes(const fsdp_model *m)
{
    return (size_t)(count_groups(m, true) + count_groups(m, false)) * STRIDE * sizeof(float);
}

/* Whether some rank has only a part of a trained group. */
static bool agrees(const fsdp_model *m)
{
    bool spread = false;
    for (int i = 0; i < m->layout->n_units; i++) {
        const layout_segment *s = &m->layout->units[i].segments[0];
        spread |= s->trainable && s->coded_end > 0 && !model_has_all_at_hand(m, i);
    }
    return spread;
}

size_t codes_agreed_bytes(const fsdp_model *m)
{
    return agrees(m) ? (size_t)count_groups(m, true) * STRIDE * sizeof(float) : 0;
}

static void hand_out_scales(fsdp_model *m, bool trainable, float **at)
{
    for (int i = 0; i < m->layout->n_units; i++)
        for (int k = 0; k < m->layout->units[i].n_segments; k++) {
            const layout_segment *s = &m->layout->units[i].segments[k];
            for (int j = 0; j < s->n_slots; j++) {
                if (s->trainable != trainable || !has_codes(s, j))
                    continue;
                s->slots[j].parameter->codes_scale = *at;
                *at += STRIDE;
            }
        }
}

void codes_give_scales(fsdp_model *m)
{
    float *at = m->scales;
    hand_out_scales(m, true, &at);
    hand_out_scales(m, false, &at);
}

fsdp_status codes_place(fsdp_model *m)
{
    m->scales_bytes = codes_scales_bytes(m);
    if (m->scales_bytes == 0)
        return FSDP_OK;
    FSDP_TRY(m->dev->allocate(m->dev, MEMORY_DEVICE, m->scales_bytes, (void **)&m->scales));
    FSDP_TRY(m->dev->zero(m->compute, m->scales, m->scales_bytes));
    codes_give_scales(m);
    for (int i = 0; i < m->layout->n_units; i++)
        for (int k = 0; k < m->units[i].n_segments; k++) { /* padding is gathered, too */
            const unit_segment *s = &m->units[i].segments[k];
            if (s->codes)
                FSDP_TRY(m->dev->zero(m->compute, s->codes, codes_bytes(m, i, s->layout)));
        }
    return FSDP_OK;
}

/* ---- Making them ---- */

/* What this rank has of a group: `n` elements from element `at` of its part of the segment. */
typedef struct group_part {
    const fsdp_parameter *head;
    int64_t at, n;
} group_part;

static group_part part_of(const unit_segment *s, int slot)
{
    const layout_slot *place = &s->layout->slots[slot];
    int64_t end = place->offset;
    for (const fsdp_parameter *p = place->parameter; p; p = p->group_next)
        end += p->numel;
    int64_t first = max_i64(place->offset, s->first), stop = min_i64(end, s->first + s->numel);
    return (group_part){place->parameter, first - s->first, max_i64(0, stop - first)};
}

static buffer values_at(const unit_segment *s, int64_t at)
{
    return (buffer){(uint8_t *)s->copy + (size_t)at * fsdp_dtype_size(s->dtype), s->dtype};
}

static fsdp_status measure(fsdp_model *m, const unit_segment *s, group_part g)
{
    fp8_cast_args a = {.rows = 1, .columns = g.n, .x = values_at(s, g.at), .scale = g.head->codes_scale};
    return m->dev->kernels->fp8_cast(m->compute, &a);
}

static fsdp_status round_rows(fsdp_model *m, const unit_segment *s, group_part g, int64_t columns)
{
    fp8_cast_args a = {.rows = g.n / columns,
                       .columns = columns,
                       .x = values_at(s, g.at),
                       .q = {s->codes + g.at, FSDP_E4M3},
                       .scale = g.head->codes_scale};
    a.magnitude = a.scale + 1;
    return m->dev->kernels->fp8_cast(m->compute, &a);
}

/* A part of no elements has a scale, too. */
static fsdp_status round_part(fsdp_model *m, const unit_segment *s, group_part g)
{
    group_part first = g, rest = g;
    first.n = g.n / COLUMNS * COLUMNS;
    rest.at += first.n;
    rest.n -= first.n;
    if (first.n > 0 || g.n == 0)
        FSDP_TRY(round_rows(m, s, first, COLUMNS));
    return rest.n > 0 ? round_rows(m, s, rest, LAYOUT_BLOCK) : FSDP_OK;
}

typedef fsdp_status (*group_action)(fsdp_model *m, const unit_segment *s, group_part g);

static fsdp_status for_each_group(fsdp_model *m, const unit_segment *s, group_action action)
{
    for (int j = 0; s->layout->coded_end > 0 && j < s->layout->n_slots; j++)
        if (has_codes(s->layout, j))
            FSDP_TRY(action(m, s, part_of(s, j)));
    return FSDP_OK;
}

/* The largest magnitudes over all ranks: compared as whole numbers, which puts a NaN above all others. A maximum does
 * not depend on the order of ranks. The scales that lie between them are written anew afterwards. */
static fsdp_status agree(fsdp_model *m, comm_group *g, float *scales, int64_t n)
{
    buffer values = {scales, FSDP_I32};
    if (m->carrier)
        return m->carrier->sum(m->carrier->context, n * STRIDE, sizeof(int32_t));
    comm_span span = {.send = values, .recv = values, .count = n * STRIDE};
    comm_op op = {.label = "largest weights",
                  .step = m->step,
                  .reduction = FSDP_REDUCE_MAX,
                  .n_spans = 1,
                  .spans = &span,
                  .stream = m->compute};
    comm_request request = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_reduce(g, &op, &request));
    return comm_wait(&request, m->compute);
}

int codes_trained(const fsdp_model *m)
{
    return m->scales ? count_groups(m, true) : 0;
}

int codes_magnitudes(const unit_segment *s, update_magnitude *out)
{
    int n = 0;
    for (int j = 0; s->codes && j < s->layout->n_slots; j++) {
        group_part g = has_codes(s->layout, j) ? part_of(s, j) : (group_part){.n = 0};
        if (g.n > 0)
            out[n++] = (update_magnitude){g.at, g.at + g.n, g.head->codes_scale + 1};
    }
    return n;
}

fsdp_status codes_before_update(fsdp_model *m)
{
    int n = codes_trained(m);
    return n > 0 ? m->dev->zero(m->compute, m->scales, (size_t)n * STRIDE * sizeof(float)) : FSDP_OK;
}

fsdp_status codes_round_trained(fsdp_model *m)
{
    int n = codes_trained(m);
    if (n == 0)
        return FSDP_OK;
    for (int i = 0; i < m->layout->n_units; i++)
        if (!m->units[i].early)                                        /* those that are gather no codes */
            FSDP_TRY(comm_wait_sent(&m->units[i].gather, m->compute)); /* peers have read the old ones */
    if (agrees(m))
        FSDP_TRY(agree(m, m->carrier ? NULL : comm_world(m->world->comm), m->scales, n));
    for (int i = 0; i < m->layout->n_units; i++)
        if (m->units[i].segments[0].gradient)
            FSDP_TRY(for_each_group(m, &m->units[i].segments[0], round_part));
    return FSDP_OK;
}

static fsdp_status round_segment(fsdp_model *m, int index, const unit_segment *s)
{
    int64_t n = 0;
    float *first = NULL;
    for (int j = 0; j < s->layout->n_slots; j++)
        if (has_codes(s->layout, j) && n++ == 0)
            first = s->layout->slots[j].parameter->codes_scale;
    if (n > 0)
        FSDP_TRY(m->dev->zero(m->compute, first, (size_t)n * STRIDE * sizeof *first));
    FSDP_TRY(for_each_group(m, s, measure));
    if (n > 0 && !model_has_all_at_hand(m, index))
        FSDP_TRY(agree(m, m->shardings[index].shard_group, first, n));
    return for_each_group(m, s, round_part);
}

fsdp_status codes_round_unit(fsdp_model *m, int index)
{
    for (int k = 0; m->scales && k < m->units[index].n_segments; k++)
        FSDP_TRY(round_segment(m, index, &m->units[index].segments[k]));
    return FSDP_OK;
}
