/* How the ranks of one host find each other: rank 0 listens at an abstract Unix socket whose name follows from the job,
 * the others connect, and file descriptors (shared memory, process handles) go around through rank 0. Nothing of it has
 * a name in a file system, so nothing is left when processes die. What is shared is left to memory.c and shm.c. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/shm/control.h"
#include "comm/meet/visitors.h"

/* What ranks greet each other with; another program on the same address does not know it. */
#define SHM_MAGIC 0x31304d4853504453ull

enum message_type { MESSAGE_HELLO = 1, MESSAGE_WELCOME, MESSAGE_REFUSED, MESSAGE_DESCRIPTOR };

typedef struct message {
    uint64_t magic;
    int32_t type, rank, world_size, has_fd;
    char text[256];
} message;

enum { RETRY_MILLISECONDS = 10, STRANGERS = 64 };

/* Who holds the other end. The names of these sockets can be taken by anybody, and what is handed over is the memory of
 * the parameters: only our own user's processes may answer, or ask. */
static bool is_ours(int socket, unsigned *user)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
        peer.uid = (uid_t)-1;
    *user = (unsigned)peer.uid;
    return peer.uid == geteuid();
}

static fsdp_status held_by_stranger(const comm *c, unsigned user)
{
    return error_set(
        FSDP_ERR_PEER,
        "user %u holds the meeting point of this job (%s:%d), not a rank of ours: choose another MASTER_PORT, "
        "or a FSDP_JOB_TOKEN that nobody can guess (`fsdp run` makes one)",
        user, c->config.job.master_address, c->config.job.master_port);
}

void shm_socket_name(const comm *c, struct sockaddr_un *address, socklen_t *length)
{
    const job *j = &c->config.job;
    uint64_t hash = hash_text(HASH_START, j->master_address);
    hash = hash_text(hash_u64(hash, (uint64_t)j->master_port), j->token);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "fsdp-%u-%016llx", (unsigned)geteuid(),
                     (unsigned long long)hash);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static fsdp_status send_message(int socket, const message *m, int fd, int to_rank)
{
    struct iovec part = {.iov_base = (void *)m, .iov_len = sizeof *m};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        packet.msg_control = control.space;
        packet.msg_controllen = sizeof control.space;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &packet, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return error_set_errno(FSDP_ERR_PEER, "cannot send to rank %d; has it ended?", to_rank);
    return FSDP_OK;
}

/* Padding leaves room for two; one is what we expect. */
static void keep_first_descriptor(struct msghdr *packet, int *fd)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(packet); h; h = CMSG_NXTHDR(packet, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = CMSG_LEN(0); at + sizeof *fd <= h->cmsg_len; at += sizeof *fd) {
            int came;
            memcpy(&came, (char *)h + at, sizeof came);
            if (*fd < 0)
                *fd = came;
            else
                close(came);
        }
    }
}

/* *fd is the descriptor that came along, or -1. */
static fsdp_status receive_message(const comm *c, int socket, message *m, int *fd, int from_rank)
{
    struct iovec part = {.iov_base = m, .iov_len = sizeof *m};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr packet = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    *fd = -1;
    ssize_t got;
    do
        got = recvmsg(socket, &packet, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return error_set(FSDP_ERR_TIMEOUT, "rank %d did not answer within %g s", from_rank, c->config.timeout_seconds);
    if (got >= 0)
        keep_first_descriptor(&packet, fd);
    if (got != sizeof *m || m->magic != SHM_MAGIC) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        if (got <= 0)
            return error_set(FSDP_ERR_PEER, "rank %d ended while ranks were meeting", from_rank);
        return error_set(FSDP_ERR_PEER, "rank %d speaks another protocol; all ranks must run the same build",
                         from_rank);
    }
    m->text[sizeof m->text - 1] = 0;
    return FSDP_OK;
}

static void set_timeout(int socket, double seconds)
{
    struct timeval limit = {.tv_sec = (time_t)seconds,
                            .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    if (limit.tv_sec == 0 && limit.tv_usec == 0)
        limit.tv_usec = 1;
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static void pause_briefly(void)
{
    struct timespec pause = {.tv_nsec = RETRY_MILLISECONDS * 1000000L};
    nanosleep(&pause, NULL);
}

static message make_message(const comm *c, enum message_type type, const char *text)
{
    message m = {.magic = SHM_MAGIC, .type = type, .rank = c->rank, .world_size = c->world_size};
    snprintf(m.text, sizeof m.text, "%s", text);
    return m;
}

/* ---- rank 0 ---- */

/* Another user at our address, who will not go away. */
static bool is_squatted(const struct sockaddr_un *address, socklen_t length, unsigned *user)
{
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool squatted = s >= 0 && connect(s, (const struct sockaddr *)address, length) == 0 && !is_ours(s, user);
    if (s >= 0)
        close(s);
    return squatted;
}

/* The name may still be held by a job that is just ending: tried until the timeout. */
static fsdp_status open_meeting(const comm *c, double deadline, int *out)
{
    struct sockaddr_un address;
    socklen_t length;
    shm_socket_name(c, &address, &length);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot make a Unix socket");
    while (bind(listener, (struct sockaddr *)&address, length) < 0) {
        unsigned user;
        int error = errno;
        if (error == EADDRINUSE && is_squatted(&address, length, &user)) {
            close(listener);
            return held_by_stranger(c, user);
        }
        errno = error;
        if (error != EADDRINUSE || clock_seconds() > deadline) {
            fsdp_status status =
                error_set_errno(FSDP_ERR_IO,
                                "cannot open the meeting point for %s:%d; if another job uses the same "
                                "address, choose another MASTER_PORT or set FSDP_JOB_TOKEN",
                                c->config.job.master_address, c->config.job.master_port);
            close(listener);
            return status;
        }
        pause_briefly();
    }
    if (listen(listener, c->world_size + STRANGERS) < 0) {
        close(listener);
        return error_set_errno(FSDP_ERR_IO, "cannot listen for other ranks");
    }
    *out = listener;
    return FSDP_OK;
}

/* Ranks without a socket, as "rank 2" or "ranks 1, 2". */
static void name_missing(const comm *c, char *text, size_t bytes)
{
    int n = 0;
    size_t at = 0;
    for (int rank = 1; rank < c->world_size; rank++)
        n += world_of(c)->sockets[rank] < 0;
    at += (size_t)snprintf(text, bytes, n == 1 ? "rank" : "ranks");
    for (int rank = 1, shown = 0; rank < c->world_size && at + 16 < bytes; rank++)
        if (world_of(c)->sockets[rank] < 0)
            at += (size_t)snprintf(text + at, bytes - at, "%s%d", shown++ ? ", " : " ", rank);
}

/* Takes a visitor in who has said hello. A stranger is turned away without failing the meeting. */
static fsdp_status greet(comm *c, int socket, const message *m)
{
    shm_world *w = world_of(c);
    unsigned user;
    if (!is_ours(socket, &user) || m->magic != SHM_MAGIC || m->type != MESSAGE_HELLO) {
        close(socket);
        return FSDP_OK;
    }
    set_timeout(socket, c->config.timeout_seconds);
    fsdp_status status = FSDP_OK;
    if (m->world_size != c->world_size || m->rank < 1 || m->rank >= c->world_size)
        status = error_set(FSDP_ERR_PEER, "a rank that calls itself %d of %d came to a job of %d ranks", m->rank,
                           m->world_size, c->world_size);
    else if (w->sockets[m->rank] >= 0)
        status = error_set(FSDP_ERR_PEER,
                           "two processes call themselves rank %d; if two jobs share MASTER_ADDR and MASTER_PORT, give "
                           "each its own FSDP_JOB_TOKEN",
                           m->rank);
    if (status != FSDP_OK) {
        message refusal = make_message(c, MESSAGE_REFUSED, engine_error_text(c));
        send_message(socket, &refusal, -1, m->rank);
        close(socket);
        return status;
    }
    w->sockets[m->rank] = socket;
    return FSDP_OK;
}

static fsdp_status collect(comm *c, visitors *v, double deadline)
{
    for (int missing = c->world_size - 1; missing > 0;) {
        message m;
        int socket;
        FSDP_TRY(visitors_next(v, deadline, &m, &socket));
        if (socket < 0 || clock_seconds() > deadline + 1) {
            char names[128];
            if (socket >= 0)
                close(socket);
            name_missing(c, names, sizeof names);
            return error_set(FSDP_ERR_TIMEOUT, "%s of %d did not connect within %g s", names, c->world_size,
                             c->config.timeout_seconds);
        }
        FSDP_TRY(greet(c, socket, &m));
        missing = 0;
        for (int rank = 1; rank < c->world_size; rank++)
            missing += world_of(c)->sockets[rank] < 0;
    }
    return FSDP_OK;
}

fsdp_status shm_collect(comm *c, int listener, double deadline)
{
    visitors *v = visitors_new(listener, sizeof(message), c->world_size + STRANGERS);
    if (!v)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", c->world_size);
    fsdp_status status = collect(c, v, deadline);
    visitors_free(v);
    message m = make_message(c, status == FSDP_OK ? MESSAGE_WELCOME : MESSAGE_REFUSED,
                             status == FSDP_OK ? "" : engine_error_text(c));
    char kept[256];
    snprintf(kept, sizeof kept, "%s", m.text);
    for (int rank = 1; rank < c->world_size; rank++) {
        if (world_of(c)->sockets[rank] < 0)
            continue;
        fsdp_status sent = send_message(world_of(c)->sockets[rank], &m, -1, rank);
        if (status == FSDP_OK)
            status = sent;
    }
    if (m.type == MESSAGE_REFUSED)
        return error_set(status, "%s", kept);
    return status;
}

static fsdp_status meet_as_first(comm *c)
{
    double deadline = clock_seconds() + c->config.timeout_seconds;
    int listener = -1;
    FSDP_TRY(open_meeting(c, deadline, &listener));
    fsdp_status status = shm_collect(c, listener, deadline);
    close(listener);
    return status;
}

/* ---- the others ---- */

fsdp_status shm_introduce(comm *c)
{
    int s = world_of(c)->sockets[0], fd;
    unsigned user;
    if (!is_ours(s, &user))
        return held_by_stranger(c, user);
    set_timeout(s, c->config.timeout_seconds + 1); /* rank 0 began earlier, and says who is missing */
    message m = make_message(c, MESSAGE_HELLO, "");
    FSDP_TRY(send_message(s, &m, -1, 0));
    FSDP_TRY(receive_message(c, s, &m, &fd, 0));
    if (fd >= 0)
        close(fd);
    if (m.type == MESSAGE_REFUSED)
        return error_set(FSDP_ERR_PEER, "%s", m.text[0] ? m.text : "rank 0 refused us and did not say why");
    if (m.type != MESSAGE_WELCOME)
        return error_set(FSDP_ERR_PEER, "rank 0 sent something unexpected while ranks were meeting");
    return FSDP_OK;
}

static fsdp_status meet_as_other(comm *c)
{
    double deadline = clock_seconds() + c->config.timeout_seconds;
    struct sockaddr_un address;
    socklen_t length;
    shm_socket_name(c, &address, &length);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot make a Unix socket");
    world_of(c)->sockets[0] = s;
    while (connect(s, (struct sockaddr *)&address, length) < 0) {
        if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
            return error_set_errno(FSDP_ERR_IO, "cannot connect to rank 0");
        if (clock_seconds() > deadline)
            return error_set(FSDP_ERR_TIMEOUT,
                             "rank 0 of %d did not open the meeting point for %s:%d within %g s; are MASTER_ADDR, "
                             "MASTER_PORT and FSDP_JOB_TOKEN the same on all ranks?",
                             c->world_size, c->config.job.master_address, c->config.job.master_port,
                             c->config.timeout_seconds);
        pause_briefly();
    }
    return shm_introduce(c);
}

fsdp_status shm_meet(comm *c)
{
    return c->rank == 0 ? meet_as_first(c) : meet_as_other(c);
}

/* ---- descriptors ---- */

static fsdp_status receive_descriptor(comm *c, int socket, int from_rank, int *rank, int *fd)
{
    message m;
    FSDP_TRY(receive_message(c, socket, &m, fd, from_rank));
    if (m.type == MESSAGE_DESCRIPTOR && m.rank >= 0 && m.rank < c->world_size && m.has_fd == (*fd >= 0)) {
        *rank = m.rank;
        return FSDP_OK;
    }
    bool lost = m.type == MESSAGE_DESCRIPTOR && m.has_fd && *fd < 0;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    if (lost)
        return error_set(FSDP_ERR_IO, "no room for a file descriptor of rank %d; raise the limit (ulimit -n)", m.rank);
    return error_set(FSDP_ERR_PEER, "rank %d sent something unexpected while memory was shared", from_rank);
}

static fsdp_status send_descriptor(comm *c, int socket, int to_rank, int rank, int fd)
{
    message m = make_message(c, MESSAGE_DESCRIPTOR, "");
    m.rank = rank;
    m.has_fd = fd >= 0;
    return send_message(socket, &m, fd, to_rank);
}

static fsdp_status relay(comm *c, int *fds)
{
    int *sockets = world_of(c)->sockets, rank;
    for (int peer = 1; peer < c->world_size; peer++)
        FSDP_TRY(receive_descriptor(c, sockets[peer], peer, &rank, &fds[peer]));
    for (int owner = 0; owner < c->world_size; owner++)
        for (int peer = 1; peer < c->world_size; peer++)
            if (peer != owner)
                FSDP_TRY(send_descriptor(c, sockets[peer], peer, owner, fds[owner]));
    return FSDP_OK;
}

static fsdp_status pass_through_first(comm *c, int *fds)
{
    int s = world_of(c)->sockets[0];
    bool came[SHM_MAX_RANKS] = {false};
    FSDP_TRY(send_descriptor(c, s, 0, c->rank, fds[c->rank]));
    for (int i = 1; i < c->world_size; i++) {
        int rank = 0, fd = -1;
        FSDP_TRY(receive_descriptor(c, s, 0, &rank, &fd));
        if (rank == c->rank || came[rank]) {
            if (fd >= 0)
                close(fd);
            return error_set(FSDP_ERR_PEER, "rank 0 passed on the memory of rank %d twice", rank);
        }
        came[rank] = true;
        fds[rank] = fd;
    }
    return FSDP_OK;
}

fsdp_status shm_pass_descriptors(comm *c, int fd, int *fds)
{
    for (int i = 0; i < c->world_size; i++)
        fds[i] = -1;
    fds[c->rank] = fd;
    fsdp_status status = c->rank == 0 ? relay(c, fds) : pass_through_first(c, fds);
    for (int i = 0; status != FSDP_OK && i < c->world_size; i++)
        if (i != c->rank && fds[i] >= 0)
            close(fds[i]);
    return status;
}
