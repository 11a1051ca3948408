/* Saving, resuming and loading from a program of one's own: the public headers and libfsdp.so alone. */
#include "api/support_ranks.h"

#include <ftw.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INPUTS = 10, HIDDEN = 33, CLASSES = 5, BATCH = 12, BEFORE = 3, AFTER = 3, MAX_STEPS = 8 };

/* ---- A model of our own: two layers in a block, with dropout and batch norm's running statistics ---- */

typedef struct block {
    fsdp_module base;
    fsdp_module *up, *down;
} block;

typedef struct net {
    fsdp_module base;
    fsdp_module *norm;
    block *blocks[2];
    fsdp_module *head;
} net;

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    block *b = (block *)self;
    fsdp_tensor *h = fsdp_dropout(t, fsdp_relu(t, fsdp_call(b->up, t, x)), 0.2f);
    return fsdp_add(t, x, fsdp_call(b->down, t, h));
}

static fsdp_tensor *net_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    net *n = (net *)self;
    int64_t flat[] = {fsdp_tensor_size(x, 0), INPUTS};
    x = fsdp_reshape(t, fsdp_call(n->norm, t, x), 2, flat);
    for (int i = 0; i < 2; i++)
        x = fsdp_call(&n->blocks[i]->base, t, x);
    return fsdp_call(n->head, t, x);
}

static const fsdp_module_class block_class = {.type = "own_block", .forward = block_forward};
static const fsdp_module_class net_class = {.type = "own_net", .forward = net_forward};

/* `up` and `down` name the layers; `hidden` is their width. */
static fsdp_module *net_new(const char *up, const char *down, int64_t hidden)
{
    net *n = fsdp_module_new(&net_class, sizeof *n);
    n->norm = fsdp_module_add(n, "norm", fsdp_batchnorm2d_new(1, 1e-5f, 0.1f));
    fsdp_module *list = fsdp_module_add(n, "blocks", fsdp_sequential_new());
    for (int i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        block *b = fsdp_module_new(&block_class, sizeof *b);
        b->up = fsdp_module_add(b, up, fsdp_linear_new(INPUTS, hidden, true));
        b->down = fsdp_module_add(b, down, fsdp_linear_new(hidden, INPUTS, true));
        n->blocks[i] = (block *)fsdp_module_add(list, name, b);
    }
    n->head = fsdp_module_add(n, "head", fsdp_linear_new(INPUTS, CLASSES, true));
    return &n->base;
}

/* ---- A program around it ---- */

typedef struct job {
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_state *state;
    int64_t position; /* of the data */
    double best;      /* values of our own */
    double never;
    int64_t epoch;
    unsigned char notes[5];
} job;

typedef struct plan {
    char directory[256];
    fsdp_strategy strategy;
    fsdp_dtype dtype;
    fsdp_checkpoint_kind kind;
    bool background, offload;
    int local_steps[2];
    /* Shared with the test. */
    double losses[MAX_STEPS]; /* of steps BEFORE .. BEFORE + AFTER - 1 */
    double reached[MAX_STEPS];
    char path[1024];
} plan;

static int64_t get_position(void *context)
{
    return ((const job *)context)->position;
}

static fsdp_status set_position(void *context, int64_t position)
{
    ((job *)context)->position = position;
    return FSDP_OK;
}

static fsdp_status job_model(fsdp_world *w, const plan *p, fsdp_module *module, job *j)
{
    fsdp_config config = ranks_config();
    config.strategy = p->strategy;
    config.param_dtype = p->dtype;
    config.reduce_dtype = FSDP_F32;
    config.wrap = fsdp_wrap_by_type("own_block");
    config.cpu_offload = p->offload;
    config.seed = 7;
    config.shard_group_size = fsdp_world_size(w) % 2 == 0 ? 2 : 1;
    fsdp_status status = fsdp_shard(w, module, &config, &j->model);
    if (status != FSDP_OK)
        fsdp_module_free(module);
    return status;
}

static fsdp_status job_open(fsdp_world *w, const plan *p, job *j)
{
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    memset(j, 0, sizeof *j);
    FSDP_TRY(job_model(w, p, net_new("up", "down", HIDDEN), j));
    adam.lr = 1e-2f;
    FSDP_TRY(fsdp_optimizer_new(j->model, &adam, &j->optimizer));
    config.model = j->model;
    config.optimizer = j->optimizer;
    config.directory = p->directory;
    config.kind = p->kind;
    config.position = (fsdp_data_position){get_position, set_position, j};
    FSDP_TRY(fsdp_state_open(&config, &j->state));
    FSDP_TRY(fsdp_state_number(j->state, "best", &j->best));
    FSDP_TRY(fsdp_state_number(j->state, "never", &j->never));
    FSDP_TRY(fsdp_state_integer(j->state, "epoch", &j->epoch));
    return fsdp_state_blob(j->state, "notes", j->notes, sizeof j->notes);
}

static void job_close(job *j)
{
    fsdp_state_close(j->state);
    fsdp_optimizer_free(j->optimizer);
    fsdp_model_free(j->model);
}

static float value_at(int64_t sample, int i)
{
    uint32_t h = (uint32_t)(sample * 2654435761u + (uint32_t)i * 40503u + 12345u);
    h ^= h >> 13;
    h *= 0x5bd1e995u;
    return (float)(h >> 8) / (float)(1 << 24) - 0.5f;
}

/* One step on BATCH samples from the position on, an equal share of them on each rank. */
static fsdp_status job_step(fsdp_world *w, const plan *p, job *j, double *loss)
{
    int64_t n = BATCH / fsdp_world_size(w), share = fsdp_world_rank(w) * n, shape[] = {n, 1, 1, INPUTS};
    float x[BATCH * INPUTS];
    int32_t labels[BATCH];
    for (int64_t k = 0; k < n; k++) {
        int64_t sample = j->position + share + k;
        labels[k] = (int32_t)(sample % CLASSES);
        for (int i = 0; i < INPUTS; i++)
            x[k * INPUTS + i] = value_at(sample % 24, i);
    }
    fsdp_set_position(j->model, j->position + share);
    fsdp_tape *t = fsdp_begin(j->model);
    fsdp_tensor *in = fsdp_cast(t, fsdp_input(t, FSDP_F32, 4, shape, x), p->dtype);
    fsdp_tensor *logits = fsdp_call(fsdp_model_module(j->model), t, in);
    FSDP_TRY(
        fsdp_backward(t, fsdp_cross_entropy(t, logits, fsdp_input(t, FSDP_I32, 1, &n, labels), FSDP_IGNORE), true));
    fsdp_step_report report;
    FSDP_TRY(fsdp_step(j->optimizer, &report));
    j->position += BATCH;
    *loss = report.loss;
    return FSDP_OK;
}

static fsdp_status job_save(const plan *p, job *j, int64_t step)
{
    return p->background ? fsdp_save_async(j->state, step) : fsdp_save(j->state, step);
}

/* Trains, saves after BEFORE steps, and goes on. */
static fsdp_status write_checkpoint(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    int64_t step = -1;
    double loss, losses[MAX_STEPS];
    FSDP_TRY(job_open(w, p, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step == 0 && fsdp_state_path(j.state)[0] == '\0');
    for (; step < BEFORE; step++)
        FSDP_TRY(job_step(w, p, &j, &loss));
    fsdp_optimizer_set_lr(j.optimizer, 5e-3f); /* from here on */
    j.best = 1.0 / 3;
    j.never = INFINITY;
    j.epoch = -((int64_t)1 << 60);
    memcpy(j.notes, "\0\xff\x80z", 5);
    FSDP_TRY(job_save(p, &j, step));
    j.best = j.never = 0; /* what is saved is what was */
    memset(j.notes, 1, sizeof j.notes);
    for (int i = 0; i < AFTER; i++)
        FSDP_TRY(job_step(w, p, &j, &losses[i]));
    FSDP_TRY(fsdp_save_wait(j.state));
    if (fsdp_world_rank(w) == 0) {
        memcpy(p->losses, losses, sizeof losses);
        snprintf(p->path, sizeof p->path, "%s", fsdp_state_path(j.state));
    }
    job_close(&j);
    return FSDP_OK;
}

static fsdp_status resume_checkpoint(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    int64_t step = -1;
    double losses[MAX_STEPS];
    FSDP_TRY(job_open(w, p, &j));
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step == BEFORE && j.position == BEFORE * BATCH);
    EXPECT(w, j.best == 1.0 / 3 && isinf(j.never) && j.never > 0 && j.epoch == -((int64_t)1 << 60));
    EXPECT(w, memcmp(j.notes, "\0\xff\x80z", 5) == 0);
    for (int i = 0; i < AFTER; i++)
        FSDP_TRY(job_step(w, p, &j, &losses[i]));
    if (fsdp_world_rank(w) == 0)
        memcpy(p->reached, losses, sizeof losses);
    job_close(&j);
    return FSDP_OK;
}

/* ---- Scratch folders ---- */

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static plan *new_plans(const char *name, int n)
{
    plan *p = shared_memory((size_t)n * sizeof *p);
    for (int i = 0; i < n; i++)
        snprintf(p[i].directory, sizeof p->directory, "/tmp/fsdp_test_state_%d_%s%d", (int)getpid(), name, i);
    return p;
}

static plan *new_plan(const char *name)
{
    return new_plans(name, 1);
}

static void end_plan(plan *p)
{
    nftw(p->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void run_on_two_ranks(const char *name, fsdp_status (*body)(fsdp_world *w, void *context))
{
    plan *p = new_plan(name);
    assert_true(ranks_run(2, body, p));
    end_plan(p);
}

static void expect_losses(const plan *p, double tolerance)
{
    for (int i = 0; i < AFTER; i++) {
        if (!(fabs(p->losses[i] - p->reached[i]) <= tolerance * fabs(p->losses[i])))
            fail_msg("step %d: %.9g instead of %.9g", BEFORE + i, p->reached[i], p->losses[i]);
    }
}

/* ---- Resuming ---- */

static void resumed_training_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    static const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_OP, FSDP_NO_SHARD};
    plan *plans = new_plans("bits", 3);
    for (int kind = FSDP_CKPT_SHARDED; kind <= FSDP_CKPT_LOCAL; kind++) {
        plan *p = &plans[kind];
        p->kind = (fsdp_checkpoint_kind)kind;
        p->strategy = strategies[kind];
        p->background = kind != FSDP_CKPT_FULL;
        p->dtype = kind == FSDP_CKPT_LOCAL ? FSDP_BF16 : kind == FSDP_CKPT_FULL ? FSDP_F16 : FSDP_F32;
    }
    assert_true(ranks_run_each(2, write_checkpoint, plans, 3, sizeof *plans));
    assert_true(ranks_run_each(2, resume_checkpoint, plans, 3, sizeof *plans));
    for (int i = 0; i < 3; i++) {
        expect_losses(&plans[i], 0);
        end_plan(&plans[i]);
    }
}

static void any_number_of_ranks_and_any_strategy_resume(void **state)
{
    (void)state;
    plan *plans = new_plans("ranks", 2);
    plans[0].kind = FSDP_CKPT_SHARDED, plans[1].kind = FSDP_CKPT_FULL;
    assert_true(ranks_run_each(2, write_checkpoint, plans, 2, sizeof *plans));
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int i = 0; i < 2; i++) {
            plans[i].strategy = ranks == 1 ? FSDP_NO_SHARD : ranks == 2 ? FSDP_HYBRID : FSDP_SHARD_GRAD_OP;
            plans[i].offload = ranks == 3;
        }
        assert_true(ranks_run_each(ranks, resume_checkpoint, plans, 2, sizeof *plans));
        for (int i = 0; i < 2; i++)
            expect_losses(&plans[i], 1e-5);
    }
    for (int i = 0; i < 2; i++)
        end_plan(&plans[i]);
}

static fsdp_status resume_misfit(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    int64_t step = -1;
    FSDP_TRY(job_open(w, p, &j));
    EXPECT(w, fsdp_resume(j.state, &step) == FSDP_ERR_INPUT);
    EXPECT(w,
           strstr(fsdp_last_error(), "only sharded and full ones fit any world") && strstr(fsdp_last_error(), "of 2"));
    job_close(&j);
    return FSDP_OK;
}

/* Neither a start from scratch nor an older checkpoint is what was asked for. */
static void local_checkpoints_of_another_number_of_ranks_are_refused(void **state)
{
    (void)state;
    plan *p = new_plan("misfit");
    p->kind = FSDP_CKPT_LOCAL;
    assert_true(ranks_run(2, write_checkpoint, p));
    assert_true(ranks_run(3, resume_misfit, p));
    assert_true(ranks_run(1, resume_misfit, p));
    assert_true(ranks_run(2, resume_checkpoint, p));
    expect_losses(p, 0);
    end_plan(p);
}

/* ---- Retention, other places, exports ---- */

static fsdp_status save_local(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    FSDP_TRY(job_open(w, p, &j));
    fsdp_state_close(j.state);
    config.model = j.model;
    config.optimizer = j.optimizer;
    config.directory = p->directory;
    config.kind = FSDP_CKPT_LOCAL;
    config.keep = 2;
    FSDP_TRY(fsdp_state_open(&config, &j.state));
    for (int i = 0; i < 2; i++)
        FSDP_TRY(fsdp_save(j.state, p->local_steps[i]));
    job_close(&j);
    return FSDP_OK;
}

static bool has_part(const plan *p, int step, int rank)
{
    char path[512];
    snprintf(path, sizeof path, "%s/step-%08d.rank-%05d", p->directory, step, rank);
    return access(path, F_OK) == 0;
}

/* What more ranks saved stays as long as it may be whole, and goes with what it belongs to. */
static void local_parts_of_ranks_that_are_gone_do_not_stay(void **state)
{
    (void)state;
    plan *p = new_plan("departed");
    p->local_steps[0] = 4, p->local_steps[1] = 5;
    assert_true(ranks_run(3, save_local, p));
    p->local_steps[0] = p->local_steps[1] = 6;
    assert_true(ranks_run(2, save_local, p)); /* 5 and 6 are kept */
    assert_true(has_part(p, 5, 0) && has_part(p, 5, 2) && !has_part(p, 4, 0) && !has_part(p, 4, 2));
    p->local_steps[0] = p->local_steps[1] = 5;
    assert_true(ranks_run(2, save_local, p)); /* another 5 */
    assert_true(has_part(p, 5, 0) && has_part(p, 5, 1) && !has_part(p, 5, 2));
    p->local_steps[0] = 7, p->local_steps[1] = 8;
    assert_true(ranks_run(3, save_local, p));
    assert_true(has_part(p, 7, 2) && has_part(p, 8, 2) && !has_part(p, 5, 0));
    end_plan(p);
}

static fsdp_status save_often(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    int64_t step;
    char elsewhere[512], one[1024], folder[512];
    double loss;
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    FSDP_TRY(job_open(w, p, &j));
    fsdp_state_close(j.state);
    config.model = j.model;
    config.optimizer = j.optimizer;
    config.directory = p->directory;
    config.keep = 2;
    config.keep_every = 3;
    FSDP_TRY(fsdp_state_open(&config, &j.state));
    for (step = 1; step <= 5; step++) {
        FSDP_TRY(job_step(w, p, &j, &loss));
        FSDP_TRY(fsdp_save_async(j.state, step));
    }
    FSDP_TRY(fsdp_save_wait(j.state));
    for (step = 1; step <= 5; step++) {
        snprintf(one, sizeof one, "%s/step-%08d", p->directory, (int)step);
        EXPECT(w, (access(one, F_OK) == 0) == (step >= 3));
    }
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", p->directory);
    FSDP_TRY(fsdp_save_as(j.state, elsewhere, FSDP_CKPT_LOCAL, 9));
    snprintf(one, sizeof one, "%s/step-00000009", elsewhere);
    FSDP_TRY(fsdp_load(j.state, one, &step));
    EXPECT(w, step == 9);
    FSDP_TRY(fsdp_load(j.state, p->directory, NULL));
    EXPECT(w, strstr(fsdp_state_path(j.state), "step-00000005") != NULL);
    snprintf(one, sizeof one, "%s/nothing", p->directory);
    EXPECT(w, fsdp_load(j.state, one, &step) == FSDP_ERR_INPUT);
    snprintf(folder, sizeof folder, "%s/model", p->directory);
    FSDP_TRY(fsdp_export(j.state, folder));
    FSDP_TRY(fsdp_weights_load(j.model, folder, NULL, NULL));
    job_close(&j);
    return FSDP_OK;
}

static void checkpoints_are_kept_copied_and_exported(void **state)
{
    (void)state;
    run_on_two_ranks("often", save_often);
}

/* ---- What goes wrong ---- */

static fsdp_status fail_in_background(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    int64_t step;
    char obstacle[512];
    FSDP_TRY(job_open(w, p, &j));
    snprintf(obstacle, sizeof obstacle, "%s/step-00000001", p->directory);
    if (fsdp_world_rank(w) == 0 && (mkdir(p->directory, 0700) != 0 || fclose(fopen(obstacle, "w")) != 0))
        return FSDP_ERR_IO;
    FSDP_TRY(fsdp_world_barrier(w, NULL));
    FSDP_TRY(fsdp_save_async(j.state, 1)); /* a file is where the checkpoint is to be */
    EXPECT(w, fsdp_save_async(j.state, 2) != FSDP_OK);
    EXPECT(w, strstr(fsdp_last_error(), "an earlier checkpoint was not saved") != NULL);
    EXPECT(w, strstr(fsdp_last_error(), "step-00000001") != NULL);
    EXPECT(w, strstr(fsdp_state_path(j.state), "step-00000002") != NULL); /* this one was */
    FSDP_TRY(fsdp_save_wait(j.state));                                    /* told once */
    FSDP_TRY(fsdp_save_async(j.state, 1));
    EXPECT(w, fsdp_save_wait(j.state) != FSDP_OK);
    FSDP_TRY(fsdp_save_async(j.state, 1));
    EXPECT(w, fsdp_resume(j.state, &step) != FSDP_OK && step == 2);
    FSDP_TRY(fsdp_resume(j.state, &step));
    EXPECT(w, step == 2);
    job_close(&j);
    return FSDP_OK;
}

static void a_failure_in_the_background_is_told_by_the_next_call(void **state)
{
    (void)state;
    run_on_two_ranks("failure", fail_in_background);
}

static fsdp_status give_wrong_things(fsdp_world *w, void *context)
{
    plan *p = context;
    job j, other;
    int64_t step, more = 5;
    double wrong = 0;
    char wide[6];
    FSDP_TRY(job_open(w, p, &j));
    FSDP_TRY(fsdp_save(j.state, 4));
    EXPECT(w, fsdp_state_number(j.state, "epoch", &wrong) == FSDP_ERR_INPUT);
    EXPECT(w, fsdp_state_number(j.state, "", &wrong) == FSDP_ERR_INPUT);
    EXPECT(w, fsdp_state_blob(j.state, "large", wide, (size_t)1 << 30) == FSDP_ERR_INPUT);
    EXPECT(w, fsdp_save(j.state, -1) == FSDP_ERR_INPUT);
    FSDP_TRY(fsdp_state_integer(j.state, "more", &more));
    EXPECT(w, fsdp_resume(j.state, &step) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "no value named more"));
    EXPECT(w, more == 5);
    FSDP_TRY(job_open(w, p, &other));
    fsdp_state_config config = FSDP_STATE_CONFIG_INIT;
    fsdp_state *state = NULL;
    EXPECT(w, fsdp_state_open(&config, &state) == FSDP_ERR_INPUT);
    config.model = j.model;
    config.optimizer = other.optimizer;
    EXPECT(w, fsdp_state_open(&config, &state) == FSDP_ERR_INPUT);
    config.optimizer = NULL; /* the model alone, without a directory */
    config.size = offsetof(fsdp_state_config, directory);
    FSDP_TRY(fsdp_state_open(&config, &state));
    EXPECT(w, fsdp_resume(state, &step) == FSDP_ERR_INPUT && fsdp_save(state, 1) == FSDP_ERR_INPUT);
    FSDP_TRY(fsdp_load(state, p->directory, &step));
    EXPECT(w, step == 4);
    fsdp_state_close(state);
    FSDP_TRY(fsdp_state_open(&config, &state));
    FSDP_TRY(fsdp_state_blob(state, "notes", wide, sizeof wide));
    EXPECT(w, fsdp_load(state, p->directory, &step) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "has 5 bytes"));
    fsdp_state_close(state);
    fsdp_state_close(NULL);
    job_close(&other);
    job_close(&j);
    return FSDP_OK;
}

static void what_cannot_be_is_refused_by_name(void **state)
{
    (void)state;
    run_on_two_ranks("wrong", give_wrong_things);
}

/* ---- Weights by names ---- */

static fsdp_status export_weights(fsdp_world *w, void *context)
{
    plan *p = context;
    job j;
    double loss;
    FSDP_TRY(job_open(w, p, &j));
    FSDP_TRY(job_step(w, p, &j, &loss));
    FSDP_TRY(fsdp_export(j.state, p->directory));
    job_close(&j);
    return FSDP_OK;
}

static const fsdp_weight_name other_names[] = {{"blocks.*.wide.weight", "blocks.*.up.weight"},
                                               {"blocks.*.wide.bias", "blocks.*.up.bias"},
                                               {"blocks.0.narrow.bias", "blocks.0.down.bias"},
                                               {"blocks.1.narrow.bias", "blocks.1.down.bias"},
                                               {"*narrow.weight", "*down.weight"}};

static fsdp_status load_weights(fsdp_world *w, void *context)
{
    const plan *p = context;
    job a = {.model = NULL}, b = {.model = NULL};
    fsdp_weights_config config = FSDP_WEIGHTS_CONFIG_INIT;
    fsdp_load_report report = FSDP_LOAD_REPORT_INIT;
    float ours[HIDDEN * INPUTS], theirs[HIDDEN * INPUTS];
    /* All names differ in the blocks: refused, then found by the map. */
    FSDP_TRY(job_model(w, p, net_new("wide", "narrow", HIDDEN), &a));
    FSDP_TRY(job_model(w, p, net_new("up", "down", HIDDEN), &b));
    FSDP_TRY(fsdp_weights_load(b.model, p->directory, NULL, NULL));
    EXPECT(w, fsdp_weights_load(a.model, p->directory, NULL, &report) == FSDP_ERR_INPUT);
    EXPECT(w, report.missing == 8 && report.unexpected == 8 && report.mismatched == 0);
    EXPECT(w, strstr(fsdp_last_error(), "blocks.0.wide.weight") && strstr(report.text, "blocks.0.up.weight"));
    config.names = other_names;
    config.n_names = sizeof other_names / sizeof *other_names;
    FSDP_TRY(fsdp_weights_load(a.model, p->directory, &config, &report));
    EXPECT(w, report.loaded == 14 && report.missing + report.unexpected == 0 && report.text[0] == '\0');
    FSDP_TRY(fsdp_parameter_read(a.model, "blocks.1.wide.weight", 0, HIDDEN * INPUTS, ours));
    FSDP_TRY(fsdp_parameter_read(b.model, "blocks.1.up.weight", 0, HIDDEN * INPUTS, theirs));
    EXPECT(w, memcmp(ours, theirs, sizeof ours) == 0);
    fsdp_model_free(a.model);
    /* Others are wider and one layer has another name: what fits is taken, the rest keeps its values. */
    FSDP_TRY(job_model(w, p, net_new("up", "narrow", HIDDEN + 1), &a));
    FSDP_TRY(fsdp_parameter_read(a.model, "blocks.0.up.weight", 0, INPUTS, theirs));
    config = (fsdp_weights_config)FSDP_WEIGHTS_CONFIG_INIT;
    config.strict = false;
    FSDP_TRY(fsdp_weights_load(a.model, p->directory, &config, &report));
    EXPECT(w, report.loaded == 6 && report.missing == 4 && report.unexpected == 4 && report.mismatched == 4);
    EXPECT(w, strstr(report.text, "blocks.0.narrow.weight") && strstr(report.text, "blocks.1.down.bias"));
    FSDP_TRY(fsdp_parameter_read(a.model, "blocks.0.up.weight", 0, INPUTS, ours));
    EXPECT(w, memcmp(ours, theirs, INPUTS * sizeof *ours) == 0);
    FSDP_TRY(fsdp_parameter_read(a.model, "head.bias", 0, CLASSES, ours));
    FSDP_TRY(fsdp_parameter_read(b.model, "head.bias", 0, CLASSES, theirs));
    EXPECT(w, memcmp(ours, theirs, CLASSES * sizeof *ours) == 0);
    static const fsdp_weight_name broken[] = {{"blocks.*", "blocks"}};
    config.names = broken;
    config.n_names = 1;
    EXPECT(w, fsdp_weights_load(a.model, p->directory, &config, NULL) == FSDP_ERR_INPUT);
    fsdp_model_free(a.model);
    fsdp_model_free(b.model);
    return FSDP_OK;
}

static void weights_load_by_name_strictly_or_not(void **state)
{
    (void)state;
    plan *p = new_plan("weights");
    assert_true(ranks_run(2, export_weights, p));
    p->strategy = FSDP_SHARD_GRAD_OP;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        p->dtype = ranks == 1 ? FSDP_F32 : FSDP_BF16;
        assert_true(ranks_run(ranks, load_weights, p));
    }
    end_plan(p);
}

/* ---- Parameters by hand ---- */

/* The head's bias as logits: with a zero weight nothing else reaches them. */
static fsdp_status read_logits(const plan *p, job *j, float *logits)
{
    int64_t shape[] = {1, 1, 1, INPUTS};
    float x[INPUTS] = {1, 2, 3};
    fsdp_tape *t = fsdp_begin_evaluation(j->model);
    fsdp_tensor *in = fsdp_cast(t, fsdp_input(t, FSDP_F32, 4, shape, x), p->dtype);
    fsdp_tensor *out = fsdp_output(t, fsdp_call(fsdp_model_module(j->model), t, in));
    FSDP_TRY(fsdp_evaluate(t));
    return fsdp_read(out, logits, CLASSES);
}

static fsdp_status write_parameters(fsdp_world *w, void *context)
{
    const plan *p = context;
    job j;
    double loss;
    float values[CLASSES * INPUTS] = {0}, bias[CLASSES] = {-2, 0.5f, 0, 8, 1}, read[CLASSES * INPUTS], logits[CLASSES];
    FSDP_TRY(job_open(w, p, &j));
    FSDP_TRY(job_step(w, p, &j, &loss));
    FSDP_TRY(read_logits(p, &j, logits)); /* gathered, and out of date soon */
    FSDP_TRY(fsdp_parameter_write(j.model, "head.weight", 0, CLASSES * INPUTS, values));
    FSDP_TRY(fsdp_parameter_write(j.model, "head.bias", 0, 2, bias));
    FSDP_TRY(fsdp_parameter_write(j.model, "head.bias", 2, CLASSES - 2, bias + 2));
    FSDP_TRY(fsdp_parameter_read(j.model, "head.bias", 0, CLASSES, read));
    EXPECT(w, memcmp(read, bias, sizeof bias) == 0);
    FSDP_TRY(fsdp_parameter_read(j.model, "head.weight", 0, CLASSES * INPUTS, read));
    EXPECT(w, memcmp(read, values, sizeof values) == 0);
    FSDP_TRY(read_logits(p, &j, logits));
    EXPECT(w, memcmp(logits, bias, sizeof bias) == 0);
    FSDP_TRY(job_step(w, p, &j, &loss)); /* and training goes on from there */
    FSDP_TRY(fsdp_parameter_read(j.model, "head.bias", 0, CLASSES, read));
    for (int i = 0; i < CLASSES; i++)
        EXPECT(w, read[i] != bias[i] && fabsf(read[i] - bias[i]) < 0.05f);
    EXPECT(w, fsdp_parameter_write(j.model, "head.bias", 1, CLASSES, bias) == FSDP_ERR_INPUT);
    EXPECT(w, fsdp_parameter_write(j.model, "head.bias", INT64_MAX, INT64_MAX, bias) == FSDP_ERR_INPUT);
    EXPECT(w, fsdp_parameter_write(j.model, "nobody", 0, 1, bias) == FSDP_ERR_INPUT);
    job_close(&j);
    return FSDP_OK;
}

static void parameters_are_written_under_every_strategy(void **state)
{
    (void)state;
    plan *plans = new_plans("write", FSDP_STRATEGY_COUNT), *alone = new_plan("alone");
    for (int strategy = 0; strategy < FSDP_STRATEGY_COUNT; strategy++) {
        plans[strategy].strategy = (fsdp_strategy)strategy;
        plans[strategy].offload = strategy == FSDP_SHARD_GRAD_OP;
        plans[strategy].dtype = strategy % 2 ? FSDP_BF16 : FSDP_F32;
    }
    assert_true(ranks_run_each(2, write_parameters, plans, FSDP_HYBRID, sizeof *plans));
    assert_true(
        ranks_run_each(4, write_parameters, plans + FSDP_HYBRID, FSDP_STRATEGY_COUNT - FSDP_HYBRID, sizeof *plans));
    alone->offload = true;
    alone->dtype = FSDP_BF16;
    assert_true(ranks_run(1, write_parameters, alone));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_training_goes_on_with_the_same_bits),
        cmocka_unit_test(any_number_of_ranks_and_any_strategy_resume),
        cmocka_unit_test(local_checkpoints_of_another_number_of_ranks_are_refused),
        cmocka_unit_test(local_parts_of_ranks_that_are_gone_do_not_stay),
        cmocka_unit_test(checkpoints_are_kept_copied_and_exported),
        cmocka_unit_test(a_failure_in_the_background_is_told_by_the_next_call),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
        cmocka_unit_test(weights_load_by_name_strictly_or_not),
        cmocka_unit_test(parameters_are_written_under_every_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
