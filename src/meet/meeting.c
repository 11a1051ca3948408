/* Finds the store of a job and speaks to it as a rank. */
#include "meet/meeting.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "meet/server.h"

/* Ports at which rank 0 tries to listen, from the master's on: that one may be taken, by the launcher itself or by
 * another job. The others look for it there. */
enum { PORTS = 8 };

static const double linger_seconds = 0.5;

struct meeting {
    job job;
    double timeout;
    server *server; /* rank 0's own; NULL: the launcher's */
    client *client;
    bool over; /* the connection is gone, and was reported */
};

typedef struct place {
    endpoint candidates[PORTS];
    int n;
    secret key;
    char job[WIRE_NAME_BYTES], circle[WIRE_NAME_BYTES];
} place;

/* Without a launcher's store: ports from the master's on; in a build without libcrypto, a Unix socket. */
static fsdp_status find_own_place(const job *j, place *p)
{
    snprintf(p->job, sizeof p->job, "%s", j->token[0] ? j->token : "fsdp");
    secret_from_text(&p->key, j->secret[0] ? j->secret : j->token);
    if (!secret_can_prove()) {
        uint64_t hash =
            hash_text(hash_u64(hash_text(HASH_START, j->master_address), (uint64_t)j->master_port), j->token);
        if (j->n_nodes > 1)
            return error_set(FSDP_ERR_UNSUPPORTED,
                             "this build joins the ranks of one host only: configure it where libcrypto is installed "
                             "(apt install libssl-dev)");
        snprintf(p->candidates[0].host, ENDPOINT_HOST_BYTES, "fsdp-%u-%016llx", (unsigned)geteuid(),
                 (unsigned long long)hash);
        p->candidates[0].port = -1;
        p->n = 1;
        return FSDP_OK;
    }
    for (int port = j->master_port + j->master_port_taken; p->n < PORTS && port <= 65535; port++) {
        endpoint *e = &p->candidates[p->n++];
        snprintf(e->host, sizeof e->host, "%s", j->master_address);
        e->port = port;
    }
    return FSDP_OK;
}

static fsdp_status find_place(const job *j, place *p)
{
    *p = (place){.n = 0};
    snprintf(p->circle, sizeof p->circle, "ranks.%d", j->round);
    if (!j->rendezvous[0])
        return find_own_place(j, p);
    snprintf(p->job, sizeof p->job, "%s", j->rendezvous_id);
    secret_from_text(&p->key, j->secret);
    p->n = 1;
    return endpoint_parse(j->rendezvous, 0, &p->candidates[0]);
}

/* At the first of the ports that is free: on the master's address itself, or, where that is not one of this host's (a
 * service, an address behind a router) or says nothing to other hosts, on all. */
static fsdp_status open_server(const job *j, const place *p, server **out)
{
    server_config config = {.key = &p->key, .job = p->job};
    fsdp_status status = FSDP_ERR_STATE;
    for (int i = 0; status == FSDP_ERR_STATE && i < p->n; i++) {
        config.at = p->candidates[i];
        config.anywhere = j->n_nodes > 1 && endpoint_is_misleading(&config.at);
        status = server_open(&config, out);
        if (status == FSDP_ERR_INPUT && !config.anywhere) {
            config.anywhere = true;
            status = server_open(&config, out);
        }
    }
    if (status == FSDP_ERR_STATE)
        return error_prefix(status,
                            "no port of %d is free for the meeting of the ranks; choose another MASTER_PORT: ", p->n);
    return status;
}

fsdp_status meeting_open(const job *j, double timeout_seconds, meeting **out)
{
    place p;
    FSDP_TRY(find_place(j, &p));
    meeting *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", j->world_size);
    m->job = *j;
    m->timeout = timeout_seconds;
    client_config config = {.candidates = p.candidates,
                            .n_candidates = p.n,
                            .key = &p.key,
                            .job = p.job,
                            .who = {.seat = j->rank, .seats = j->world_size},
                            .timeout_seconds = timeout_seconds};
    snprintf(config.who.circle, sizeof config.who.circle, "%s", p.circle);
    snprintf(config.who.who, sizeof config.who.who, "rank %d", j->rank);
    fsdp_status status = FSDP_OK;
    endpoint own;
    if (j->rank == 0 && !j->rendezvous[0]) {
        status = open_server(j, &p, &m->server);
        if (status == FSDP_OK) {
            own = *server_endpoint(m->server);
            config.candidates = &own;
            config.n_candidates = 1;
        }
    }
    if (status == FSDP_OK)
        status = client_open(&config, &m->client);
    if (status != FSDP_OK) {
        meeting_close(m);
        return status;
    }
    *out = m;
    return FSDP_OK;
}

void meeting_close(meeting *m)
{
    if (!m)
        return;
    client_close(m->client);
    server_close(m->server, linger_seconds);
    free(m);
}

/* ---- values ---- */

fsdp_status meeting_gather(meeting *m, const char *name, const void *mine, size_t bytes, client_parts *out)
{
    return client_gather(m->client, name, m->timeout, mine, bytes, out);
}

fsdp_status meeting_gather_equal(meeting *m, const char *name, const void *mine, size_t bytes, void *all)
{
    client_parts parts;
    fsdp_status status = FSDP_OK;
    FSDP_TRY(meeting_gather(m, name, mine, bytes, &parts));
    for (int i = 0; i < parts.n && status == FSDP_OK; i++) {
        if (parts.bytes[i] == bytes)
            memcpy((char *)all + (size_t)i * bytes, parts.data + parts.offsets[i], bytes);
        else
            status =
                error_set(FSDP_ERR_PEER, "%s: rank %d gave %zu bytes instead of %zu; all ranks must run the same build",
                          name, i, parts.bytes[i], bytes);
    }
    client_parts_free(&parts);
    return status;
}

fsdp_status meeting_share(meeting *m, const char *name, void *value, size_t bytes)
{
    client_parts parts;
    FSDP_TRY(meeting_gather(m, name, value, m->job.rank == 0 ? bytes : 0, &parts));
    bool fits = parts.bytes[0] == bytes;
    if (fits)
        memcpy(value, parts.data + parts.offsets[0], bytes);
    client_parts_free(&parts);
    if (!fits)
        return error_set(FSDP_ERR_PEER, "%s: rank 0 gave something else; all ranks must run the same build", name);
    return FSDP_OK;
}

fsdp_status meeting_barrier(meeting *m, const char *name)
{
    return client_barrier(m->client, name, m->timeout);
}

/* ---- messages ---- */

void meeting_send(meeting *m, uint32_t kind, const void *body, size_t bytes, int except)
{
    wire_body post = {0};
    wire_put_i32(&post, m->job.rank == 0 ? -1 : 0);
    wire_put_i32(&post, except);
    wire_put_u32(&post, kind);
    wire_put(&post, body, bytes);
    if (!post.failed)
        client_send(m->client, WIRE_POST, post.data, post.bytes);
    wire_free(&post);
}

void meeting_flush(meeting *m, double seconds)
{
    client_flush(m->client, seconds);
}

static void hear(uint32_t kind, const void *body, size_t bytes, meeting_listener listener, void *context)
{
    wire_reader r = wire_read(body, bytes);
    meeting_message message = {.rank = wire_get_i32(&r)};
    if (kind == WIRE_GONE) {
        message.kind = wire_get_i32(&r) ? MEET_LEFT : MEET_LOST;
    } else {
        message.kind = wire_get_u32(&r);
        message.body = r.at;
        message.bytes = r.left;
    }
    if (r.broken || (kind != WIRE_GONE && (kind != WIRE_POST || message.kind < MEET_USER)))
        return;
    listener(context, &message);
}

void meeting_listen(meeting *m, int milliseconds, meeting_listener listener, void *context)
{
    struct pollfd p = {.fd = m->over ? -1 : client_socket(m->client), .events = POLLIN};
    const void *body;
    uint32_t kind;
    size_t bytes;
    line_state state = LINE_NOTHING;
    meeting_flush(m, 0);
    bool first = true;
    while (!m->over && ((state = client_receive(m->client, &kind, &body, &bytes)) == LINE_MESSAGE || first)) {
        if (state == LINE_MESSAGE)
            hear(kind, body, bytes, listener, context);
        else if (state != LINE_NOTHING || poll(&p, 1, milliseconds) <= 0)
            break;
        first = false;
    }
    if (m->over)
        poll(&p, 1, milliseconds);
    if (state == LINE_BROKEN || state == LINE_GARBLED) { /* the store is gone, and rank 0 with it or soon */
        m->over = true;
        listener(context, &(meeting_message){.rank = 0, .kind = MEET_LOST});
    }
}

/* ---- hosts ---- */

static uint64_t hash_namespace(uint64_t hash, const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 ? hash_u64(hash, (uint64_t)found.st_ino) : hash;
}

uint64_t meeting_machine_id(void)
{
    char boot[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof boot, file))
            boot[0] = 0;
        fclose(file);
    }
    if (!boot[0])
        gethostname(boot, sizeof boot - 1);
    return hash_text(HASH_START, boot);
}

uint64_t meeting_host_id(void)
{
    uint64_t hash = hash_u64(meeting_machine_id(), (uint64_t)geteuid());
    return hash_namespace(hash_namespace(hash, "/proc/self/ns/pid"), "/proc/self/ns/net");
}
