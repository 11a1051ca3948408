/* Who holds what is found out by one exchange between the ranks; parts that a node lacks are taken from one that has
 * them. Saving is save/'s, reading load/'s, the copying meet/vault's. */
#include "ckpt/hot/hot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/host/host_memory.h"
#include "base/log.h"
#include "ckpt/hot/room.h"
#include "ckpt/load/load_from.h"
#include "ckpt/save/directory.h"
#include "ckpt/save/save_task.h"
#include "meet/vault.h"

enum { MAX_HELD = 1024, ADDRESS_BYTES = 136, RUN_BYTES = 40 };

static const double vault_seconds = 20; /* until the launcher has opened it, or it answers */

typedef struct held_part {
    int64_t step;
    uint64_t save;
    int32_t rank, world_size;
} held_part;

/* What a rank tells the others; the first rank of each node lists its parts. A node is a launcher and its ranks, known
 * by the folder that they share: several may run on one host, which `job` then counts as one. */
typedef struct node_view {
    uint64_t node;
    int32_t n_parts;
    char address[ADDRESS_BYTES], run[RUN_BYTES]; /* run: that its newest part is of */
    held_part parts[MAX_HELD];
} node_view;

_Static_assert(sizeof(node_view) <= COMM_EXCHANGE_BYTES, "a view travels in one exchange");

struct ckpt_hot {
    const job *job;
    secret key;
    node_view *views; /* (world_size) as of the start */
    hot_rank *ranks;  /* (world_size) likewise */
    uint64_t node;
    bool is_first;         /* of this node */
    const node_view *next; /* of the node that has our copies; NULL: no other node */
    uint64_t whole;        /* the newest save that all ranks know to be whole; 0: none */
};

/* ---- opening ---- */

static fsdp_status read_address(const char *folder, char address[ADDRESS_BYTES])
{
    char *path = file_join(folder, JOB_VAULT_NAME), *text = NULL;
    size_t bytes = 0;
    double deadline = clock_seconds() + vault_seconds;
    while (path && !file_exists(path) && clock_seconds() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    fsdp_status status = path ? file_read_at_most(path, ADDRESS_BYTES - 1, &text, &bytes)
                              : error_set(FSDP_ERR_MEMORY, "no memory for a path");
    if (status == FSDP_OK)
        snprintf(address, ADDRESS_BYTES, "%s", text);
    free(text);
    free(path);
    return status;
}

static fsdp_status list_parts(const char *folder, node_view *v)
{
    ckpt_listing listing;
    FSDP_TRY(ckpt_directory_list(folder, &listing));
    for (int i = 0; i < listing.n_entries && v->n_parts < MAX_HELD; i++) {
        ckpt_entry *e = &listing.entries[i];
        if (e->temporary || e->rank < 0 || strstr(e->name, ".old-"))
            continue;
        ckpt_entry_check(e);
        if (e->condition == CKPT_COMPLETE && v->n_parts == 0)
            snprintf(v->run, sizeof v->run, "%s", e->run); /* the highest step comes first */
        if (e->condition == CKPT_COMPLETE)
            v->parts[v->n_parts++] = (held_part){e->step, e->save, e->rank, e->world_size};
    }
    ckpt_listing_free(&listing);
    return FSDP_OK;
}

/* Who is where, and what it will hold. */
static fsdp_status exchange_facts(ckpt_hot *h, int64_t bytes, comm_group *world)
{
    int n = comm_group_size(world), rank = comm_group_rank(world);
    const char *folder = h->job->snapshots;
    hot_rank mine = {h->node, hot_host_of(folder), bytes, hot_bytes_in(folder)};
    size_t *sizes = calloc((size_t)n, sizeof *sizes);
    h->ranks = calloc((size_t)n, sizeof *h->ranks);
    fsdp_status status = h->ranks && sizes ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "no memory to find snapshots");
    if (status == FSDP_OK)
        status = comm_exchange(world, "snapshot nodes", &mine, sizeof mine, sizeof mine, h->ranks, sizes);
    h->is_first = status == FSDP_OK && (rank == 0 || h->ranks[rank - 1].node != h->node);
    free(sizes);
    return status;
}

static fsdp_status look_at_home(const ckpt_hot *h, int next, node_view *v)
{
    v->node = h->node;
    if (next >= 0)
        FSDP_TRY(read_address(h->job->snapshots, v->address));
    return h->is_first ? list_parts(h->job->snapshots, v) : FSDP_OK;
}

static fsdp_status exchange_views(ckpt_hot *h, comm_group *world)
{
    int n = comm_group_size(world), next = hot_next_rank(h->ranks, n, comm_group_rank(world));
    node_view *mine = calloc(1, sizeof *mine);
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    h->views = calloc((size_t)n, sizeof *h->views);
    fsdp_status status = mine && bytes && h->views ? look_at_home(h, next, mine)
                                                   : error_set(FSDP_ERR_MEMORY, "no memory to find snapshots");
    status = ckpt_agree(world, "snapshots", status, fsdp_last_error());
    if (status == FSDP_OK)
        status = comm_exchange(world, "snapshots held", mine, sizeof *mine, sizeof *mine, h->views, bytes);
    if (status == FSDP_OK && next >= 0)
        h->next = &h->views[next];
    free(bytes);
    free(mine);
    return status;
}

static fsdp_status open_folder(const job *j)
{
    if (!j->snapshots[0])
        return error_set(FSDP_ERR_INPUT, "--snapshot_freq: snapshots lie in memory that `fsdp run` holds; start the "
                                         "ranks with it, or save checkpoints to disk with --checkpoint_freq");
    return file_make_directories(j->snapshots);
}

fsdp_status ckpt_hot_open(const job *j, int64_t bytes, comm_group *world, ckpt_hot **out)
{
    ckpt_hot *h = calloc(1, sizeof *h);
    fsdp_status status = h ? open_folder(j) : error_set(FSDP_ERR_MEMORY, "no memory to find snapshots");
    status = ckpt_agree(world, "snapshots", status, fsdp_last_error());
    if (status == FSDP_OK) {
        h->job = j;
        h->node = hash_text(HASH_START, j->snapshots);
        secret_from_text(&h->key, j->secret);
        status = exchange_facts(h, bytes, world);
    }
    if (status == FSDP_OK)
        status = exchange_views(h, world);
    if (status != FSDP_OK) {
        ckpt_hot_free(h);
        return status;
    }
    *out = h;
    return FSDP_OK;
}

void ckpt_hot_free(ckpt_hot *h)
{
    if (!h)
        return;
    free(h->views);
    free(h->ranks);
    free(h);
}

fsdp_status ckpt_hot_check_room(const ckpt_hot *h, comm_group *world)
{
    hot_need need = hot_count_need(h->ranks, comm_group_size(world), h->ranks[comm_group_rank(world)].host);
    fsdp_status status = hot_check_room(&need, hot_room_left(h->job->snapshots), (int64_t)host_memory_available());
    return ckpt_agree(world, "room for snapshots", status, fsdp_last_error());
}

/* ---- saving ---- */

static fsdp_status connect_to(const ckpt_hot *h, const char *address, client **out)
{
    endpoint at;
    FSDP_TRY(endpoint_parse(address, 0, &at));
    client_config config = {.candidates = &at,
                            .n_candidates = 1,
                            .key = &h->key,
                            .job = h->job->rendezvous_id,
                            .who = {.seat = 0, .seats = 1},
                            .timeout_seconds = vault_seconds};
    snprintf(config.who.circle, sizeof config.who.circle, "copies.%d.%d", h->job->round, h->job->rank);
    snprintf(config.who.who, sizeof config.who.who, "rank %d", h->job->rank);
    return client_open(&config, out);
}

/* On the thread of the save. */
static fsdp_status copy_to_next(void *context, const char *path, const char *id)
{
    const ckpt_hot *h = context;
    client *c;
    if (!h->next)
        return FSDP_OK;
    fsdp_status status = connect_to(h, h->next->address, &c);
    if (status == FSDP_OK) {
        status = vault_put(c, h->job->snapshots, strrchr(path, '/') + 1, id);
        client_close(c);
    }
    return status == FSDP_OK ? FSDP_OK : error_prefix(FSDP_ERR_IO, "the copy at %s: ", h->next->address);
}

void ckpt_hot_configure(ckpt_hot *h, ckpt_save_config *config)
{
    config->directory = h->job->snapshots;
    config->kind = FSDP_CKPT_LOCAL;
    config->committed = copy_to_next;
    config->context = h;
}

/* No rank writes between the end of a save and the start of the next, in which all take part. */
void ckpt_hot_settle(ckpt_hot *h, uint64_t save)
{
    ckpt_listing listing;
    h->whole = save ? save : h->whole;
    if (!h->is_first || ckpt_directory_list(h->job->snapshots, &listing) != FSDP_OK)
        return;
    for (int i = 0; i < listing.n_entries; i++) {
        ckpt_entry *e = &listing.entries[i];
        ckpt_entry_check(e);
        if (e->save != h->whole || e->temporary)
            (void)file_remove_tree(e->path);
    }
    ckpt_listing_free(&listing);
}

/* ---- resuming ---- */

/* The first rank of a node that has this part, here before elsewhere; -1: none. */
static int find_holder(const ckpt_hot *h, int n, const held_part *wanted)
{
    int found = -1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < h->views[i].n_parts; k++)
            if (memcmp(&h->views[i].parts[k], wanted, sizeof *wanted) == 0 &&
                (found < 0 || h->views[i].node == h->node))
                found = i;
    return found;
}

static bool is_whole(const ckpt_hot *h, int n, held_part of)
{
    for (of.rank = 0; of.rank < of.world_size; of.rank++)
        if (find_holder(h, n, &of) < 0)
            return false;
    return true;
}

/* The newest below `limit`; all ranks see the same. */
static bool find_newest(const ckpt_hot *h, int n, int64_t limit, held_part *out)
{
    out->step = -1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < h->views[i].n_parts; k++) {
            const held_part *p = &h->views[i].parts[k];
            if (p->step < limit && p->step > out->step && is_whole(h, n, *p))
                *out = *p;
        }
    return out->step >= 0;
}

int64_t ckpt_hot_newest(const ckpt_hot *h, comm_group *world, const char **run)
{
    int n = comm_group_size(world);
    held_part newest;
    *run = "";
    if (!find_newest(h, n, INT64_MAX, &newest))
        return -1;
    for (int i = 0; i < n && !**run; i++)
        *run = h->views[i].run;
    return newest.step;
}

/* The part lies on this node when this has returned. `fetches`: this rank sees to it. */
static fsdp_status bring(const ckpt_hot *h, int n, const held_part *part, bool fetches, char **path)
{
    int holder = find_holder(h, n, part);
    char id[17];
    client *c;
    *path = ckpt_directory_path(h->job->snapshots, part->step, part->rank);
    if (!*path)
        return error_set(FSDP_ERR_MEMORY, "no memory for a path");
    if (h->views[holder].node == h->node || !fetches)
        return FSDP_OK;
    snprintf(id, sizeof id, "%016" PRIx64, part->save);
    FSDP_TRY(connect_to(h, h->views[holder].address, &c));
    fsdp_status status = vault_take(c, h->job->snapshots, strrchr(*path, '/') + 1, id);
    client_close(c);
    return status;
}

/* Ranks of the world that wrote it read their own part; any other world reads what it needs from all of them. */
static fsdp_status load_snapshot(ckpt_hot *h, const held_part *newest, const ckpt_load_config *config,
                                 const ckpt_state *state, comm_group *world, ckpt_load_result *result)
{
    int n = comm_group_size(world), n_paths = 0;
    bool same = newest->world_size == n, corrupt;
    char **paths = calloc((size_t)newest->world_size, sizeof *paths);
    fsdp_status status = paths ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "no memory for paths");
    held_part part = *newest;
    for (part.rank = 0; part.rank < newest->world_size && status == FSDP_OK; part.rank++)
        if (!same || part.rank == comm_group_rank(world))
            status = bring(h, n, &part, same || h->is_first, &paths[n_paths++]);
    status = ckpt_agree(world, "snapshot parts", status, fsdp_last_error());
    if (status == FSDP_OK) {
        status = load_from_parts(paths, n_paths, config, state, &corrupt, result);
        status = ckpt_agree(world, "snapshot load", status, fsdp_last_error());
    }
    for (int i = 0; i < n_paths; i++)
        free(paths[i]);
    free(paths);
    return status;
}

fsdp_status ckpt_hot_resume(ckpt_hot *h, const ckpt_load_config *config, const ckpt_state *state, comm_group *world,
                            ckpt_load_result *result)
{
    held_part newest;
    int64_t limit = INT64_MAX;
    int n = comm_group_size(world);
    *result = (ckpt_load_result){.step = -1};
    while (find_newest(h, n, limit, &newest)) {
        fsdp_status status = load_snapshot(h, &newest, config, state, world, result);
        if (status == FSDP_OK) {
            h->whole = newest.save;
            return FSDP_OK;
        }
        ckpt_load_result_free(result);
        if (comm_group_rank(world) == 0)
            log_write(FSDP_LOG_WARNING, "the snapshot of step %" PRId64 " was skipped: %s", newest.step,
                      fsdp_last_error());
        limit = newest.step;
    }
    *result = (ckpt_load_result){.step = -1};
    return FSDP_OK;
}
