/* When nothing fits a device, the search turns to the host's memory, says so, and says what it costs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "plan/search.h"

static workload small_llama(void)
{
    workload w = {.model = model_config_default(MODEL_DECODER), .batch = 1, .width = 16, .moments = 2};
    fsdp_llama_config *c = &w.model.decoder;
    c->vocabulary = 300, c->hidden = 64, c->intermediate = 160, c->layers = 6, c->heads = 4, c->kv_heads = 4;
    c->head_dim = 16, c->positions = 16;
    return w;
}

static fsdp_config by_block(void)
{
    fsdp_config c = FSDP_CONFIG_INIT;
    c.wrap = fsdp_wrap_by_type("llama_block");
    c.param_dtype = FSDP_BF16;
    return c;
}

/* A GPU: its memory is not the host's. */
static device *open_gpu(void)
{
    device *dev;
    assert_int_equal(device_describe("h200", &dev), FSDP_OK);
    return dev;
}

/* The least that any setting takes on one rank, with and without offload of the state. */
static size_t least(const workload *w, device *dev, bool offload)
{
    size_t least = SIZE_MAX;
    for (int i = 0; i < 3 * 2; i++) {
        fsdp_config c = by_block();
        memory_plan p;
        c.strategy = FSDP_FULL;
        c.checkpointing = (fsdp_checkpointing)(i % 3);
        c.offload_activations = i >= 3;
        c.cpu_offload = offload;
        assert_int_equal(workload_plan(w, &c, &(plan_world){dev, 1, 1}, &p), FSDP_OK);
        least = p.total < least ? p.total : least;
    }
    return least;
}

static void offload_is_named_only_when_nothing_else_fits(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev = open_gpu();
    plan_found found;
    char flags[PLAN_FLAGS];
    size_t with = least(&w, dev, true), without = least(&w, dev, false);
    plan_search s = {.work = &w, .config = &c, .world = {dev, 1, 1}, .free = {true, true, true, true}};
    assert_true(with < without);
    s.limit.device = without;
    assert_int_equal(plan_fit(&s, &found), FSDP_OK);
    assert_false(found.fit.config.cpu_offload);
    assert_null(strstr(plan_flags(&found.fit.config, &c, flags, sizeof flags), "--cpu_offload"));
    s.limit.device = with;
    assert_int_equal(plan_fit(&s, &found), FSDP_OK);
    assert_true(found.fit.config.cpu_offload && found.fit.plan.total <= with && found.fit.plan.host_state > 0);
    assert_non_null(strstr(plan_flags(&found.fit.config, &c, flags, sizeof flags), " --cpu_offload"));
    s.free.cpu_offload = false;
    assert_int_equal(plan_fit(&s, &found), FSDP_ERR_INPUT);
    s.free.cpu_offload = true;
    s.limit.device = with - 1;
    assert_int_equal(plan_fit(&s, &found), FSDP_ERR_INPUT);
    device_close(dev);
}

/* Where the search may decide it, no more is offloaded than the device has no room for. */
static void no_more_is_offloaded_than_has_to_be(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev = open_gpu();
    plan_found all, some;
    char flags[PLAN_FLAGS];
    plan_search s = {.work = &w, .config = &c, .world = {dev, 1, 1}, .free = {true, true, true, true, false}};
    s.limit.device = least(&w, dev, false) - 1;
    assert_int_equal(plan_fit(&s, &all), FSDP_OK);
    assert_int_equal(all.fit.config.cpu_offload_resident, 0);
    s.free.cpu_offload_resident = true;
    assert_int_equal(plan_fit(&s, &some), FSDP_OK);
    assert_true(some.fit.config.cpu_offload && some.fit.config.cpu_offload_resident > 0);
    assert_true(some.fit.plan.host_state < all.fit.plan.host_state && some.fit.plan.total > all.fit.plan.total);
    assert_true(some.fit.plan.total <= s.limit.device);
    assert_non_null(strstr(plan_flags(&some.fit.config, &c, flags, sizeof flags), " --cpu_offload_resident "));
    device_close(dev);
}

static void the_hosts_memory_has_a_limit_too(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev = open_gpu();
    plan_found found;
    plan_search s = {.work = &w,
                     .config = &c,
                     .world = {dev, 1, 1},
                     .limit = {least(&w, dev, true), 0},
                     .free = {true, true, true, true}};
    assert_int_equal(plan_fit(&s, &found), FSDP_OK);
    s.limit.host = found.fit.plan.host;
    assert_int_equal(plan_fit(&s, &found), FSDP_OK);
    s.limit.host--;
    assert_int_equal(plan_fit(&s, &found), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "of host memory"));
    device_close(dev);
}

/* On CPUs both memories are one. */
static void on_cpus_one_limit_is_for_all(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev;
    memory_plan p;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    assert_int_equal(workload_plan(&w, &c, &(plan_world){dev, 1, 1}, &p), FSDP_OK);
    assert_true(p.host > 0);
    assert_true(plan_fits(&p, dev, (plan_limit){p.total + p.host, 0}));
    assert_false(plan_fits(&p, dev, (plan_limit){p.total + p.host - 1, 0}));
    assert_true(plan_fits(&p, dev, (plan_limit){0, 0}));
    device_close(dev);
}

static void the_update_costs_the_bytes_it_moves_for_all_ranks_of_a_host(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev;
    memory_plan p;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    assert_int_equal(workload_plan(&w, &c, &(plan_world){dev, 2, 2}, &p), FSDP_OK);
    assert_true(plan_update_seconds(&p, 2) == 0); /* nothing is offloaded */
    size_t elements = p.gradients / sizeof(float);
    c.cpu_offload = true;
    assert_int_equal(workload_plan(&w, &c, &(plan_world){dev, 2, 2}, &p), FSDP_OK);
    double expected = (double)elements * 30 * 2 / (HOST_GIGABYTES * 1e9);
    assert_true(fabs(plan_update_seconds(&p, 2) - expected) <= 1e-9 * expected);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offload_is_named_only_when_nothing_else_fits),
        cmocka_unit_test(no_more_is_offloaded_than_has_to_be),
        cmocka_unit_test(the_hosts_memory_has_a_limit_too),
        cmocka_unit_test(on_cpus_one_limit_is_for_all),
        cmocka_unit_test(the_update_costs_the_bytes_it_moves_for_all_ranks_of_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
