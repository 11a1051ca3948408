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
    workload w = {.model = model_config_default(MODEL_LLAMA), .batch = 1, .width = 16, .moments = 2};
    fsdp_llama_config *c = &w.model.llama;
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

/* The least that any setting takes on one rank, with and without offload. */
static size_t least(const workload *w, device *dev, bool offload)
{
    fsdp_config c = by_block();
    memory_plan p;
    c.strategy = FSDP_FULL;
    c.checkpointing = FSDP_CHECKPOINT_FULL;
    c.cpu_offload = offload;
    assert_int_equal(workload_plan(w, &c, dev, 1, 1, &p), FSDP_OK);
    return p.total;
}

static void offload_is_named_only_when_nothing_else_fits(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev;
    plan_entry e;
    char flags[PLAN_FLAGS];
    assert_int_equal(device_open_cpu(CPU_PRODUCT_AUTO, &dev), FSDP_OK);
    size_t with = least(&w, dev, true), without = least(&w, dev, false);
    assert_true(with < without);
    assert_int_equal(plan_fit(&w, &c, dev, 1, 1, without, true, &e), FSDP_OK);
    assert_false(e.cpu_offload);
    assert_null(strstr(plan_entry_flags(&e, flags, sizeof flags), "--cpu_offload"));
    assert_int_equal(plan_fit(&w, &c, dev, 1, 1, with, true, &e), FSDP_OK);
    assert_true(e.cpu_offload && e.plan.total <= with && e.plan.host_state > 0);
    assert_non_null(strstr(plan_entry_flags(&e, flags, sizeof flags), " --cpu_offload"));
    assert_int_equal(plan_fit(&w, &c, dev, 1, 1, with, false, &e), FSDP_ERR_INPUT);
    assert_int_equal(plan_fit(&w, &c, dev, 1, 1, with - 1, true, &e), FSDP_ERR_INPUT);
    device_close(dev);
}

static void the_update_costs_the_bytes_it_moves_for_all_ranks_of_a_host(void **state)
{
    (void)state;
    workload w = small_llama();
    fsdp_config c = by_block();
    device *dev;
    memory_plan p;
    assert_int_equal(device_open_cpu(CPU_PRODUCT_AUTO, &dev), FSDP_OK);
    assert_int_equal(workload_plan(&w, &c, dev, 2, 2, &p), FSDP_OK);
    assert_true(plan_update_seconds(&p, 2) == 0); /* nothing is offloaded */
    size_t elements = p.gradients / sizeof(float);
    c.cpu_offload = true;
    assert_int_equal(workload_plan(&w, &c, dev, 2, 2, &p), FSDP_OK);
    double expected = (double)elements * 30 * 2 / (HOST_GIGABYTES * 1e9);
    assert_true(fabs(plan_update_seconds(&p, 2) - expected) <= 1e-9 * expected);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offload_is_named_only_when_nothing_else_fits),
        cmocka_unit_test(the_update_costs_the_bytes_it_moves_for_all_ranks_of_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
