/* Opens and closes a rank's connection to the world, splits groups, and builds the small blocking calls (barrier,
 * exchange, scalars) out of collectives. Which ranks meet how is left to the backends. */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/host/environment.h"
#include "base/host/threads.h"
#include "base/record/ring.h"
#include "comm/direct.h"
#include "comm/engine.h"
#include "meet/meeting.h"

static bool has_ucx(void)
{
#ifdef FSDP_WITH_UCX
    return true;
#else
    return false;
#endif
}

static bool is_started_by_mpirun(const job *j)
{
    return j->launcher && (strcmp(j->launcher, "openmpi") == 0 || strcmp(j->launcher, "mpich") == 0);
}

/* Without a name: by device, hosts and launcher. */
static const char *default_backend(const comm_config *config, int n_hosts)
{
    return config->job.world_size == 1                        ? "self"
           : config->device && config->device->own_memory     ? "nccl"
           : n_hosts == 1                                     ? "shm"
           : has_ucx() && !is_started_by_mpirun(&config->job) ? "ucx"
                                                              : "mpi";
}

static fsdp_status choose_backend(const comm_config *config, int n_hosts, const comm_backend **out)
{
    static const comm_backend *const backends[] = {
        &comm_self_backend, &comm_shm_backend,
#ifdef FSDP_WITH_MPI
        &comm_mpi_backend,
#endif
#ifdef FSDP_WITH_UCX
        &comm_ucx_backend,
#endif
#ifdef FSDP_WITH_NCCL
        &comm_nccl_backend,
#endif
    };
    const char *name = config->backend ? config->backend : default_backend(config, n_hosts);
    if (strncmp(name, "emulate", 7) == 0 && (name[7] == ':' || !name[7])) {
        bool queue = config->device && config->device->paced_move;
        *out = queue ? &comm_emulate_device_backend : &comm_emulate_host_backend;
        return FSDP_OK;
    }
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        if (strcmp(backends[i]->name, name) == 0) {
            *out = backends[i];
            return FSDP_OK;
        }
    }
    if (strcmp(name, "mpi") == 0 || strcmp(name, "ucx") == 0 || strcmp(name, "nccl") == 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "this build has no %s backend; configure it where %s is installed", name,
                         name);
    return error_set(FSDP_ERR_INPUT, "communication backend '%s' is unknown; there are self, shm, mpi, ucx and nccl",
                     name);
}

/* As the launcher counts them. */
static int promised_hosts(const job *j)
{
    return j->world_size == j->local_world_size ? 1 : 2;
}

size_t comm_overhead(const comm_config *config)
{
    const comm_backend *backend;
    return choose_backend(config, promised_hosts(&config->job), &backend) == FSDP_OK && backend->overhead
               ? backend->overhead(config)
               : 0;
}

/* By name: a plan may be made where there is no NCCL. */
static bool is_nccl(const comm_config *config)
{
    const char *name = config->backend ? config->backend : default_backend(config, promised_hosts(&config->job));
    return strcmp(name, "nccl") == 0;
}

/* NCCL 2.28.9 on an H200, 2 ranks, at most 16 blocks a collective, as free memory shows it around comm_open and
 * comm_group_split: 392 MiB with the world's group, most of it kernels, and 49 with each further one. A communicator by
 * itself takes 16 of them, and splitting one off another, also with shared resources, no less; collectives and
 * registered memory take no more. */
size_t comm_library_bytes(const comm_config *config, int groups)
{
    static const size_t process = (size_t)345 << 20, group = (size_t)49 << 20;
    return groups > 0 && is_nccl(config) ? process + (size_t)groups * group : 0;
}

size_t comm_allocated_bytes(const comm_config *config, size_t bytes)
{
    const comm_backend *backend;
    if (choose_backend(config, promised_hosts(&config->job), &backend) != FSDP_OK)
        return bytes;
    bool symmetric = config->memory != FSDP_COMM_MEMORY_PLAIN && backend->symmetric_page > 0;
    size_t page = symmetric ? backend->symmetric_page : backend->page;
    return page > 0 ? round_up(bytes, page) : bytes;
}

bool comm_will_fill_directly(const comm_config *config)
{
    const comm_backend *backend;
    return choose_backend(config, promised_hosts(&config->job), &backend) == FSDP_OK && backend->registers;
}

bool comm_sums_directly(const comm_config *config, fsdp_dtype from)
{
    const comm_backend *backend;
    bool queued = is_nccl(config) || (choose_backend(config, promised_hosts(&config->job), &backend) == FSDP_OK &&
                                      backend == &comm_emulate_device_backend);
    return queued && config->accumulation == FSDP_ACCUMULATE_FP32 && (from == FSDP_BF16 || from == FSDP_F16);
}

size_t comm_staging_bytes(const comm_config *config, comm_kind kind, int n_ranks, int64_t numel, fsdp_dtype from,
                          fsdp_dtype to, bool add)
{
    size_t bytes = 0;
    if (n_ranks > 1 && comm_sums_directly(config, from))
        bytes = direct_staging_bytes(config, kind, n_ranks, numel);
    else if (n_ranks > 1 && is_nccl(config) && (from != to || add))
        bytes = round_up((size_t)numel * fsdp_dtype_size(from), 256);
    return round_up(bytes, COMM_STAGING_PAGE);
}

size_t comm_exchange_staging_bytes(const comm_config *config, int n_ranks)
{
    if (n_ranks < 2 || !is_nccl(config))
        return 0;
    size_t sizes = 256 + round_up((size_t)n_ranks * sizeof(int64_t), 256);
    return round_up(256 + sizes + (size_t)(1 + n_ranks) * COMM_EXCHANGE_BYTES, COMM_STAGING_PAGE);
}

/* A process that may run everywhere shares the host with its other ranks; one that was bound has its cores to itself,
 * or with as many ranks as its launcher says. */
static bool has_spare_core(const comm *c)
{
    int cores = threads_cores();
    int64_t sharing;
    if (cores == sysconf(_SC_NPROCESSORS_ONLN))
        cores /= c->local_world_size;
    else if (environment_int("FSDP_RANKS_ON_CORES", &sharing) && sharing > 0)
        cores /= (int)min_i64(sharing, cores);
    return cores > threads_count();
}

static bool wants_thread(const comm *c)
{
    if (c->backend->enqueues)
        return false;
    if (c->config.progress != COMM_PROGRESS_AUTO)
        return c->config.progress == COMM_PROGRESS_THREAD;
    if (c->world_size == 1)
        return false;
    return c->backend->works ? has_spare_core(c) : threads_count() > 1;
}

/* `members` is taken on success. */
static fsdp_status group_create(comm *c, const char *name, int slot, int rank, int size, int *members, comm_group **out)
{
    comm_group *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(FSDP_ERR_MEMORY, "no memory for communication group %s", name);
    g->comm = c;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->slot = slot;
    g->serial = c->n_splits;
    g->rank = rank;
    g->size = size;
    g->members = members;
    if (size > 1) {
        fsdp_status status = c->backend->group_open(g);
        if (status != FSDP_OK) {
            free(g);
            return status;
        }
    }
    g->next = c->groups;
    c->groups = g;
    ring_set_group(ring_own(), slot, g->serial, members[0], size, name);
    *out = g;
    return FSDP_OK;
}

static fsdp_status create_world(comm *c)
{
    int *members = malloc((size_t)c->world_size * sizeof *members);
    if (!members)
        return error_set(FSDP_ERR_MEMORY, "no memory for a group of %d ranks", c->world_size);
    for (int i = 0; i < c->world_size; i++)
        members[i] = i;
    fsdp_status status = group_create(c, "world", 0, c->rank, c->world_size, members, &c->world);
    if (status != FSDP_OK)
        free(members);
    return status;
}

/* Written only when it changes: threads of an earlier comm may read it. */
static void set_identity(const comm *c)
{
    if (error_world_size() != c->world_size || error_rank() != c->rank)
        error_set_rank(c->rank, c->world_size);
}

/* The launcher says how many ranks there are. A backend that finds another world (MPI whose mpirun did not start us
 * finds a world of one) would train another model and overwrite that of the others. Without a launcher, the backend
 * decides. */
static fsdp_status check_promise(const comm *c)
{
    const job *j = &c->config.job;
    if ((j->world_size == c->world_size && j->rank == c->rank) || !j->launcher || strcmp(j->launcher, "none") == 0)
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "the environment (%s) says that this is rank %d of %d, but backend %s found rank %d of %d: start the "
        "ranks with this MPI's own mpirun, or with srun, or use --comm_backend ucx",
        j->launcher, j->rank, j->world_size, c->backend->name, c->rank, c->world_size);
}

/* Which ranks share a host: launchers know of their own ranks only, and two may run on one host. */
static fsdp_status find_hosts(comm *c)
{
    uint64_t mine = meeting_host_id(), *all = calloc((size_t)c->world_size, sizeof *all);
    if (!all)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    fsdp_status status = meeting_gather_equal(c->meeting, "hosts", &mine, sizeof mine, all);
    int *first = status == FSDP_OK ? calloc((size_t)c->world_size, sizeof *first) : NULL;
    if (status == FSDP_OK && !first)
        status = error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    c->n_nodes = status == FSDP_OK ? 0 : c->n_nodes;
    c->local_world_size = status == FSDP_OK ? 0 : c->local_world_size;
    for (int rank = 0; status == FSDP_OK && rank < c->world_size; rank++) {
        int host = 0;
        while (host < c->n_nodes && all[first[host]] != all[rank])
            host++;
        if (host == c->n_nodes)
            first[c->n_nodes++] = rank;
        if (rank == c->rank) {
            c->node = host;
            c->local_rank = c->local_world_size;
        }
        c->local_world_size += all[rank] == mine;
    }
    free(first);
    free(all);
    return status;
}

/* mpirun's ranks on several hosts have MPI to find each other. */
static bool left_to_mpi(const job *j)
{
    return promised_hosts(j) > 1 && is_started_by_mpirun(j);
}

/* A backend that was named says whether it needs the meeting; otherwise the hosts decide on the backend. */
static fsdp_status meet_and_choose(comm *c)
{
    const comm_config *config = &c->config;
    bool open = !config->backend && c->world_size > 1 && !left_to_mpi(&config->job);
    if (!open) {
        FSDP_TRY(choose_backend(config, promised_hosts(&config->job), &c->backend));
        if (!c->backend->meets || (c->world_size == 1 && !c->backend->keeps_meeting))
            return FSDP_OK;
    }
    FSDP_TRY(meeting_open(&config->job, config->timeout_seconds, &c->meeting));
    FSDP_TRY(find_hosts(c));
    return choose_backend(config, c->n_nodes, &c->backend);
}

/* What only collectives on a GPU's queue have. A rank alone has none, and a setting that is meant for many is harmless
 * there. */
static fsdp_status check_placement(const comm *c)
{
    bool asked = c->config.ctas > 0 || c->config.memory != FSDP_COMM_MEMORY_PLAIN ||
                 c->config.accumulation != FSDP_ACCUMULATE_FP32;
    if (!asked || c->backend->enqueues || c->backend == &comm_self_backend)
        return FSDP_OK;
    return error_set(
        FSDP_ERR_INPUT,
        "--comm_ctas, --comm_memory and --reduce_accumulation are for NCCL between GPUs, this job uses %s; "
        "leave them out",
        c->backend->name);
}

static void leave_meeting(comm *c)
{
    meeting_close(c->meeting);
    c->meeting = NULL;
}

fsdp_status comm_open(const comm_config *config, comm **out)
{
    comm *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(FSDP_ERR_MEMORY, "no memory to connect to other ranks");
    c->config = *config;
    c->rank = config->job.rank;
    c->world_size = config->job.world_size;
    c->local_rank = config->job.local_rank;
    c->local_world_size = config->job.local_world_size;
    c->node = config->job.node;
    c->n_nodes = config->job.n_nodes;
    set_identity(c);

    fsdp_status status = meet_and_choose(c);
    if (status == FSDP_OK)
        status = check_placement(c);
    if (status != FSDP_OK) {
        leave_meeting(c);
        free(c);
        return status;
    }
    const comm_backend *backend = c->backend;
    TRY_OR(fail, backend->open(c));
    TRY_OR(fail, check_promise(c));
    if (!backend->keeps_meeting)
        leave_meeting(c);
    set_identity(c); /* mpi may know better */
    TRY_OR(fail, engine_open(c, wants_thread(c)));
    c->workers = c->has_thread ? 1 : threads_count(); /* no thread computes while the caller waits */
    status = create_world(c);
    if (status != FSDP_OK) {
        comm_close(c);
        return status;
    }
    *out = c;
    return FSDP_OK;
fail:
    backend->close(c);
    leave_meeting(c);
    free(c);
    return status;
}

void comm_close(comm *c)
{
    if (!c)
        return;
    engine_close(c);
    while (c->groups)
        comm_group_free(c->groups);
    c->backend->close(c);
    leave_meeting(c);
    engine_free(c);
    free(c);
}

int comm_rank(const comm *c)
{
    return c->rank;
}

int comm_world_size(const comm *c)
{
    return c->world_size;
}

int comm_local_rank(const comm *c)
{
    return c->local_rank;
}

const char *comm_backend_name(const comm *c)
{
    return c->backend->name;
}

bool comm_has_progress_thread(const comm *c)
{
    return c->has_thread;
}

bool comm_enqueues(const comm *c)
{
    return c->backend->enqueues;
}

void comm_abort(comm *c, const char *message)
{
    engine_fail(c, FSDP_ERR_PEER, message);
}

fsdp_status comm_check(comm *c)
{
    if (atomic_load(&c->failed))
        return engine_failure(c);
    fsdp_status status = c->backend->check ? c->backend->check(c) : FSDP_OK;
    return status == FSDP_OK ? FSDP_OK : engine_fail(c, status, engine_error_text(c));
}

fsdp_status comm_allocate(comm *c, size_t bytes, void **out)
{
    *out = NULL;
    FSDP_TRY(engine_drain(c));
    return c->backend->allocate(c, bytes, out);
}

bool comm_fills_directly(const comm *c)
{
    return c->backend->registers;
}

void comm_release(comm *c, void *memory)
{
    if (memory)
        c->backend->release(c, memory);
}

comm_group *comm_world(comm *c)
{
    return c->world;
}

/* A rank's answer to a split. Ranks free groups at times of their own: a slot is free when it is so on all of them. */
typedef struct membership {
    int32_t color, key;
    uint32_t slots_taken;
} membership;

/* The lowest slot that no rank uses, the same on every rank; 0: none. */
static int free_slot(const membership *all, int n_ranks)
{
    uint32_t taken = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        taken |= all[rank].slots_taken;
    int slot = 1;
    while (slot <= COMM_MAX_GROUPS && (taken >> slot & 1))
        slot++;
    return slot <= COMM_MAX_GROUPS ? slot : 0;
}

/* Fills in the members of our color in order of key, then rank: an insertion sort over ranks. */
static int choose_members(const comm *c, const membership *all, int *members)
{
    int n = 0;
    for (int rank = 0; rank < c->world_size; rank++) {
        if (all[rank].color != all[c->rank].color)
            continue;
        int at = n++;
        for (; at > 0 && all[members[at - 1]].key > all[rank].key; at--)
            members[at] = members[at - 1];
        members[at] = rank;
    }
    return n;
}

/* How the opening of a rank's side of a group went. */
enum opening { OPENING_FAILED, OPENING_LACKING, OPENING_WHOLE };

/* A group that one rank could not open exists nowhere, and what one side lacks no side has. It is also the moment from
 * which on the group may be used: until every member has opened its side, a slot that was used before shows what the
 * group before left there. `g` is NULL where `own` is a failure. */
static fsdp_status agree_on_opening(comm *c, const char *name, comm_group *g, fsdp_status own)
{
    char label[COMM_NAME_BYTES], text[512] = "";
    size_t n = (size_t)c->world_size, *bytes = calloc(n, sizeof *bytes);
    uint8_t mine = !g ? OPENING_FAILED : g->lacking ? OPENING_LACKING : OPENING_WHOLE, *all = calloc(n, sizeof *all);
    bool lacking = false;
    fsdp_status status;
    if (own != FSDP_OK)
        snprintf(text, sizeof text, "%s", engine_error_text(c));
    snprintf(label, sizeof label, "opening of group %s", name);
    if (all && bytes)
        status = comm_exchange(c->world, label, &mine, sizeof mine, sizeof mine, all, bytes);
    else
        status = engine_fail(c, FSDP_ERR_MEMORY, "no memory to open a group");
    for (int rank = 0; status == FSDP_OK && rank < c->world_size; rank++) {
        lacking |= all[rank] == OPENING_LACKING;
        if (all[rank] == OPENING_FAILED)
            status = error_set(FSDP_ERR_PEER, "rank %d could not open group %s", rank, name);
    }
    if (status == FSDP_OK && lacking && g->size > 1 && c->backend->group_settle)
        c->backend->group_settle(g);
    free(all);
    free(bytes);
    return own != FSDP_OK ? error_set(own, "%s", text) : status;
}

/* The membership of every rank follows from its number: nobody has to be asked, and peers that are only emulated
 * could not answer. */
typedef struct regular_split {
    int size;
    bool across; /* ranks with the same place in their lists of `size` neighbours; else those neighbours */
} regular_split;

static void fill_in(const regular_split *split, membership *all, int n_ranks)
{
    for (int rank = 0; rank < n_ranks; rank++) {
        all[rank].color = split->across ? rank % split->size : rank / split->size;
        all[rank].key = rank;
    }
}

static fsdp_status split_world(comm *c, const char *name, int color, int key, const regular_split *regular,
                               comm_group **out)
{
    size_t n = (size_t)c->world_size;
    membership mine = {color, key, c->slots_taken}, *all = calloc(n, sizeof *all);
    size_t *bytes = calloc(n, sizeof *bytes);
    int *members = calloc(n, sizeof *members);
    fsdp_status status = FSDP_OK;
    if (!all || !bytes || !members) {
        status = error_set(FSDP_ERR_MEMORY, "no memory to split %d ranks into groups", c->world_size);
        goto done;
    }
    char label[COMM_NAME_BYTES];
    snprintf(label, sizeof label, "members of group %s", name);
    TRY_OR(done, comm_exchange(c->world, label, &mine, sizeof mine, sizeof mine, all, bytes));
    if (regular)
        fill_in(regular, all, c->world_size);
    int slot = free_slot(all, c->world_size);
    if (slot == 0) {
        status =
            error_set(FSDP_ERR_STATE, "group %s: there are %d groups already; free one first", name, COMM_MAX_GROUPS);
        goto done;
    }
    int size = choose_members(c, all, members), rank = 0;
    while (members[rank] != c->rank)
        rank++;
    c->n_splits++;
    comm_group *g = NULL;
    fsdp_status own = group_create(c, name, slot, rank, size, members, &g);
    if (own == FSDP_OK) {
        members = NULL;
        c->slots_taken |= 1u << slot;
    }
    status = agree_on_opening(c, name, g, own);
    if (status != FSDP_OK)
        comm_group_free(g);
    else
        *out = g;
done:
    free(members);
    free(bytes);
    free(all);
    return status;
}

fsdp_status comm_group_split(comm *c, const char *name, int color, int key, comm_group **out)
{
    return split_world(c, name, color, key, NULL, out);
}

fsdp_status comm_group_split_neighbours(comm *c, const char *name, int size, comm_group **out)
{
    if (size < 1 || c->world_size % size != 0)
        return error_set(FSDP_ERR_INPUT, "a %s group of %d ranks does not divide a world of %d", name, size,
                         c->world_size);
    return split_world(c, name, c->rank / size, c->rank, &(regular_split){.size = size}, out);
}

fsdp_status comm_group_split_by_size(comm *c, int size, comm_group **shard, comm_group **replica)
{
    FSDP_TRY(comm_group_split_neighbours(c, "shard", size, shard));
    regular_split across = {.size = size, .across = true};
    fsdp_status status = split_world(c, "replica", c->rank % size, c->rank, &across, replica);
    if (status != FSDP_OK) {
        comm_group_free(*shard);
        *shard = NULL;
    }
    return status;
}

void comm_group_free(comm_group *g)
{
    if (!g)
        return;
    comm_group **link = &g->comm->groups;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    if (g->size > 1)
        g->comm->backend->group_close(g);
    g->comm->slots_taken &= ~(1u << g->slot);
    free(g->members);
    free(g);
}

int comm_group_rank(const comm_group *g)
{
    return g->rank;
}

int comm_group_size(const comm_group *g)
{
    return g->size;
}

int comm_group_world_rank(const comm_group *g, int rank)
{
    return g->members[rank];
}

int64_t comm_group_bytes(const comm_group *g)
{
    return atomic_load(&g->bytes_received);
}

/* Starts and waits: op and request are gone when this returns. */
static fsdp_status run_now(comm_group *g, comm_kind kind, const comm_op *op)
{
    comm_request r = COMM_REQUEST_INIT;
    FSDP_TRY(engine_start(g, kind, op, &r));
    return engine_wait(&r);
}

fsdp_status comm_barrier(comm_group *g, const char *label, int64_t step)
{
    comm_op op = {.label = label, .step = step};
    return run_now(g, COMM_BARRIER, &op);
}

fsdp_status comm_exchange(comm_group *g, const char *label, const void *mine, size_t bytes, size_t max_bytes, void *all,
                          size_t *all_bytes)
{
    if (bytes > max_bytes || max_bytes > COMM_EXCHANGE_BYTES)
        return error_set(FSDP_ERR_INPUT, "exchange of %s: %zu bytes, of at most %zu; the limit is %d",
                         label ? label : "data", bytes, max_bytes, COMM_EXCHANGE_BYTES);
    size_t n = (size_t)g->size;
    uint8_t *padded = calloc(1, max_bytes ? max_bytes : 1);
    int64_t my_size = (int64_t)bytes, *sizes = calloc(n, sizeof *sizes);
    fsdp_status status;
    if (!padded || !sizes) {
        status = error_set(FSDP_ERR_MEMORY, "no memory to exchange %zu bytes", max_bytes);
        goto done;
    }
    if (bytes)
        memcpy(padded, mine, bytes);
    comm_span spans[] = {
        {.send = {&my_size, FSDP_I64}, .recv = {sizes, FSDP_I64}, .count = 1},
        {.send = {padded, FSDP_U8}, .recv = {all, FSDP_U8}, .count = (int64_t)max_bytes},
    };
    comm_op op = {.label = label, .n_spans = 2, .spans = spans};
    TRY_OR(done, run_now(g, COMM_EXCHANGE, &op));
    for (size_t i = 0; i < n; i++)
        all_bytes[i] = (size_t)sizes[i];
done:
    free(sizes);
    free(padded);
    return status;
}

static fsdp_status all_reduce_scalars(comm_group *g, const char *label, int64_t step, fsdp_reduction reduction,
                                      buffer values, int64_t n)
{
    comm_span span = {.send = values, .recv = values, .count = n};
    comm_op op = {.label = label, .step = step, .n_spans = 1, .spans = &span, .reduction = reduction};
    return run_now(g, COMM_ALL_REDUCE, &op);
}

fsdp_status comm_all_reduce_f64(comm_group *g, const char *label, int64_t step, fsdp_reduction reduction,
                                double *values, int64_t n)
{
    return all_reduce_scalars(g, label, step, reduction, (buffer){values, FSDP_F64}, n);
}

fsdp_status comm_all_reduce_i64(comm_group *g, const char *label, int64_t step, fsdp_reduction reduction,
                                int64_t *values, int64_t n)
{
    return all_reduce_scalars(g, label, step, reduction, (buffer){values, FSDP_I64}, n);
}
