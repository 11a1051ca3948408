/* A rank whose replica, scalars or place in the data are not those of the others is found while it trains, and named
 * with the thing, on every rank; ranks that are in order never are. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "train/agree.h"
#include "shard/step/optimizer.h"
#include "training/support_ranks.h"

enum { MAX_RANKS = 4, MAX_FLAGS = 40 };

typedef enum fault { NO_FAULT, PARAMETER, MOMENT, BUFFER, LOSS_SCALE, STEPS, LEARNING_RATE, POSITION } fault;

typedef struct trial {
    const char *flags[8]; /* beside those that all have */
    int ranks, victim;
    fault fault;
    int64_t step; /* after which the victim is changed */
    char folder[64];
    char (*messages)[1024]; /* of each rank, shared; "" when it ran to its end */
    train_run *run;         /* the rank's own */
} trial;

/* A place in the middle of the first slice of this role. */
static uint32_t *value_of(train_run *run, ckpt_role role)
{
    const ckpt_state *state = state_tensors(run->state);
    for (int i = 0; i < state->n_slices; i++) {
        const ckpt_slice *slice = &state->slices[i];
        if (state->tensors[slice->tensor].role == role && slice->count > 0)
            return (uint32_t *)(slice->data + slice->count / 2);
    }
    return NULL;
}

static void strike(train_run *run, fault f)
{
    switch (f) {
    case NO_FAULT:
        break;
    case PARAMETER:
        *value_of(run, CKPT_PARAMETER) ^= 1u << 20;
        break;
    case MOMENT:
        *value_of(run, CKPT_MOMENT2) ^= 1;
        break;
    case BUFFER:
        *value_of(run, CKPT_BUFFER) ^= 1;
        break;
    case LOSS_SCALE:
        run->model->loss_scale *= 2;
        break;
    case STEPS:
        run->optimizer->steps ^= 64;
        break;
    case LEARNING_RATE:
        run->optimizer->lr *= 1.0000002f;
        break;
    case POSITION:
        run->position++;
        break;
    }
}

/* Asked after every step, before the ranks compare. */
static int after_step(void *context)
{
    trial *t = context;
    if (t->run->step == t->step && t->run->rank == t->victim)
        strike(t->run, t->fault);
    return 0;
}

static fsdp_status train_rank(int rank, void *context)
{
    trial *t = context;
    char data[128], output[128];
    fsdp_settings settings;
    fsdp_train_callbacks callbacks = FSDP_TRAIN_CALLBACKS_INIT;
    train_run run;
    snprintf(data, sizeof data, "--dataset=%s/%s", t->folder, t->fault == BUFFER ? "images" : "text");
    snprintf(output, sizeof output, "--output_dir=%s/run", t->folder);
    char *argv[MAX_FLAGS] = {data,
                             output,
                             "--device=cpu",
                             "--threads=1",
                             "--comm_timeout=30",
                             "--train_batch_size=2",
                             "--max_steps=40",
                             "--no_checkpoint_at_end",
                             "--hidden_width=16"};
    static char *const llama[] = {"--model_type=llama_v3", "--num_layers=2", "--num_heads=2", "--intermediate_size=32",
                                  "--max_context_width=16"};
    int argc = 9;
    for (size_t i = 0; i < sizeof llama / sizeof *llama && t->fault != BUFFER; i++)
        argv[argc++] = llama[i];
    if (t->fault == BUFFER)
        argv[argc++] = "--model_type=cnn";
    for (int i = 0; t->flags[i]; i++)
        argv[argc++] = (char *)t->flags[i];
    callbacks.context = t;
    callbacks.stop_requested = after_step;
    FSDP_TRY(fsdp_settings_init(&settings));
    FSDP_TRY(fsdp_settings_parse(&settings, "train", argc, argv));
    FSDP_TRY(run_open(&settings, &callbacks, &run));
    t->run = &run;
    fsdp_status status = run_steps(&run);
    if (status != FSDP_OK) {
        snprintf(t->messages[rank], sizeof t->messages[rank], "%s", fsdp_last_error());
        fsdp_world_abort(run.world);
    }
    run_close(&run);
    fsdp_settings_free(&settings);
    return FSDP_OK;
}

/* Writes `head`, then `more` bytes from `least` on, of `n` kinds. */
static void write_file(const trial *t, const char *name, const void *head, size_t bytes, size_t more, int least, int n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", t->folder, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(head, 1, bytes, out);
    for (size_t i = 0; i < more; i++)
        fputc(least + (int)((i * i + i / 7) % (size_t)n), out);
    assert_int_equal(fclose(out), 0);
}

static void run(trial *t)
{
    char command[160];
    strcpy(t->folder, "/tmp/fsdp-deviants-XXXXXX");
    assert_non_null(mkdtemp(t->folder));
    snprintf(command, sizeof command, "mkdir '%s/images'", t->folder);
    assert_int_equal(system(command), 0);
    write_file(t, "text", "", 0, 4000, 32, 90);
    write_file(t, "images/train-images-idx3-ubyte", "\0\0\10\3\0\0\0\40\0\0\0\10\0\0\0\10", 16, 32 * 64, 0, 251);
    write_file(t, "images/train-labels-idx1-ubyte", "\0\0\10\1\0\0\0\40", 8, 32, 0, 4);
    size_t bytes = MAX_RANKS * sizeof *t->messages;
    t->messages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t->messages != MAP_FAILED);
    assert_true(ranks_run(t->ranks, train_rank, t));
    snprintf(command, sizeof command, "rm -rf '%s'", t->folder);
    assert_int_equal(system(command), 0);
}

static void end(trial *t)
{
    munmap(t->messages, MAX_RANKS * sizeof *t->messages);
}

/* Every rank says that `victim` has another `thing`. */
static void expect_named(trial *t, const char *thing)
{
    char rank[32];
    snprintf(rank, sizeof rank, "rank %d", t->victim);
    for (int r = 0; r < t->ranks; r++) {
        const char *text = t->messages[r], *named = strstr(text, thing), *who = strstr(text, rank);
        const char *step = strstr(text, "step ");
        if (!named || !who || !step)
            print_error("%s: rank %d says: %s\n", t->flags[0], r, text);
        assert_true(named && who && step);
        /* Whoever deviates comes first, whoever it is compared with behind it. */
        const char *other = strstr(step, "rank ");
        assert_true(strncmp(other, rank, strlen(rank)) == 0);
    }
    end(t);
}

static const char *const strategies[] = {"--sharding_strategy=full",     "--sharding_strategy=shard_grad_op",
                                         "--sharding_strategy=shard_op", "--sharding_strategy=no_shard",
                                         "--sharding_strategy=hybrid",   "--sharding_strategy=hybrid_zero2"};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies, FIRST_REPLICATED = 3, FIRST_HYBRID = 4 };

static trial of_strategy(int i, fault f)
{
    trial t = {.flags = {strategies[i]}, .ranks = 3, .victim = 1, .fault = f, .step = AGREE_EVERY};
    if (i >= FIRST_HYBRID) {
        t.flags[1] = "--shard_group_size=2";
        t.ranks = 4;
        t.victim = 3;
    }
    return t;
}

static void ranks_in_order_are_left_alone(void **state)
{
    (void)state;
    for (int i = 0; i < N_STRATEGIES; i++) {
        trial t = of_strategy(i, NO_FAULT);
        t.flags[2] = t.flags[1] ? "--fp16" : NULL;
        if (!t.flags[1])
            t.flags[1] = "--fp16";
        run(&t);
        for (int r = 0; r < t.ranks; r++)
            assert_string_equal(t.messages[r], "");
        end(&t);
    }
}

static void a_flipped_bit_of_a_replica_is_found_and_its_tensor_named(void **state)
{
    (void)state;
    for (int i = FIRST_REPLICATED; i < N_STRATEGIES; i++) {
        trial t = of_strategy(i, MOMENT);
        run(&t);
        expect_named(&t, "moment2 ");
        t = of_strategy(i, PARAMETER);
        t.step = 3; /* what trains on from there does not wash it out */
        run(&t);
        expect_named(&t, "parameter ");
    }
}

static void a_flipped_bit_of_one_replicated_unit_among_sharded_ones_is_found(void **state)
{
    (void)state;
    trial whole = of_strategy(0, MOMENT), grouped = whole;
    whole.flags[1] = "--unit_strategies=*layers.0=no_shard";
    run(&whole);
    expect_named(&whole, "moment2 ");
    grouped.flags[1] = "--unit_strategies=*layers.0=hybrid";
    grouped.flags[2] = "--shard_group_size=2";
    grouped.ranks = 4;
    grouped.victim = 3;
    run(&grouped);
    expect_named(&grouped, "moment2 ");
}

static void the_one_that_is_alone_is_named_also_when_it_is_rank_0(void **state)
{
    (void)state;
    trial t = of_strategy(FIRST_REPLICATED, PARAMETER);
    t.victim = 0;
    run(&t);
    expect_named(&t, "parameter ");
}

static void a_flipped_bit_of_a_buffer_is_found_under_every_strategy(void **state)
{
    (void)state;
    for (int i = 0; i < N_STRATEGIES; i++) {
        trial t = of_strategy(i, BUFFER);
        run(&t);
        expect_named(&t, "buffers");
    }
}

static void numbers_that_are_not_the_others_are_found_under_every_strategy(void **state)
{
    (void)state;
    static const struct {
        fault fault;
        const char *name;
    } faults[] = {{LOSS_SCALE, "loss scale"},
                  {STEPS, "optimizer's number of steps"},
                  {LEARNING_RATE, "learning rate"},
                  {POSITION, "position in the data"}};
    enum { N_FAULTS = sizeof faults / sizeof *faults };
    for (int i = 0; i < N_STRATEGIES; i++) {
        for (int k = 0; k < N_FAULTS; k++) {
            if (k != i % N_FAULTS && i > 0) /* all with the first strategy, one with each other */
                continue;
            trial t = of_strategy(i, faults[k].fault);
            run(&t);
            expect_named(&t, faults[k].name);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_order_are_left_alone),
        cmocka_unit_test(a_flipped_bit_of_a_replica_is_found_and_its_tensor_named),
        cmocka_unit_test(a_flipped_bit_of_one_replicated_unit_among_sharded_ones_is_found),
        cmocka_unit_test(the_one_that_is_alone_is_named_also_when_it_is_rank_0),
        cmocka_unit_test(a_flipped_bit_of_a_buffer_is_found_under_every_strategy),
        cmocka_unit_test(numbers_that_are_not_the_others_are_found_under_every_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
