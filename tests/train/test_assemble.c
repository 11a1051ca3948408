/* From flags to the configurations of the parts, for flags whose effect only several ranks or a GPU would show. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/assemble.h"

#include "support_job.h"

/* The sharding of a small LLaMA on four ranks under one more flag. */
static assembled_sharding sharding(const char *flag)
{
    const char *argv[] = {"--vocab_size=64", "--sharding_strategy=full", flag};
    static assembled_sharding out;
    fsdp_settings s;
    model_config model;
    assert_int_equal(fsdp_settings_init(&s), FSDP_OK);
    if (fsdp_settings_parse(&s, "train", 3, (char *const *)argv) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    assert_int_equal(assemble_model(&s, 64, NULL, &model), FSDP_OK);
    assert_int_equal(assemble_sharding(&s, &model, 1000, 4, &out), FSDP_OK);
    fsdp_settings_free(&s);
    return out;
}

static void prefetch_is_read_in_all_its_spellings(void **state)
{
    static const struct {
        const char *flag;
        fsdp_prefetch wanted;
    } cases[] = {{"--backward_prefetch=pre", FSDP_PREFETCH_PRE},
                 {"--backward_prefetch=post", FSDP_PREFETCH_POST},
                 {"--backward_prefetch=BACKWARD_PRE", FSDP_PREFETCH_PRE},
                 {"--backward_prefetch=none", FSDP_PREFETCH_NONE},
                 {"--backward_prefetch=BACKWARD_POST", FSDP_PREFETCH_POST}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(sharding(cases[i].flag).config.backward_prefetch, cases[i].wanted);
    assert_true(sharding("--forward_prefetch").config.forward_prefetch);
    assert_true(sharding("--forward_prefetch=true").config.forward_prefetch);
    assert_false(sharding("--no_forward_prefetch").config.forward_prefetch);
    assert_false(sharding("--forward_prefetch=0").config.forward_prefetch);
}

static void switches_of_the_sharding_are_passed_on(void **state)
{
    (void)state;
    assert_true(sharding("--deterministic").config.deterministic);
    assert_false(sharding("--seed=1").config.deterministic);
    assert_false(sharding("--no_sync_each_micro_batch").config.sync_each_micro_batch);
    assert_true(sharding("--seed=1").config.sync_each_micro_batch);
    assert_true(sharding("--loss_scale=1024").config.loss_scale == 1024);
    assert_int_equal(sharding("--limit_all_gathers=1").config.gather_buffers, 2);
    assert_true(sharding("--limit_all_gathers=0").config.gather_buffers > 1000);
    assert_int_equal(sharding("--bucket_mb=3").config.bucket_bytes, 3 << 20);
    assert_true(sharding("--offload_activations=1").config.checkpointing == FSDP_CHECKPOINT_FULL);
    assert_true(sharding("--offload_activations=1").config.offload_activations);
    assert_false(sharding("--seed=1").config.offload_activations);
    assembled_sharding weighted = sharding("--shard_weights=2,1,1,4");
    assert_int_equal(weighted.weights[0], 2);
    assert_int_equal(weighted.weights[3], 4);
    assert_false(sharding("--optimizer=adamw").config.decay_vectors);
    assert_true(sharding("--optimizer=sgd").config.decay_vectors);
}

static void the_world_is_opened_as_asked(void **state)
{
    (void)state;
    const char *argv[] = {"--comm_backend=mpi", "--comm_timeout=7.5", "--comm_thread",
                          "--threads=3",        "--device=gpu",       "--products=portable"};
    fsdp_settings s;
    fsdp_world_config world;
    assert_int_equal(fsdp_settings_init(&s), FSDP_OK);
    assert_int_equal(fsdp_settings_parse(&s, "train", 6, (char *const *)argv), FSDP_OK);
    assemble_world(&s, &world);
    assert_string_equal(world.backend, "mpi");
    assert_true(world.comm_timeout == 7.5);
    assert_true(world.comm_thread);
    assert_int_equal(world.threads, 3);
    assert_string_equal(world.device, "cuda");
    assert_string_equal(world.products, "portable");
    fsdp_settings_free(&s);
}

static void threads_prepare_samples_as_many_as_asked(void **state)
{
    job *j = *state;
    RUN(j, "--loader_threads=1");
    assert_int_equal(j->status, FSDP_OK);
    int one = j->most_threads;
    RUN(j, "--loader_threads=6");
    assert_int_equal(j->status, FSDP_OK);
    assert_int_equal(j->most_threads, one + 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetch_is_read_in_all_its_spellings),
        cmocka_unit_test(switches_of_the_sharding_are_passed_on),
        cmocka_unit_test(the_world_is_opened_as_asked),
        cmocka_unit_test(threads_prepare_samples_as_many_as_asked),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
