/* Every rank shares the values that must be equal on all ranks, and each compares them. */
#include "train/agree.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/record/hooks.h"
#include "data/dataset.h"
#include "data/stream.h"
#include "models/config.h"

/* A setting, or a number of the data, as the message shows it. */
typedef struct agreed {
    char name[40], value[40];
} agreed;

typedef struct agreed_list {
    int n;
    agreed rows[FSDP_FLAGS_MAX + 8]; /* numbers of the data, too */
} agreed_list;

_Static_assert(sizeof(agreed_list) <= COMM_EXCHANGE_BYTES, "what is compared travels in one exchange");

/* A long text is cut, and its hash stands for the rest. */
static void add_text(agreed_list *list, const char *name, const char *text)
{
    agreed *row = &list->rows[list->n++];
    snprintf(row->name, sizeof row->name, "%s", name);
    if (strlen(text) < sizeof row->value)
        snprintf(row->value, sizeof row->value, "%s", text);
    else
        snprintf(row->value, sizeof row->value, "%.16s... (%016llx)", text,
                 (unsigned long long)hash_text(HASH_START, text));
}

static void add_number(agreed_list *list, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add_text(list, name, text);
}

/* Which files are streamed, as how many samples they have is not known yet, and how sources are mixed. Copies on other
 * hosts have other times; the hub's files have a hash there. */
static uint64_t sources_hash(const train_run *run)
{
    const stream_set *set = run->data ? dataset_stream_set(dataset_source_of(run->data)) : NULL;
    uint64_t hash = HASH_START;
    if (run->mix_weights)
        hash = hash_bytes(hash, run->mix_weights, (size_t)run->settings->dataset.n * sizeof *run->mix_weights);
    for (size_t i = 0; set && i < set->files.n_files; i++) {
        const stream_stamp *stamp = &set->stamps[i];
        const char *slash = strrchr(set->files.files[i].path, '/');
        hash = hash_u64(hash_text(hash, slash ? slash + 1 : set->files.files[i].path), (uint64_t)stamp->bytes);
        hash = hash_u64(hash, stamp->seconds == 0 ? (uint64_t)stamp->nanoseconds : 0);
    }
    return hash >> 1;
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

/* What the numbers are made by, and what all ranks do together. When a run ends is each rank's own affair: it is told
 * when one has left. bf16 and fp16 are other names of param_dtype. */
static bool must_agree(const fsdp_flag *flag, bool model_known)
{
    static const char *const groups[] = {"Precision", "Optimisation", NULL};
    static const char *const own[] = {"max_steps", "epochs", "bf16", "fp16", NULL};
    static const char *const others[] = {
        "train_batch_size",     "val_batch_size",  "shuffle",           "packing",           "validation_freq",
        "validation_batches",   "checkpoint_freq", "checkpoint_base",   "checkpoint_epochs", "checkpoint_minutes",
        "snapshot_freq",        "checkpoint_kind", "checkpoint_at_end", "async_checkpoint",  "sample_tokens",
        "sample_at_validation", "trace_first",     "trace_steps",       "comm_memory",       NULL};
    if (is_one_of(flag->name, others))
        return true;
    if (flag->type == FSDP_FLAG_TEXT || is_one_of(flag->name, own))
        return false;
    return is_one_of(flag->group, groups) || (model_known && strcmp(flag->group, "Model") == 0);
}

/* What all ranks do together where it is asked for, each with a path or a port of its own. */
static bool must_be_given_alike(const fsdp_flag *flag)
{
    static const char *const names[] = {"export_dir", "export_adapter", "trace", "metrics_port", "dashboard", NULL};
    return is_one_of(flag->name, names);
}

/* The model as its files, the adapter's and the flags have it. */
static fsdp_status add_model(agreed_list *list, const train_run *run)
{
    json_t *config = model_config_json(&run->model_config);
    char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(config);
    if (!text)
        return error_set(FSDP_ERR_MEMORY, "comparing the ranks' models: out of host memory");
    add_number(list, "a model's config.json, hashed", (int64_t)(hash_text(HASH_START, text) >> 1));
    free(text);
    return FSDP_OK;
}

static fsdp_status list_agreed(const train_run *run, bool model_known, agreed_list *list)
{
    add_number(list, "--max_context_width", run->info.width);
    add_number(list, "--max_target_width", run->info.target_width);
    add_number(list, "--dataset, samples", run->info.n_samples);
    add_number(list, "--dataset, files, hashed", (int64_t)sources_hash(run));
    add_number(list, "--validation_dataset, samples", run->validation_info.n_samples);
    for (const fsdp_flag *flag = fsdp_settings_flags(); flag->name; flag++) {
        char name[sizeof list->rows[0].name];
        bool by_presence = must_be_given_alike(flag);
        if (!by_presence && !must_agree(flag, model_known))
            continue;
        char *value = fsdp_flags_value(flag, run->settings);
        if (!value && flag->type != FSDP_FLAG_LIST && flag->type != FSDP_FLAG_TEXT)
            return error_set(FSDP_ERR_MEMORY, "comparing the ranks' settings: out of host memory");
        snprintf(name, sizeof name, "--%s", flag->name);
        bool given = value && *value && strcmp(value, "0") != 0;
        add_text(list, name, by_presence && given ? "something" : value && *value ? value : "none");
        free(value);
    }
    if (!model_known)
        return FSDP_OK;
    add_text(list, "--dataset, contents, hashed", run->fingerprint);
    return add_model(list, run);
}

static fsdp_status compare(const agreed_list *all, int n_ranks)
{
    for (int r = 1; r < n_ranks; r++)
        for (int i = 0; i < all[0].n; i++) {
            const agreed *first = &all[0].rows[i], *other = &all[r].rows[i];
            if (strcmp(first->value, other->value) != 0)
                return error_set(FSDP_ERR_PEER,
                                 "rank %d was started with %s %s, rank 0 with %s: start all ranks with the same flags "
                                 "and files",
                                 r, first->name, other->value, first->value);
        }
    return FSDP_OK;
}

/* Only where hashes differ, everybody needs everybody's list. */
static fsdp_status find_difference(const train_run *run, const agreed_list *mine)
{
    agreed_list *all = malloc((size_t)run->n_ranks * sizeof *all);
    size_t *bytes = malloc((size_t)run->n_ranks * sizeof *bytes);
    fsdp_status status = all && bytes ? comm_exchange(comm_world(run->world->comm), "settings", mine, sizeof *mine,
                                                      sizeof *mine, all, bytes)
                                      : error_set(FSDP_ERR_MEMORY, "comparing the ranks' settings: out of host memory");
    if (status == FSDP_OK)
        status = compare(all, run->n_ranks);
    free(bytes);
    free(all);
    return status;
}

fsdp_status run_agree(const train_run *run, bool model_known)
{
    if (run->n_ranks == 1)
        return FSDP_OK;
    uint64_t hash = HASH_START;
    agreed_list *mine = calloc(1, sizeof *mine);
    fsdp_status status = mine ? list_agreed(run, model_known, mine)
                              : error_set(FSDP_ERR_MEMORY, "comparing the ranks' settings: out of host memory");
    for (int i = 0; status == FSDP_OK && i < mine->n; i++)
        hash = hash_bytes(hash, mine->rows[i].value, sizeof mine->rows[i].value); /* with what separates them */
    int64_t positive = (int64_t)(hash >> 1), most[] = {positive, -positive};      /* the most, and the least */
    if (status == FSDP_OK)
        status = comm_all_reduce_i64(comm_world(run->world->comm), "settings", 0, FSDP_REDUCE_MAX, most, 2);
    if (status == FSDP_OK && most[0] != -most[1])
        status = find_difference(run, mine);
    free(mine);
    return status;
}

/* ---- While they train ---- */

enum {
    MIN_ELEMENTS = 1 << 18,     /* compared at a time, if there are that many */
    STAGING_ELEMENTS = 1 << 18, /* read at a time from a device */
    MAX_PIECES = 256,           /* that a part is made of */
    OFFLOADED_EVERY = 16,       /* comparisons: units in host memory must be waited for */
    PIECE_NAME = 192,
};

/* Numbers that every rank has for itself. */
static const char *const number_names[] = {
    "position in the data",       "number of steps",         "optimizer's number of steps",
    "number of good steps",       "number of micro-batches", "loss scale",
    "expected count of the loss", "learning rate",           "loss"};
enum { LEARNING_RATE = 7, N_NUMBERS = sizeof number_names / sizeof *number_names };

/* What a rank shows of itself. */
typedef struct rank_view {
    double numbers[N_NUMBERS];
    uint64_t buffers; /* checksums */
    uint64_t replica;
    int32_t shard; /* see state_replica */
    int32_t n_pieces;
} rank_view;

/* The part of a rank's replica that is compared now: checksums of its pieces. */
typedef struct replica_part {
    int n;
    uint64_t sums[MAX_PIECES];
    const ckpt_tensor *tensors[MAX_PIECES];
} replica_part;

static fsdp_status hash_slice(const ckpt_state *state, const ckpt_slice *slice, int64_t first, int64_t n, uint64_t *sum)
{
    hash_stream h;
    hash_stream_start(&h);
    if (slice->data) {
        hash_stream_add(&h, slice->data + first, (size_t)n * sizeof(float));
        *sum = hash_stream_end(&h);
        return FSDP_OK;
    }
    float *staging = malloc((size_t)min_i64(n, STAGING_ELEMENTS) * sizeof *staging);
    fsdp_status status =
        staging ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "comparing the ranks' replicas: out of host memory");
    for (int64_t end = first + n; status == FSDP_OK && first < end; first += STAGING_ELEMENTS) {
        int64_t some = min_i64(end - first, STAGING_ELEMENTS);
        status = state->read(state->context, slice, first, some, staging);
        if (status == FSDP_OK)
            hash_stream_add(&h, staging, (size_t)some * sizeof *staging);
    }
    free(staging);
    *sum = hash_stream_end(&h);
    return status;
}

static bool is_buffer(const ckpt_state *state, const ckpt_slice *slice)
{
    return state->tensors[slice->tensor].role == CKPT_BUFFER;
}

static fsdp_status hash_buffers(const ckpt_state *state, uint64_t *out)
{
    *out = HASH_START;
    for (int i = 0; i < state->n_slices; i++) {
        uint64_t sum;
        if (!is_buffer(state, &state->slices[i]))
            continue;
        FSDP_TRY(hash_slice(state, &state->slices[i], 0, state->slices[i].count, &sum));
        *out = hash_u64(*out, sum);
    }
    return FSDP_OK;
}

/* From where the last comparison ended, and around; no piece twice. */
static fsdp_status hash_part(train_run *run, replica_part *out)
{
    const ckpt_state *state = state_tensors(run->state);
    int64_t total = 0;
    out->n = 0;
    for (int i = 0; i < state->n_slices; i++)
        total += state_is_replicated(run->state, &state->slices[i]) ? state->slices[i].count : 0;
    int64_t left = min_i64(total, max_i64(MIN_ELEMENTS, ceil_div(total, AGREE_PARTS)));
    while (left > 0 && out->n < MAX_PIECES) {
        const ckpt_slice *slice = &state->slices[run->agreed_slice];
        int64_t first = run->agreed_element,
                n = state_is_replicated(run->state, slice) ? min_i64(left, slice->count - first) : 0;
        if (n > 0) {
            FSDP_TRY(hash_slice(state, slice, first, n, &out->sums[out->n]));
            out->tensors[out->n++] = &state->tensors[slice->tensor];
        }
        left -= n;
        run->agreed_element = first + n;
        if (n == 0 || run->agreed_element == slice->count) {
            run->agreed_slice = (run->agreed_slice + 1) % state->n_slices;
            run->agreed_element = 0;
        }
    }
    return FSDP_OK;
}

static fsdp_status view_self(train_run *run, bool last, rank_view *mine, replica_part *part)
{
    state_scalars v = state_scalars_of(run->state);
    const double numbers[N_NUMBERS] = {
        (double)run->position,   (double)run->step, (double)v.optimizer_steps, (double)v.good_steps,
        (double)v.micro_batches, v.loss_scale,      v.expected_count,          v.lr,
        run->result.loss};
    memset(mine, 0, sizeof *mine);
    memcpy(mine->numbers, numbers, sizeof numbers);
    mine->shard = -1;
    part->n = 0;
    FSDP_TRY(hash_buffers(state_tensors(run->state), &mine->buffers));
    bool settled = !state_is_offloaded(run->state) || last || run->step % (AGREE_EVERY * OFFLOADED_EVERY) == 0;
    if (state_replica(run->state) < 0 || !settled)
        return FSDP_OK;
    FSDP_TRY(state_settle(run->state));
    FSDP_TRY(hash_part(run, part));
    mine->shard = state_replica(run->state);
    mine->n_pieces = part->n;
    mine->replica = hash_bytes(HASH_START, part->sums, (size_t)part->n * sizeof *part->sums);
    return FSDP_OK;
}

/* A field of rank_view that ranks share: all of them, or those of one shard. */
typedef struct shared_field {
    size_t at, bytes;
    bool by_shard;
} shared_field;

static bool is_comparable(const shared_field *f, const rank_view *a, const rank_view *b)
{
    return !f->by_shard || (a->shard >= 0 && a->shard == b->shard);
}

static bool is_equal(const shared_field *f, const rank_view *a, const rank_view *b)
{
    return memcmp((const char *)a + f->at, (const char *)b + f->at, f->bytes) == 0;
}

/* How many have what rank r has. */
static int count_equal(const shared_field *f, const rank_view *all, int n, int r)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += is_comparable(f, &all[i], &all[r]) && is_equal(f, &all[i], &all[r]);
    return count;
}

/* The first rank that differs from most of its peers, and one of those peers; false when all agree. */
static bool find_deviant(const shared_field *f, const rank_view *all, int n, int *deviant, int *usual)
{
    int differs = -1, first = 0;
    for (int r = 0; r < n && differs < 0; r++) {
        for (first = 0; !is_comparable(f, &all[first], &all[r]) && first < r;)
            first++;
        if (first < r && !is_equal(f, &all[first], &all[r]))
            differs = r;
    }
    if (differs < 0)
        return false;
    *usual = first;
    for (int r = 0; r < n; r++)
        if (is_comparable(f, &all[r], &all[first]) && count_equal(f, all, n, r) > count_equal(f, all, n, *usual))
            *usual = r;
    for (*deviant = 0;; ++*deviant)
        if (is_comparable(f, &all[*deviant], &all[first]) && !is_equal(f, &all[*deviant], &all[*usual]))
            return true;
}

#define DEVIANT_REMEDY                                                                                                 \
    "; its memory or device is at fault, or its build or libraries are others: resume from the last checkpoint "       \
    "without it"

static fsdp_status compare_views(const train_run *run, const rank_view *all)
{
    int deviant, usual;
    for (int i = 0; i < N_NUMBERS; i++) {
        shared_field f = {offsetof(rank_view, numbers) + (size_t)i * sizeof(double), sizeof(double), false};
        if (find_deviant(&f, all, run->n_ranks, &deviant, &usual))
            return error_set(
                FSDP_ERR_PEER, "step %lld: rank %d has another %s, %.17g, than rank %d, %.17g%s" DEVIANT_REMEDY,
                (long long)run->step, deviant, number_names[i], all[deviant].numbers[i], usual, all[usual].numbers[i],
                i == LEARNING_RATE ? " (do all ranks have the same --max_steps and --epochs?)" : "");
    }
    shared_field buffers = {offsetof(rank_view, buffers), sizeof(uint64_t), false};
    if (find_deviant(&buffers, all, run->n_ranks, &deviant, &usual))
        return error_set(FSDP_ERR_PEER,
                         "step %lld: the model's buffers of rank %d differ from those of rank %d" DEVIANT_REMEDY,
                         (long long)run->step, deviant, usual);
    return FSDP_OK;
}

/* Two replicas differ, as all ranks know: their pieces are compared, and the first that differs is named. */
static fsdp_status name_piece(const train_run *run, const replica_part *part, int deviant, int usual)
{
    char name[PIECE_NAME] = "the replica";
    size_t n = (size_t)run->n_ranks;
    uint64_t(*sums)[MAX_PIECES] = malloc(n * sizeof *sums);
    char(*names)[PIECE_NAME] = malloc(n * PIECE_NAME);
    size_t *bytes = malloc(n * sizeof *bytes);
    comm_group *world = comm_world(run->world->comm);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!sums || !names || !bytes)
        error_set(status, "comparing the ranks' replicas: out of host memory");
    else
        status = comm_exchange(world, "replicas", part->sums, sizeof part->sums, sizeof part->sums, sums, bytes);
    if (status == FSDP_OK) {
        int at = 0;
        while (at < MAX_PIECES - 1 && sums[deviant][at] == sums[usual][at])
            at++;
        if (at < part->n) /* of another shard it is another piece: the deviant's name counts */
            snprintf(name, sizeof name, "%s %s", ckpt_role_name(part->tensors[at]->role), part->tensors[at]->name);
        status = comm_exchange(world, "names", name, sizeof name, sizeof name, names, bytes);
    }
    if (status == FSDP_OK)
        status = error_set(FSDP_ERR_PEER, "step %lld: %s of rank %d differs from the replica of rank %d" DEVIANT_REMEDY,
                           (long long)run->step, names[deviant], deviant, usual);
    free(bytes);
    free(names);
    free(sums);
    return status;
}

static fsdp_status compare_ranks(train_run *run, bool last)
{
    static const shared_field replica = {offsetof(rank_view, replica), sizeof(uint64_t), true};
    rank_view mine;
    replica_part part = {.n = 0};
    int deviant, usual;
    FSDP_TRY(view_self(run, last, &mine, &part));
    rank_view *all = malloc((size_t)run->n_ranks * sizeof *all);
    size_t *bytes = malloc((size_t)run->n_ranks * sizeof *bytes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!all || !bytes)
        error_set(status, "comparing the ranks: out of host memory");
    else
        status = comm_exchange(comm_world(run->world->comm), "agreement", &mine, sizeof mine, sizeof mine, all, bytes);
    if (status == FSDP_OK)
        status = compare_views(run, all);
    if (status == FSDP_OK && find_deviant(&replica, all, run->n_ranks, &deviant, &usual))
        status = name_piece(run, &part, deviant, usual);
    free(bytes);
    free(all);
    return status;
}

fsdp_status run_agree_still(train_run *run, bool last)
{
    if (run->n_ranks == 1 || (!last && run->step % AGREE_EVERY != 0))
        return FSDP_OK;
    HOOK(HOOK_PHASE, HOOK_BEGIN, "agreement", NULL, 0, 0);
    fsdp_status status = compare_ranks(run, last);
    HOOK(HOOK_PHASE, HOOK_END, "agreement", NULL, 0, 0);
    return status;
}
