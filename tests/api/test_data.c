/* Data through the public API: sets of files and of one's own, the sampler, loaders on one and several ranks, and a
 * training loop on top of them with dropout, batch norm, schedule, clipping, accumulation and evaluation. */
#include "api/support_ranks.h"

#include <math.h>
#include <unistd.h>

#include <fsdp/data.h>

enum { SAMPLES = 22, SIDE = 4, PIXELS = SIDE * SIDE, CLASSES = 3, MAX_STEPS = 40 };

/* ---- a source of one's own: small images whose brightest row is their class ---- */

typedef struct drawings {
    int64_t bad; /* this sample cannot be read; -1: all can */
    bool silent; /* ... and nothing is said about it */
    int *closed; /* counts; may be NULL */
} drawings;

static float pixel_of(int64_t index, int i)
{
    uint32_t x = (uint32_t)(index * 131 + i * 7919 + 12345);
    x = (x ^ x >> 7) * 2654435761u;
    return (float)(x >> 16) / 65536.0f + (i / SIDE == index % CLASSES ? 1.0f : 0.0f);
}

static fsdp_status draw(void *context, int64_t index, void *const *fields)
{
    const drawings *d = context;
    float *pixels = fields[0];
    if (index == d->bad)
        return d->silent ? FSDP_ERR_IO : fsdp_fail(FSDP_ERR_IO, "the page is torn");
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = pixel_of(index, i);
    *(int32_t *)fields[1] = (int32_t)(index % CLASSES);
    return FSDP_OK;
}

static void put_away(void *context)
{
    const drawings *d = context;
    if (d->closed)
        ++*d->closed;
}

static const fsdp_field drawing_fields[] = {
    {.name = "pixels", .dtype = FSDP_F32, .n_dims = 3, .shape = {1, SIDE, SIDE}},
    {.name = "classes", .dtype = FSDP_I32, .padding = FSDP_IGNORE},
};

static fsdp_dataset_source source_of(drawings *d)
{
    fsdp_dataset_source s = FSDP_DATASET_SOURCE_INIT;
    s.name = "drawings";
    s.count = SAMPLES;
    s.n_fields = 2;
    s.fields = drawing_fields;
    s.read = draw;
    s.close = put_away;
    s.context = d;
    return s;
}

static fsdp_loader_config loader_of(int64_t batch)
{
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = batch;
    c.seed = 11;
    c.threads = 2;
    return c;
}

/* ---- order ---- */

typedef struct reading {
    int64_t epochs, position;     /* how many to read, from where on */
    int64_t stop_after;           /* batches; 0: none */
    int64_t sample[4 * SAMPLES];  /* at each position, plus one */
    int64_t n_given[4 * SAMPLES]; /* how often it was given */
    int64_t stopped;              /* position at the end */
    bool drop_last;
} reading;

/* Ranks take turns: the memory is shared, and plain counters are enough. */
static fsdp_status note_batch(fsdp_world *w, reading *r, const fsdp_batch *b)
{
    const float *pixels = fsdp_batch_field(b, "pixels");
    const int32_t *classes = fsdp_batch_field(b, "classes");
    EXPECT(w, b->counted <= b->n && b->n == (b->n_global + fsdp_world_size(w) - 1) / fsdp_world_size(w));
    EXPECT(w, fsdp_batch_field(b, "sounds") == NULL);
    for (int turn = 0; turn < fsdp_world_size(w); turn++) {
        for (int64_t i = 0; i < b->n && turn == fsdp_world_rank(w); i++) {
            if (i >= b->counted) {
                EXPECT(w, classes[i] == FSDP_IGNORE && pixels[i * PIXELS] == 0);
                continue;
            }
            int64_t sample = b->samples[i], place = b->first_sample + i;
            EXPECT(w, classes[i] == sample % CLASSES && pixels[i * PIXELS + 5] == pixel_of(sample, 5));
            r->sample[place] = sample + 1;
            r->n_given[place]++;
        }
        FSDP_TRY(fsdp_world_barrier(w, NULL));
    }
    return FSDP_OK;
}

static fsdp_status read_epochs(fsdp_world *w, void *context)
{
    reading *r = context;
    drawings d = {.bad = -1};
    fsdp_dataset_source source = source_of(&d);
    fsdp_loader_config c = loader_of(8);
    fsdp_dataset *data;
    fsdp_loader *l;
    c.drop_last = r->drop_last;
    FSDP_TRY(fsdp_dataset_from(&source, &data));
    FSDP_TRY(fsdp_loader_new(w, data, &c, &l));
    FSDP_TRY(fsdp_loader_seek(l, r->position));
    int64_t batches = 0;
    for (int64_t epoch = r->position / SAMPLES; epoch < r->epochs; epoch++) {
        fsdp_batch *b;
        for (;;) {
            FSDP_TRY(fsdp_loader_next(l, &b));
            if (!b || (r->stop_after && batches == r->stop_after))
                break;
            EXPECT(w, b->epoch == epoch);
            FSDP_TRY(note_batch(w, r, b));
            r->stopped = fsdp_loader_position(l);
            batches++;
        }
        if (b) /* stopped in the middle */
            break;
        EXPECT(w, fsdp_loader_position(l) == (epoch + 1) * SAMPLES);
    }
    fsdp_loader_free(l);
    fsdp_dataset_free(data);
    return FSDP_OK;
}

static void every_sample_comes_once_per_epoch_in_one_order(void **state)
{
    (void)state;
    reading *one = shared_memory(sizeof *one), *many = shared_memory(sizeof *many);
    fsdp_sampler sampler = {SAMPLES, 11, true};
    *one = (reading){.epochs = 3};
    assert_true(ranks_run(1, read_epochs, one));
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int seen[SAMPLES] = {0};
        for (int64_t i = epoch * SAMPLES; i < (epoch + 1) * SAMPLES; i++) {
            assert_int_equal(one->n_given[i], 1);
            assert_int_equal(one->sample[i] - 1, fsdp_sampler_at(&sampler, i));
            assert_int_equal(fsdp_sampler_epoch(&sampler, i), epoch);
            seen[one->sample[i] - 1]++;
        }
        for (int i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
    }
    assert_memory_not_equal(one->sample, one->sample + SAMPLES, SAMPLES * sizeof *one->sample);
    for (int ranks = 2; ranks <= 3; ranks++) {
        *many = (reading){.epochs = 3};
        assert_true(ranks_run(ranks, read_epochs, many));
        assert_memory_equal(many->sample, one->sample, sizeof many->sample);
        assert_memory_equal(many->n_given, one->n_given, sizeof many->n_given);
    }
}

static void reading_goes_on_at_a_position_on_another_number_of_ranks(void **state)
{
    (void)state;
    reading *one = shared_memory(sizeof *one), *split = shared_memory(sizeof *split);
    static const int worlds[][2] = {{1, 3}, {2, 1}, {3, 2}};
    *one = (reading){.epochs = 2};
    assert_true(ranks_run(1, read_epochs, one));
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        for (int64_t after = 2; after <= 4; after++) { /* in an epoch, at its end, in the next */
            *split = (reading){.epochs = 2, .stop_after = after};
            assert_true(ranks_run(worlds[i][0], read_epochs, split));
            assert_int_equal(split->stopped, after == 2 ? 16 : after == 3 ? SAMPLES : SAMPLES + 8);
            split->position = split->stopped;
            split->stop_after = 0;
            assert_true(ranks_run(worlds[i][1], read_epochs, split));
            assert_memory_equal(split->sample, one->sample, sizeof one->sample);
            assert_memory_equal(split->n_given, one->n_given, sizeof one->n_given);
        }
    }
}

static void the_rest_of_an_epoch_is_passed_over_when_asked(void **state)
{
    (void)state;
    reading *r = shared_memory(sizeof *r);
    *r = (reading){.epochs = 2, .drop_last = true};
    assert_true(ranks_run(2, read_epochs, r));
    for (int i = 0; i < 2 * SAMPLES; i++)
        assert_int_equal(r->n_given[i], i % SAMPLES < 16);
    assert_int_equal(r->stopped, 2 * SAMPLES);
}

/* ---- what goes wrong ---- */

static fsdp_status read_until_torn(fsdp_world *w, void *context)
{
    int *closed = context;
    for (int silent = 0; silent < 2; silent++) {
        drawings d = {.bad = 17, .silent = silent, .closed = closed + fsdp_world_rank(w)};
        fsdp_dataset_source source = source_of(&d);
        fsdp_loader_config c = loader_of(2 * fsdp_world_size(w));
        fsdp_dataset *data;
        fsdp_loader *l;
        fsdp_batch *b;
        fsdp_status status;
        c.shuffle = false;
        FSDP_TRY(fsdp_dataset_from(&source, &data));
        FSDP_TRY(fsdp_loader_new(w, data, &c, &l));
        int64_t n = 0;
        while ((status = fsdp_loader_next(l, &b)) == FSDP_OK && b)
            n += b->counted;
        bool mine = fsdp_world_size(w) == 1 || fsdp_world_rank(w) == 0; /* 16 and 17 of 16 .. 19 */
        EXPECT(w, n == (mine ? 16 / fsdp_world_size(w) : SAMPLES / 2));
        EXPECT(w, status == (mine ? FSDP_ERR_IO : FSDP_OK));
        EXPECT(w, !mine || strstr(fsdp_last_error(), "sample 17 of drawings: "));
        EXPECT(w, !mine || strstr(fsdp_last_error(), silent ? "without a message" : "the page is torn"));
        EXPECT(w, !mine || fsdp_loader_next(l, &b) == FSDP_ERR_IO); /* and stays one */
        FSDP_TRY(fsdp_loader_seek(l, 18));                          /* what can be read, can be read again */
        FSDP_TRY(fsdp_loader_next(l, &b));
        EXPECT(w, b && b->samples[0] == 18 + 2 * fsdp_world_rank(w));
        EXPECT(w, fsdp_loader_seek(l, -1) == FSDP_ERR_INPUT);
        fsdp_loader_free(l);
        fsdp_dataset_free(data);
    }
    EXPECT(w, closed[fsdp_world_rank(w)] == 2);
    return FSDP_OK;
}

static void a_read_that_fails_is_reported_with_its_sample_and_reason(void **state)
{
    (void)state;
    int *closed = shared_memory(4 * sizeof *closed);
    assert_true(ranks_run(1, read_until_torn, closed));
    memset(closed, 0, 4 * sizeof *closed);
    assert_true(ranks_run(2, read_until_torn, closed));
}

static void sources_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    int closed = 0;
    drawings d = {.bad = -1, .closed = &closed};
    const fsdp_dataset_source good = source_of(&d);
    fsdp_dataset *data;
    fsdp_field fields[2] = {drawing_fields[0], drawing_fields[1]};
#define REFUSED(change, text)                                                                                          \
    do {                                                                                                               \
        fsdp_dataset_source s = good;                                                                                  \
        s.fields = fields;                                                                                             \
        memcpy(fields, drawing_fields, sizeof fields);                                                                 \
        change;                                                                                                        \
        assert_int_not_equal(fsdp_dataset_from(&s, &data), FSDP_OK);                                                   \
        assert_null(data);                                                                                             \
        assert_non_null(strstr(fsdp_last_error(), text));                                                              \
    } while (0)
    REFUSED(s.size = 0, "FSDP_DATASET_SOURCE_INIT");
    REFUSED(s.count = 0, "empty");
    REFUSED(s.read = NULL, "no read function");
    REFUSED(s.n_fields = FSDP_MAX_FIELDS + 1, "fields");
    REFUSED(fields[1].name = "pixels", "two fields are called pixels");
    REFUSED(fields[1].name = "", "no name");
    REFUSED(fields[0].shape[1] = 0, "field pixels has size 0 in dimension 1");
    REFUSED(fields[0].shape[1] = INT64_MAX / 2, "memory");
    REFUSED(fields[0].n_dims = FSDP_MAX_DIMS, "dimensions");
    REFUSED(fields[1].dtype = (fsdp_dtype)99, "type");
    assert_int_equal(closed, 0); /* the context stayed ours */
    assert_int_equal(fsdp_dataset_from(&good, &data), FSDP_OK);
    fsdp_dataset *held;
    assert_int_equal(fsdp_dataset_hold_back(data, 5, &held), FSDP_OK);
    assert_int_equal(fsdp_dataset_count(data), SAMPLES - 5);
    float pixels[PIXELS];
    int32_t class_of;
    assert_int_equal(fsdp_dataset_read(held, 1, (void *[]){pixels, &class_of}), FSDP_OK);
    assert_int_equal(class_of, (SAMPLES - 4) % CLASSES);
    fsdp_dataset_free(data);
    assert_int_equal(closed, 0);
    fsdp_dataset_free(held);
    assert_int_equal(closed, 1);
    fsdp_dataset_free(NULL);
    fsdp_loader_free(NULL);
}

/* ---- what the command reads ---- */

static fsdp_status read_text(fsdp_world *w, void *context)
{
    const char *path = context;
    fsdp_dataset_config c = FSDP_DATASET_CONFIG_INIT;
    fsdp_loader_config batches = loader_of(2 * fsdp_world_size(w));
    fsdp_dataset_info info = FSDP_DATASET_INFO_INIT;
    fsdp_tokenizer *bytes;
    fsdp_dataset *data;
    fsdp_loader *l;
    fsdp_batch *b;
    FSDP_TRY(fsdp_tokenizer_byte(&bytes));
    c.names = &path;
    c.n_names = 1;
    c.tokenizer = bytes;
    c.width = 4;
    FSDP_TRY(fsdp_dataset_open(&c, &data));
    fsdp_tokenizer_free(bytes);
    FSDP_TRY(fsdp_dataset_describe(data, &info));
    EXPECT(w, info.kind == FSDP_DATASET_TEXT && info.width == 4 && info.n_samples == 6 && info.n_fields == 2);
    EXPECT(w, strcmp(info.fields[0].name, "ids") == 0 && info.fields[1].padding == FSDP_IGNORE);
    batches.shuffle = false;
    FSDP_TRY(fsdp_loader_new(w, data, &batches, &l));
    FSDP_TRY(fsdp_loader_next(l, &b));
    const int32_t *ids = fsdp_batch_field(b, "ids"), *labels = fsdp_batch_field(b, "labels");
    for (int i = 0; i < 8; i++) {
        EXPECT(w, ids[i] == 'a' + 8 * fsdp_world_rank(w) + i);
        EXPECT(w, labels[i] == (i % 4 == 3 ? FSDP_IGNORE : ids[i] + 1));
    }
    fsdp_loader_free(l);
    fsdp_dataset_free(data);
    return FSDP_OK;
}

static void text_is_read_as_the_command_reads_it(void **state)
{
    (void)state;
    char folder[] = "/tmp/fsdp_api_data_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/text.txt", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("abcdefghijklmnopqrstuvwx", file);
    fclose(file);
    assert_true(ranks_run(1, read_text, path));
    assert_true(ranks_run(2, read_text, path));
    unlink(path);
    rmdir(folder);
}

/* ---- training on top ---- */

typedef struct net {
    fsdp_module base;
    fsdp_module *conv, *norm, *out;
    float dropout;
} net;

static fsdp_tensor *net_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    net *n = (net *)self;
    x = fsdp_call(n->conv, t, x);
    x = fsdp_relu(t, n->norm ? fsdp_call(n->norm, t, x) : x);
    x = fsdp_reshape(t, x, 2, (int64_t[]){fsdp_tensor_size(x, 0), fsdp_tensor_numel(x) / fsdp_tensor_size(x, 0)});
    return fsdp_call(n->out, t, n->dropout > 0 ? fsdp_dropout(t, x, n->dropout) : x);
}

static const fsdp_module_class net_class = {.type = "net", .forward = net_forward};

static fsdp_module *net_new(bool norm, float dropout)
{
    fsdp_window window = {3, 3, 1, 1, 1, 1};
    net *n = fsdp_module_new(&net_class, sizeof *n);
    n->dropout = dropout;
    n->conv = fsdp_module_add(n, "conv", fsdp_conv2d_new(1, 4, window, true));
    n->norm = norm ? fsdp_module_add(n, "norm", fsdp_batchnorm2d_new(4, 1e-5f, 0.1f)) : NULL;
    n->out = fsdp_module_add(n, "out", fsdp_linear_new(4 * PIXELS, CLASSES, true));
    return &n->base;
}

typedef struct training {
    bool attached, batch_norm, evaluates;
    float dropout, clip;
    int64_t batch, accumulation, epochs, position;
    int64_t step; /* where the schedule stands */
    fsdp_lr_config lr;
    double loss[MAX_STEPS], norm[MAX_STEPS], validation[MAX_STEPS];

    double moved; /* how far all parameters of it went in the last step */
} training;

static fsdp_loss loss_of(fsdp_model *m, fsdp_tape *t, const fsdp_batch *b)
{
    fsdp_tensor *x = fsdp_call(fsdp_model_module(m), t, fsdp_batch_input(t, b, "pixels"));
    return fsdp_cross_entropy(t, x, fsdp_batch_input(t, b, "classes"), FSDP_IGNORE);
}

/* The mean over the whole set, as it is on one rank. */
static fsdp_status evaluate(fsdp_world *w, fsdp_model *m, fsdp_dataset *data, double *loss)
{
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    fsdp_loader *l;
    fsdp_batch *b;
    double sums[2] = {0};
    c.batch = 5;
    c.shuffle = false;
    FSDP_TRY(fsdp_loader_new(w, data, &c, &l));
    for (;;) {
        float sum, count;
        FSDP_TRY(fsdp_loader_next(l, &b));
        if (!b)
            break;
        fsdp_tape *t = fsdp_begin_evaluation(m);
        fsdp_loss of_batch = loss_of(m, t, b);
        fsdp_output(t, of_batch.sum);
        fsdp_output(t, of_batch.count);
        FSDP_TRY(fsdp_evaluate(t));
        FSDP_TRY(fsdp_read(of_batch.sum, &sum, 1));
        FSDP_TRY(fsdp_read(of_batch.count, &count, 1));
        sums[0] += sum;
        sums[1] += count;
    }
    fsdp_loader_free(l);
    FSDP_TRY(fsdp_world_all_reduce(w, NULL, FSDP_REDUCE_SUM, sums, 2));
    EXPECT(w, sums[1] == SAMPLES);
    *loss = sums[0] / sums[1];
    return FSDP_OK;
}

static fsdp_status run_epochs(fsdp_world *w, training *r, fsdp_model *m, fsdp_optimizer *o, fsdp_dataset *data,
                              fsdp_loader *l)
{
    float before[CLASSES * 4 * PIXELS], after[CLASSES * 4 * PIXELS];
    const int64_t n = CLASSES * 4 * PIXELS;
    for (int64_t epoch = 0; epoch < r->epochs; epoch++) {
        for (;;) {
            fsdp_batch *b = NULL;
            int64_t micro = 0;
            FSDP_TRY(fsdp_loader_next(l, &b));
            if (!b)
                break;
            while (b) {
                bool last = ++micro == r->accumulation || fsdp_loader_position(l) % SAMPLES == 0;
                fsdp_tape *t = fsdp_begin(m);
                FSDP_TRY(fsdp_backward(t, loss_of(m, t, b), last));
                b = NULL;
                if (!last)
                    FSDP_TRY(fsdp_loader_next(l, &b));
            }
            fsdp_step_report report;
            FSDP_TRY(fsdp_parameter_read(m, "out.weight", 0, n, before));
            fsdp_optimizer_set_lr(o, (float)fsdp_lr_at(&r->lr, r->step));
            FSDP_TRY(fsdp_step(o, &report));
            FSDP_TRY(fsdp_parameter_read(m, "out.weight", 0, n, after));
            r->loss[r->step] = report.loss;
            r->norm[r->step] = report.gradient_norm;
            if (r->evaluates)
                FSDP_TRY(evaluate(w, m, data, &r->validation[r->step]));
            r->step++;
        }
    }
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += (double)(after[i] - before[i]) * (after[i] - before[i]);
    r->moved = sqrt(squares);
    return FSDP_OK;
}

static fsdp_status train(fsdp_world *w, void *context)
{
    training mine = *(training *)context, *r = &mine; /* every rank has its own; rank 0's is looked at */
    drawings d = {.bad = -1};
    fsdp_dataset_source source = source_of(&d);
    fsdp_loader_config c = loader_of(r->batch);
    fsdp_config config = ranks_config();
    fsdp_optimizer_config sgd = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_dataset *data;
    fsdp_loader *l;
    fsdp_model *m;
    fsdp_optimizer *o;
    config.seed = 3;
    sgd.kind = FSDP_SGD;
    sgd.clip = r->clip;
    FSDP_TRY(fsdp_dataset_from(&source, &data));
    FSDP_TRY(fsdp_loader_new(w, data, &c, &l));
    FSDP_TRY(fsdp_shard(w, net_new(r->batch_norm, r->dropout), &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &sgd, &o));
    if (r->attached)
        fsdp_loader_attach(l, m);
    fsdp_status status = run_epochs(w, r, m, o, data, l);
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_loader_free(l);
    fsdp_dataset_free(data);
    if (fsdp_world_rank(w) == 0)
        *(training *)context = mine;
    return status;
}

static training *trained(int ranks, training settings)
{
    training *r = shared_memory(sizeof *r);
    *r = settings;
    assert_true(ranks_run(ranks, train, r));
    return r;
}

static double largest_difference(const double *a, const double *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        most = fmax(most, fabs(a[i] - b[i]));
    }
    return most;
}

static const fsdp_lr_config constant = {.size = sizeof(fsdp_lr_config), .decay = FSDP_DECAY_CONSTANT, .lr = 0.1};

/* Eight samples over three ranks are 3, 3 and 2, and the end of an epoch has six. */
static void an_attached_loader_gives_the_same_losses_on_any_number_of_ranks(void **state)
{
    (void)state;
    training t = {.attached = true,
                  .batch_norm = true,
                  .dropout = 0.5f,
                  .batch = 8,
                  .accumulation = 1,
                  .epochs = 3,
                  .lr = constant};
    training *one = trained(1, t);
    assert_int_equal(one->step, 9);
    for (int ranks = 2; ranks <= 3; ranks++) {
        training *many = trained(ranks, t);
        assert_true(largest_difference(one->loss, many->loss, one->step) < 1e-5);
        assert_true(largest_difference(one->norm, many->norm, one->step) < 1e-4);
    }
    t.attached = false; /* then masks and statistics are those of other rows */
    training *unattached = trained(3, t);
    assert_true(largest_difference(one->loss, unattached->loss, one->step) > 1e-3);
}

static void micro_batches_add_up_to_the_batch_they_make(void **state)
{
    (void)state;
    training whole = {.attached = true, .batch = 8, .accumulation = 1, .epochs = 2, .lr = constant}, parts = whole;
    parts.batch = 2;
    parts.accumulation = 4;
    training *a = trained(1, whole), *b = trained(2, parts);
    assert_int_equal(a->step, 6);
    assert_int_equal(b->step, 6);
    assert_true(largest_difference(a->loss, b->loss, a->step) < 1e-5);
    assert_true(largest_difference(a->norm, b->norm, a->step) < 1e-5);
}

/* SGD goes lr * gradient, and with clipping lr * clip at most. */
static void schedule_and_clipping_decide_how_far_a_step_goes(void **state)
{
    (void)state;
    training t = {.attached = true, .batch = SAMPLES, .accumulation = 1, .epochs = 1, .lr = constant};
    training *far = trained(2, t);
    assert_true(far->norm[0] > 0.2);
    t.clip = 0.01f;
    training *clipped = trained(2, t);
    assert_true(fabs(clipped->norm[0] - far->norm[0]) < 1e-6); /* reported as it was before clipping */
    assert_true(fabs(clipped->moved / far->moved - 0.01 / far->norm[0]) < 1e-3);
    t.clip = 0;
    t.lr.decay = FSDP_DECAY_STEP;
    t.lr.gamma = 0.5;
    t.lr.step_size = 2;
    t.step = 5; /* 0.1 * 0.5^2 */
    training *later = trained(2, t);
    assert_true(fabs(later->moved / far->moved - 0.25) < 1e-3);
}

static void evaluation_between_steps_changes_nothing_and_is_one_mean(void **state)
{
    (void)state;
    training t = {.attached = true,
                  .batch_norm = true,
                  .dropout = 0.3f,
                  .batch = 8,
                  .accumulation = 1,
                  .epochs = 2,
                  .lr = constant};
    training *without = trained(2, t);
    t.evaluates = true;
    training *with = trained(2, t), *one = trained(1, t);
    assert_memory_equal(with->loss, without->loss, sizeof with->loss);
    assert_true(largest_difference(with->validation, one->validation, one->step) < 1e-5);
    assert_true(with->validation[one->step - 1] < with->validation[0]);
}

static fsdp_status ask_for_a_field_that_is_not_there(fsdp_world *w, void *context)
{
    (void)context;
    drawings d = {.bad = -1};
    fsdp_dataset_source source = source_of(&d);
    fsdp_loader_config c = loader_of(2);
    fsdp_config config = ranks_config();
    fsdp_dataset *data;
    fsdp_loader *l;
    fsdp_model *m;
    fsdp_batch *b;
    FSDP_TRY(fsdp_dataset_from(&source, &data));
    FSDP_TRY(fsdp_loader_new(w, data, &c, &l));
    FSDP_TRY(fsdp_shard(w, net_new(false, 0), &config, &m));
    FSDP_TRY(fsdp_loader_next(l, &b));
    fsdp_tape *t = fsdp_begin_evaluation(m);
    EXPECT(w, fsdp_batch_input(t, b, "sounds") == NULL);
    EXPECT(w, fsdp_evaluate(t) == FSDP_ERR_INPUT);
    EXPECT(w, strstr(fsdp_last_error(), "sounds") && strstr(fsdp_last_error(), "pixels"));
    fsdp_model_free(m);
    fsdp_loader_free(l);
    fsdp_dataset_free(data);
    return FSDP_OK;
}

static void a_field_that_is_not_there_is_named(void **state)
{
    (void)state;
    assert_true(ranks_run(1, ask_for_a_field_that_is_not_there, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_comes_once_per_epoch_in_one_order),
        cmocka_unit_test(reading_goes_on_at_a_position_on_another_number_of_ranks),
        cmocka_unit_test(the_rest_of_an_epoch_is_passed_over_when_asked),
        cmocka_unit_test(a_read_that_fails_is_reported_with_its_sample_and_reason),
        cmocka_unit_test(sources_that_make_no_sense_are_refused),
        cmocka_unit_test(text_is_read_as_the_command_reads_it),
        cmocka_unit_test(an_attached_loader_gives_the_same_losses_on_any_number_of_ranks),
        cmocka_unit_test(micro_batches_add_up_to_the_batch_they_make),
        cmocka_unit_test(schedule_and_clipping_decide_how_far_a_step_goes),
        cmocka_unit_test(evaluation_between_steps_changes_nothing_and_is_one_mean),
        cmocka_unit_test(a_field_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
