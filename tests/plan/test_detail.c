/* A plan in detail adds up to the plan: what lives fits the arenas, and every remedy is the plan that it names. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "device/gpu.h"
#include "plan/detail_print.h"
#include "plan/small_model.h"
#include "tensor/lifetime.h"

/* Arena 0: gathered units, 1: full gradients, 2: the slab. */
static int arena_of(picture_class class)
{
    return class == PICTURE_GATHERED ? 0 : class == PICTURE_FULL_GRADIENTS ? 1 : 2;
}

/* Lives that follow from events must pack into the arena that the schedule made of its own. */
static void check_arena(const plan_picture *p, int which, size_t bytes)
{
    lifetime *items = calloc((size_t)p->n_lives + 1, sizeof *items);
    int n = 0;
    size_t packed, most = 0;
    for (int i = 0; i < p->n_lives; i++) {
        const picture_life *l = &p->lives[i];
        assert_true(l->first >= 0 && l->first <= l->last && l->last <= p->length);
        if (arena_of(l->class) == which)
            items[n++] = (lifetime){l->bytes, l->first, l->last, 0};
    }
    for (int at = 0; at <= p->length; at++) {
        size_t now = 0;
        for (int i = 0; i < n; i++)
            now += items[i].first <= at && at <= items[i].last ? items[i].bytes : 0;
        most = now > most ? now : most;
    }
    assert_int_equal(lifetime_pack(items, n, &packed), FSDP_OK);
    assert_true(most <= bytes);
    if (which < 2)
        assert_int_equal(packed, bytes);
    else /* ties are packed in another order */
        assert_true(packed <= bytes + bytes / 8 && bytes <= packed + packed / 8);
    free(items);
}

static void check_detail(const plan_detail *d)
{
    const plan_picture *p = &d->picture;
    int64_t parameters = 0, sum = 0;
    size_t at_peak = 0;
    for (int i = 0; i < p->n_units; i++)
        parameters += p->units[i].parameters;
    assert_int_equal(p->n_units, d->plan.n_units);
    assert_true(parameters > 0);
    assert_int_equal(p->gather_bytes, d->plan.gather);
    assert_int_equal(p->gradient_bytes, d->plan.full_gradients);
    assert_int_equal(p->slab_bytes, d->plan.activations + d->plan.workspace);
    check_arena(p, 0, p->gather_bytes);
    check_arena(p, 1, p->gradient_bytes);
    check_arena(p, 2, p->slab_bytes);
    for (int i = 0; i < d->n_values; i++)
        at_peak += d->values[i].bytes;
    assert_int_equal(at_peak, d->peak_bytes);
    for (int k = 0; k < PICTURE_CLASSES; k++)
        sum += d->series[d->peak * PICTURE_CLASSES + k];
    assert_int_equal(sum, d->peak_bytes);
    assert_true(d->peak_bytes <= p->gather_bytes + p->gradient_bytes + p->slab_bytes);
}

static void details_add_up(device *dev, fsdp_config c, int ranks)
{
    workload w = small();
    plan_detail d = {.work = &w, .config = &c, .world = {dev, ranks, ranks > 2 ? ranks / 2 : ranks}};
    assert_int_equal(plan_detail_make(&d), FSDP_OK);
    check_detail(&d);
    plan_detail_clear(&d);
}

static const picture_life *life_of(const plan_picture *p, picture_class class, const char *unit, bool backward)
{
    for (int i = 0; i < p->n_lives; i++) {
        const picture_life *l = &p->lives[i];
        if (l->class == class && l->unit >= 0 && strcmp(p->units[l->unit].name, unit) == 0 &&
            (class != PICTURE_GATHERED || l->backward == backward))
            return l;
    }
    fail_msg("unit %s has no such life", unit);
    return NULL;
}

/* The root unit is a norm of a few parameters, between the last layer and the head: it hides nothing. */
static void a_head_is_gathered_and_reduced_beside_the_last_layer(void **state)
{
    (void)state;
    device *dev;
    workload w = small();
    fsdp_decoder_config *m = &w.model.decoder;
    fsdp_config c = sharding(FSDP_FULL, FSDP_CHECKPOINT_NONE);
    m->vocabulary = 8192, m->hidden = 512, m->intermediate = 2048, m->head_dim = 128, m->tied = false;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    plan_detail d = {.work = &w, .config = &c, .world = {dev, 4, 4}};
    assert_int_equal(plan_detail_make(&d), FSDP_OK);
    const picture_life *head = life_of(&d.picture, PICTURE_GATHERED, "lm_head", true);
    const picture_life *last = life_of(&d.picture, PICTURE_GATHERED, "model.layers.4", false);
    const picture_life *before = life_of(&d.picture, PICTURE_GATHERED, "model.layers.3", false);
    const picture_life *sums = life_of(&d.picture, PICTURE_FULL_GRADIENTS, "lm_head", true);
    const picture_life *next = life_of(&d.picture, PICTURE_FULL_GRADIENTS, "model.layers.4", true);
    assert_int_equal(head->first, before->last + 1); /* when the last layer begins to compute */
    assert_true(last->first < head->first && last->last > head->last);
    assert_true(sums->first < next->first && next->first < sums->last);
    plan_detail_clear(&d);
    device_close(dev);
}

static void the_picture_adds_up_to_the_plan_on_every_strategy(void **state)
{
    (void)state;
    device *dev;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        for (int level = 0; level < 3; level++) {
            fsdp_config c = sharding((fsdp_strategy)s, (fsdp_checkpointing)level);
            plan_world world = {dev, 4, 2};
            if (!plan_strategy_applies(c.strategy, &c, &world))
                continue;
            details_add_up(dev, c, 4);
            if (s == FSDP_FULL || s == FSDP_NO_SHARD)
                details_add_up(dev, c, 1);
            c.sync_each_micro_batch = !c.sync_each_micro_batch;
            details_add_up(dev, c, 4);
            c.gather_buffers = 3;
            c.backward_prefetch = FSDP_PREFETCH_POST;
            details_add_up(dev, c, 4);
        }
    }
    device_close(dev);
}

static void the_picture_adds_up_with_state_and_activations_on_the_host(void **state)
{
    (void)state;
    device *dev;
    assert_int_equal(device_describe("h100", &dev), FSDP_OK);
    for (int sync = 0; sync < 2; sync++) {
        fsdp_config c = sharding(FSDP_FULL, FSDP_CHECKPOINT_FULL);
        c.sync_each_micro_batch = sync;
        c.cpu_offload = true;
        details_add_up(dev, c, 4);
        details_add_up(dev, c, 1);
        c.offload_activations = true;
        details_add_up(dev, c, 4);
    }
    device_close(dev);
}

static const plan_remedy *remedy_named(const plan_detail *d, const char *flags)
{
    for (int i = 0; i < d->n_remedies; i++)
        if (strcmp(d->remedies[i].flags, flags) == 0)
            return &d->remedies[i];
    return NULL;
}

static void every_remedy_is_the_plan_that_its_flags_make(void **state)
{
    (void)state;
    device *dev;
    workload w = small(), halved = w;
    memory_plan expected;
    assert_int_equal(device_describe("h100", &dev), FSDP_OK);
    fsdp_config c = sharding(FSDP_NO_SHARD, FSDP_CHECKPOINT_NONE), changed = c;
    plan_detail d = {.work = &w, .config = &c, .world = {dev, 4, 4}, .limit = {.device = 1 << 20}};
    assert_int_equal(plan_detail_make(&d), FSDP_OK);

    changed.strategy = FSDP_FULL;
    assert_int_equal(workload_plan(&w, &changed, &d.world, &expected), FSDP_OK);
    assert_non_null(remedy_named(&d, "--sharding_strategy full"));
    assert_int_equal(remedy_named(&d, "--sharding_strategy full")->total, expected.total);

    changed = c;
    changed.checkpointing = FSDP_CHECKPOINT_FULL;
    assert_int_equal(workload_plan(&w, &changed, &d.world, &expected), FSDP_OK);
    assert_non_null(remedy_named(&d, "--activation_checkpointing full"));
    assert_int_equal(remedy_named(&d, "--activation_checkpointing full")->total, expected.total);

    changed = c;
    changed.cpu_offload = true;
    assert_int_equal(workload_plan(&w, &changed, &d.world, &expected), FSDP_OK);
    assert_non_null(remedy_named(&d, "--cpu_offload"));
    assert_int_equal(remedy_named(&d, "--cpu_offload")->total, expected.total);

    halved.batch = 2;
    assert_int_equal(workload_plan(&halved, &c, &d.world, &expected), FSDP_OK);
    assert_non_null(remedy_named(&d, "--train_batch_size 2"));
    assert_int_equal(remedy_named(&d, "--train_batch_size 2")->total, expected.total);

    for (int i = 0; i < d.n_remedies; i++) {
        assert_true(d.remedies[i].total < d.plan.total);
        assert_int_equal(d.remedies[i].fits, d.remedies[i].total <= d.limit.device);
    }

    plan_detail_clear(&d);
    c.cpu_offload = true;
    c.cpu_offload_resident = 60;
    d = (plan_detail){.work = &w, .config = &c, .world = {dev, 4, 4}, .limit = {.device = 1 << 20}};
    assert_int_equal(plan_detail_make(&d), FSDP_OK);
    changed = c;
    changed.cpu_offload_resident = 0;
    assert_int_equal(workload_plan(&w, &changed, &d.world, &expected), FSDP_OK);
    assert_non_null(remedy_named(&d, "--cpu_offload_resident 0"));
    assert_int_equal(remedy_named(&d, "--cpu_offload_resident 0")->total, expected.total);
    plan_detail_clear(&d);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_picture_adds_up_to_the_plan_on_every_strategy),
        cmocka_unit_test(a_head_is_gathered_and_reduced_beside_the_last_layer),
        cmocka_unit_test(the_picture_adds_up_with_state_and_activations_on_the_host),
        cmocka_unit_test(every_remedy_is_the_plan_that_its_flags_make),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
