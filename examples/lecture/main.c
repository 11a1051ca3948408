/* The program of a first lecture on Fully Sharded Data Parallel: a small CNN learns to read digits on several workers,
 * each of which keeps only its part of the parameters, the gradients and the optimizer's state.
 *
 *     fsdp run --standalone --nproc-per-node 2 build/examples/lecture --epochs 3 --checkpoint lecture_run
 *
 * Read it from the bottom up: main, run, train_epoch. The network is in net.c, the data in data.c. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fsdp/fsdp.h>

#include "data.h"
#include "net.h"

typedef struct options {
    int64_t epochs;
    const char *checkpoint, *data;
    int64_t batch, accumulation;      /* pictures of all workers in a mini-batch; mini-batches in a step */
    int64_t checkpoint_interval;      /* epochs between saves */
    int64_t n_training, n_validation; /* digits to make up where there is no data */
    bool lean;                        /* the variant that saves memory */
} options;

/* What a worker has open. Zeroed, it can be closed at any time: NULL is legal in every function that frees. */
typedef struct lecture {
    const options *options;
    fsdp_world *world;
    fsdp_dataset *training_data, *validation_data;
    fsdp_loader *training, *validation;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state;
    fsdp_memory_meter *meter;
    int64_t epoch; /* epochs that are done: saved and loaded with the model */
    int64_t step;  /* optimizer steps that are done */
} lecture;

typedef struct validation_result {
    double loss, accuracy;
} validation_result;

static bool is_first(const lecture *l)
{
    return fsdp_world_rank(l->world) == 0;
}

/* ---- One epoch ---- */

/* The network's answer to a batch: (n, CLASSES). */
static fsdp_tensor *answer(lecture *l, fsdp_tape *t, const fsdp_batch *b)
{
    return fsdp_call(fsdp_model_module(l->model), t, fsdp_batch_input(t, b, "pixels"));
}

static fsdp_loss loss_of(fsdp_tape *t, const fsdp_batch *b, fsdp_tensor *answer)
{
    return fsdp_cross_entropy(t, answer, fsdp_batch_input(t, b, "classes"), FSDP_IGNORE);
}

/* Trains on every picture once. *average is the mean loss of all pictures, on all workers. */
static fsdp_status train_epoch(lecture *l, double *average)
{
    int64_t n_samples = fsdp_dataset_count(l->training_data);
    double sum = 0, count = 0;
    fsdp_batch *b;
    FSDP_TRY(fsdp_loader_next(l->training, &b));
    for (int64_t i = 1; b; i++) {
        bool last_of_epoch = b->position + b->n_global == (b->epoch + 1) * n_samples;
        bool steps_now = i % l->options->accumulation == 0 || last_of_epoch;
        fsdp_tape *t = fsdp_begin(l->model);
        FSDP_TRY(fsdp_backward(t, loss_of(t, b, answer(l, t, b)), steps_now)); /* gradients add up until the step */
        if (steps_now) {
            fsdp_step_report report;
            FSDP_TRY(fsdp_step(l->optimizer, &report));
            sum += report.loss * report.count;
            count += report.count;
            l->step++;
        }
        FSDP_TRY(fsdp_loader_next(l->training, &b));
    }
    *average = sum / count;
    return FSDP_OK;
}

/* Adds to the number of pictures whose most probable class is theirs. */
static fsdp_status count_right(const fsdp_batch *b, fsdp_tensor *answer, double *right)
{
    const int32_t *classes = fsdp_batch_field(b, "classes");
    float *values = malloc((size_t)b->n * CLASSES * sizeof *values);
    if (!values)
        return fsdp_fail(FSDP_ERR_MEMORY, "out of memory for the answers to %lld pictures", (long long)b->n);
    fsdp_status status = fsdp_read(answer, values, b->n * CLASSES);
    for (int64_t i = 0; i < b->counted && status == FSDP_OK; i++) {
        const float *row = values + i * CLASSES;
        int best = 0;
        for (int k = 1; k < CLASSES; k++)
            best = row[k] > row[best] ? k : best;
        *right += best == classes[i];
    }
    free(values);
    return status;
}

/* Each worker looks at its share of the pictures, then all add up what they found. */
static fsdp_status validate(lecture *l, validation_result *result)
{
    enum { LOSS, COUNT, RIGHT, N_SUMS };
    double sums[N_SUMS] = {0};
    fsdp_batch *b;
    FSDP_TRY(fsdp_loader_next(l->validation, &b));
    while (b) {
        float sum, count;
        fsdp_tape *t = fsdp_begin_evaluation(l->model);
        fsdp_tensor *out = fsdp_output(t, answer(l, t, b));
        fsdp_loss loss = loss_of(t, b, out);
        fsdp_output(t, loss.sum);
        fsdp_output(t, loss.count);
        FSDP_TRY(fsdp_evaluate(t));
        FSDP_TRY(fsdp_read(loss.sum, &sum, 1));
        FSDP_TRY(fsdp_read(loss.count, &count, 1));
        FSDP_TRY(count_right(b, out, &sums[RIGHT]));
        sums[LOSS] += sum;
        sums[COUNT] += count;
        FSDP_TRY(fsdp_loader_next(l->validation, &b));
    }
    FSDP_TRY(fsdp_world_all_reduce(l->world, NULL, FSDP_REDUCE_SUM, sums, N_SUMS));
    *result = (validation_result){.loss = sums[LOSS] / sums[COUNT], .accuracy = sums[RIGHT] / sums[COUNT]};
    return FSDP_OK;
}

/* ---- All epochs ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The most that any worker held at one time of this epoch, of its device's memory. */
static fsdp_status peak_memory(lecture *l, double *mebibytes)
{
    *mebibytes = (double)fsdp_memory_meter_peak(l->meter) / (1 << 20);
    fsdp_memory_meter_reset(l->meter);
    return fsdp_world_all_reduce(l->world, NULL, FSDP_REDUCE_MAX, mebibytes, 1);
}

static fsdp_status run_epoch(lecture *l, validation_result *result)
{
    double begun = seconds(), average, peak;
    fsdp_lr_config schedule = FSDP_LR_CONFIG_INIT; /* PyTorch's StepLR, stepped once an epoch */
    schedule.decay = FSDP_DECAY_STEP;
    schedule.lr = 1e-2;
    schedule.gamma = 0.5;
    printf("Worker %d / %d begins Epoch %lld / %lld\n", fsdp_world_rank(l->world) + 1, fsdp_world_size(l->world),
           (long long)l->epoch + 1, (long long)l->options->epochs);
    fflush(stdout);
    fsdp_optimizer_set_lr(l->optimizer, (float)fsdp_lr_at(&schedule, l->epoch));
    FSDP_TRY(train_epoch(l, &average));
    FSDP_TRY(validate(l, result));
    FSDP_TRY(peak_memory(l, &peak));
    l->epoch++;
    if (is_first(l))
        printf("Epoch %lld: training average loss %.4f, validation loss %.4f, accuracy %.2f %%, %.1f s, "
               "peak memory %.2f MiB\n",
               (long long)l->epoch, average, result->loss, 100 * result->accuracy, seconds() - begun, peak);
    return FSDP_OK;
}

static fsdp_status save(lecture *l)
{
    FSDP_TRY(fsdp_save(l->state, l->step));
    if (is_first(l))
        printf("Saved the checkpoint of epoch %lld\n", (long long)l->epoch);
    fflush(stdout);
    return FSDP_OK;
}

/* The three kinds of checkpoint: one file that others can read, a part of each worker that any number of workers can
 * load, and each worker's memory as it is, for as many workers as now. */
static fsdp_status save_every_kind(lecture *l)
{
    static const struct {
        const char *folder;
        fsdp_checkpoint_kind kind;
    } saves[] = {{"full", FSDP_CKPT_FULL}, {"sharded", FSDP_CKPT_SHARDED}, {"local", FSDP_CKPT_LOCAL}};
    for (int i = 0; i < 3; i++) {
        char folder[4096];
        snprintf(folder, sizeof folder, "%s/final_%s", l->options->checkpoint, saves[i].folder);
        FSDP_TRY(fsdp_save_as(l->state, folder, saves[i].kind, l->step));
        if (is_first(l))
            printf("Saved the model as %s\n", folder);
    }
    return FSDP_OK;
}

static fsdp_status train(lecture *l)
{
    const options *o = l->options;
    validation_result result;
    FSDP_TRY(fsdp_resume(l->state, &l->step));
    if (l->epoch > 0 && is_first(l))
        printf("Resuming training from checkpoint at epoch %lld\n", (long long)l->epoch);
    if (l->epoch >= o->epochs)
        FSDP_TRY(validate(l, &result));
    while (l->epoch < o->epochs) {
        FSDP_TRY(run_epoch(l, &result));
        if (l->epoch % o->checkpoint_interval == 0 || l->epoch == o->epochs)
            FSDP_TRY(save(l));
    }
    FSDP_TRY(save_every_kind(l));
    if (is_first(l)) /* all digits, so that runs can be compared to the last bit */
        printf("Final validation loss %.17g, accuracy %.2f %%\n", result.loss, 100 * result.accuracy);
    return FSDP_OK;
}

/* ---- Opening and closing ---- */

static fsdp_status open_data(lecture *l)
{
    const options *o = l->options;
    fsdp_loader_config training = FSDP_LOADER_CONFIG_INIT, validation = FSDP_LOADER_CONFIG_INIT;
    FSDP_TRY(data_open(o->data, false, o->n_training, &l->training_data));
    FSDP_TRY(data_open(o->data, true, o->n_validation, &l->validation_data));
    training.batch = validation.batch = o->batch;
    training.seed = 1;
    validation.shuffle = false;
    FSDP_TRY(fsdp_loader_new(l->world, l->training_data, &training, &l->training));
    return fsdp_loader_new(l->world, l->validation_data, &validation, &l->validation);
}

/* How the network is spread over the workers is said here, and nowhere else. */
static fsdp_status open_model(lecture *l)
{
    fsdp_config config = FSDP_CONFIG_INIT;
    config.strategy = FSDP_FULL;
    config.wrap = fsdp_wrap_by_size(512); /* modules of 512 parameters and more are units, gathered one at a time */
    config.decay_vectors = true;          /* weight decay of all parameters, as PyTorch's Adam has it */
    if (l->options->lean) {
        config.strategy = FSDP_SHARD_GRAD_OP; /* parameters stay gathered from forward to the end of backward */
        config.param_dtype = config.reduce_dtype = config.buffer_dtype = FSDP_BF16;
        config.cast_inputs = true;                    /* pictures become bf16 on their way in */
        config.backward_prefetch = FSDP_PREFETCH_PRE; /* the next unit is gathered before this one's gradients */
        config.cpu_offload = true;
    }
    fsdp_module *net = net_new();
    fsdp_status status = fsdp_module_check(net);
    if (status == FSDP_OK)
        status = fsdp_shard(l->world, net, &config, &l->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net); /* the model takes it only when it comes into being */
        return status;
    }
    fsdp_loader_attach(l->training, l->model);
    return FSDP_OK;
}

static fsdp_status open_optimizer(lecture *l)
{
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    adam.kind = FSDP_ADAM;
    adam.lr = 1e-2f;
    adam.weight_decay = 1e-4f; /* added to the gradient */
    adam.clip = 0.1f;
    return fsdp_optimizer_new(l->model, &adam, &l->optimizer);
}

static fsdp_status open_state(lecture *l)
{
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    config.model = l->model;
    config.optimizer = l->optimizer;
    config.loader = l->training;
    config.directory = l->options->checkpoint;
    FSDP_TRY(fsdp_state_open(&config, &l->state));
    return fsdp_state_integer(l->state, "epoch", &l->epoch);
}

static fsdp_status run(lecture *l)
{
    FSDP_TRY(fsdp_memory_meter_start(&l->meter));
    FSDP_TRY(fsdp_world_open(NULL, &l->world));
    FSDP_TRY(open_data(l));
    FSDP_TRY(open_model(l));
    FSDP_TRY(open_optimizer(l));
    FSDP_TRY(open_state(l));
    if (is_first(l))
        printf("%lld parameters in %d units on %d workers (%s)\n", (long long)fsdp_model_parameters(l->model),
               fsdp_model_units(l->model), fsdp_world_size(l->world), fsdp_world_description(l->world));
    return train(l);
}

static void close_all(lecture *l)
{
    fsdp_state_close(l->state);
    fsdp_optimizer_free(l->optimizer);
    fsdp_loader_free(l->training);
    fsdp_loader_free(l->validation);
    fsdp_model_free(l->model);
    fsdp_dataset_free(l->training_data);
    fsdp_dataset_free(l->validation_data);
    fsdp_world_close(l->world);
    fsdp_memory_meter_free(l->meter);
}

static const char usage[] =
    "usage: lecture --epochs N --checkpoint DIR [--data DIR]\n"
    "  --epochs N               train to the end of epoch N; goes on where DIR's newest checkpoint stopped\n"
    "  --checkpoint DIR         where checkpoints are kept\n"
    "  --data DIR               MNIST's four files (default: digits are made up)\n"
    "  --batch N                pictures of all workers together in a mini-batch (default: 64)\n"
    "  --accumulation N         mini-batches in an optimizer step (default: 1)\n"
    "  --checkpoint_interval N  epochs between checkpoints (default: 1)\n"
    "  --training N             digits to make up for training (default: 6000)\n"
    "  --validation N           digits to make up for validation (default: 1000)\n"
    "  --lean                   bf16, shard_grad_op, backward prefetch before the gradients, CPU offload\n";

static bool positive(const char *text, int64_t *value)
{
    char *end;
    *value = strtoll(text, &end, 10);
    return *value > 0 && *end == '\0';
}

static bool parse(int argc, char **argv, options *o)
{
    enum { EPOCHS, CHECKPOINT, DATA, BATCH, ACCUMULATION, INTERVAL, TRAINING, VALIDATION, LEAN };
    static const struct option flags[] = {
        {"epochs", required_argument, NULL, EPOCHS},
        {"checkpoint", required_argument, NULL, CHECKPOINT},
        {"data", required_argument, NULL, DATA},
        {"batch", required_argument, NULL, BATCH},
        {"accumulation", required_argument, NULL, ACCUMULATION},
        {"checkpoint_interval", required_argument, NULL, INTERVAL},
        {"training", required_argument, NULL, TRAINING},
        {"validation", required_argument, NULL, VALIDATION},
        {"lean", no_argument, NULL, LEAN},
        {0},
    };
    int64_t *const numbers[] = {[EPOCHS] = &o->epochs,
                                [BATCH] = &o->batch,
                                [ACCUMULATION] = &o->accumulation,
                                [INTERVAL] = &o->checkpoint_interval,
                                [TRAINING] = &o->n_training,
                                [VALIDATION] = &o->n_validation};
    for (int flag; (flag = getopt_long(argc, argv, "", flags, NULL)) != -1;) {
        if (flag == CHECKPOINT)
            o->checkpoint = optarg;
        else if (flag == DATA)
            o->data = optarg;
        else if (flag == LEAN)
            o->lean = true;
        else if (flag == '?')
            return false;
        else if (!positive(optarg, numbers[flag])) {
            fprintf(stderr, "lecture: --%s wants a positive number, not '%s'\n", flags[flag].name, optarg);
            return false;
        }
    }
    return optind == argc && o->epochs > 0 && o->checkpoint;
}

int main(int argc, char **argv)
{
    options o = {.batch = 64, .accumulation = 1, .checkpoint_interval = 1, .n_training = 6000, .n_validation = 1000};
    if (!parse(argc, argv, &o)) {
        fputs(usage, stderr);
        return 2;
    }
    lecture l = {.options = &o};
    fsdp_status status = run(&l);
    if (status != FSDP_OK) {
        fprintf(stderr, "lecture: %s\n", fsdp_last_error());
        if (l.world)
            fsdp_world_abort(l.world); /* the others do not wait for this worker */
    }
    close_all(&l);
    return fsdp_exit_code(status);
}
