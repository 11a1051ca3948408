/* Layout arithmetic: every element has one place, groups are packed, shards are whole blocks and cover everything. */
#include "shard/stack.h"

#include "base/checked.h"

static const fsdp_wrap by_block = {.kind = FSDP_WRAP_TYPE, .type = "block"};

static void check_segment(const layout_segment *s, int n_shards)
{
    int64_t end = 0;
    for (int i = 0; i < s->n_slots; i++) {
        const fsdp_parameter *p = s->slots[i].parameter;
        assert_true(s->slots[i].offset >= end);
        if (p->group_head == p)
            assert_int_equal(s->slots[i].offset % LAYOUT_BLOCK, 0);
        else
            assert_int_equal(s->slots[i].offset, end); /* members lie behind their head without a gap */
        assert_int_equal(p->trainable, s->trainable);
        assert_int_equal(p->decay, s->slots[i].offset < s->decay_end);
        end = s->slots[i].offset + p->numel;
    }
    assert_int_equal(s->numel, end);
    assert_true(s->padded >= end && s->padded % LAYOUT_BLOCK == 0);
    assert_int_equal(s->cuts[0], 0);
    assert_int_equal(s->cuts[n_shards], s->padded);
    for (int r = 0; r < n_shards; r++) {
        assert_true(s->cuts[r] <= s->cuts[r + 1]);
        assert_int_equal(s->cuts[r] % LAYOUT_BLOCK, 0);
        assert_int_equal(layout_shard_numel(s, r), s->cuts[r + 1] - s->cuts[r]);
    }
    assert_int_equal(layout_shard_numel(s, -1), s->padded);
}

static void every_parameter_has_one_place_for_any_number_of_shards(void **state)
{
    (void)state;
    for (int n_shards = 1; n_shards <= 9; n_shards++) {
        for (int64_t hidden = 1; hidden <= 67; hidden += 11) {
            stack s;
            stack_open(&s, 3, hidden);
            layout *l = stack_layout(&s, &by_block, n_shards, NULL);
            int places = 0;
            int64_t numel = 0;
            for (int u = 0; u < l->n_units; u++) {
                for (int k = 0; k < l->units[u].n_segments; k++) {
                    const layout_segment *segment = &l->units[u].segments[k];
                    check_segment(segment, n_shards);
                    for (int r = 0; r < n_shards; r++) /* equal shards, for collectives of one count */
                        assert_int_equal(layout_shard_numel(segment, r), segment->padded / n_shards);
                    places += segment->n_slots;
                }
                numel += l->units[u].parameters_numel;
            }
            assert_int_equal(places, s.contents.n_parameters);
            assert_int_equal(numel, l->parameters_numel);
            layout_free(l);
            stack_close(&s);
        }
    }
}

static void frozen_parameters_have_a_segment_of_their_own_behind_the_trained(void **state)
{
    (void)state;
    stack s;
    stack_open(&s, 2, 10);
    module_find_parameter(&s.contents, "blocks.1.down")->trainable = false;
    for (int i = 0; i < s.contents.n_parameters; i++) {
        if (strncmp(s.contents.parameters[i]->name, "blocks.0", 8) == 0)
            s.contents.parameters[i]->trainable = false;
    }
    layout *l = stack_layout(&s, &by_block, 2, NULL);
    assert_string_equal(l->units[0].name, "blocks.0");
    assert_int_equal(l->units[0].n_segments, 1);
    assert_false(l->units[0].segments[0].trainable);
    assert_int_equal(l->units[1].n_segments, 2);
    assert_true(l->units[1].segments[0].trainable);
    assert_false(l->units[1].segments[1].trainable);
    assert_int_equal(l->units[1].segments[1].numel, STACK_WIDTH * 10);
    assert_int_equal(l->parameters_numel - l->trainable_numel,
                     l->units[0].parameters_numel + l->units[1].segments[1].numel);
    layout_free(l);
    stack_close(&s);
}

static void weights_divide_the_blocks_and_the_parts_of_a_parameter_add_up(void **state)
{
    (void)state;
    const int weights[] = {5, 1, 2};
    stack s;
    stack_open(&s, 1, 100);
    layout *l = stack_layout(&s, &by_block, 3, weights);
    const layout_segment *segment = &l->units[0].segments[0];
    check_segment(segment, 3);
    int64_t blocks = segment->padded / LAYOUT_BLOCK;
    for (int r = 0; r < 3; r++) {
        int64_t share = blocks * weights[r] / 8, got = layout_shard_numel(segment, r) / LAYOUT_BLOCK;
        assert_true(got - share <= 1 && share - got <= 1);
    }
    for (int i = 0; i < segment->n_slots; i++) {
        const layout_slot *place = &segment->slots[i];
        int64_t next = 0;
        for (int r = 0; r < 3; r++) {
            int64_t from, n, at;
            layout_overlap(place, segment->cuts[r], segment->cuts[r + 1], &from, &n, &at);
            if (n == 0)
                continue;
            assert_int_equal(from, next); /* shards hold a parameter's elements in order, each once */
            assert_int_equal(at, place->offset + from);
            assert_true(at >= segment->cuts[r] && at + n <= segment->cuts[r + 1]);
            next = from + n;
        }
        assert_int_equal(next, place->parameter->numel);
    }
    layout_free(l);
    stack_close(&s);
}

static void wrong_weights_and_torn_groups_are_refused_by_name(void **state)
{
    (void)state;
    const char *const names[] = {"all"};
    const layout_cut in_two = {.n_shards = 2};
    stack s;
    layout *l;
    stack_open(&s, 1, 10);
    for (int i = 0; i < s.contents.n_parameters; i++)
        s.contents.parameters[i]->unit = 0;
    assert_status(FSDP_ERR_INPUT, layout_build(&s.contents, 1, names, &in_two, (const int[]){3, 0}, &l));
    assert_non_null(strstr(fsdp_last_error(), "rank 1"));
    module_find_parameter(&s.contents, "blocks.0.up")->trainable = false;
    assert_status(FSDP_ERR_INPUT, layout_build(&s.contents, 1, names, &in_two, NULL, &l));
    assert_non_null(strstr(fsdp_last_error(), "blocks.0.gate"));
    assert_non_null(strstr(fsdp_last_error(), "blocks.0.up"));
    stack_close(&s);
}

static uint64_t hash_of(int n_blocks, int64_t hidden, int n_shards, const int *weights, const char *frozen)
{
    stack s;
    stack_open(&s, n_blocks, hidden);
    if (frozen)
        module_find_parameter(&s.contents, frozen)->trainable = false;
    layout *l = stack_layout(&s, &by_block, n_shards, weights);
    uint64_t hash = layout_hash(l);
    layout_free(l);
    stack_close(&s);
    return hash;
}

static void the_hash_tells_layouts_apart(void **state)
{
    (void)state;
    uint64_t base = hash_of(2, 10, 2, NULL, NULL);
    assert_true(base == hash_of(2, 10, 2, NULL, NULL));
    const uint64_t others[] = {hash_of(3, 10, 2, NULL, NULL), hash_of(2, 11, 2, NULL, NULL),
                               hash_of(2, 10, 3, NULL, NULL), hash_of(2, 10, 2, (const int[]){3, 1}, NULL),
                               hash_of(2, 10, 2, NULL, "blocks.0.down")};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_true(base != others[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_parameter_has_one_place_for_any_number_of_shards),
        cmocka_unit_test(frozen_parameters_have_a_segment_of_their_own_behind_the_trained),
        cmocka_unit_test(weights_divide_the_blocks_and_the_parts_of_a_parameter_add_up),
        cmocka_unit_test(wrong_weights_and_torn_groups_are_refused_by_name),
        cmocka_unit_test(the_hash_tells_layouts_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
