/* How the ranks of one host find each other: rank 0 listens at an abstract Unix socket whose name follows from the job,
 * the others connect, and file descriptors (shared memory, process handles) go around through rank 0. Nothing of it has
 * a name in a file system, so nothing is left when processes die. What is shared is left to memory.c and shm.c. */
#include <errno.h>
#include <poll.h>
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

/* What ranks greet each other with; another program on the same address does not know it. */
#define SHM_MAGIC 0x31304d4853504453ull

enum message_type { MESSAGE_HELLO = 1, MESSAGE_WELCOME, MESSAGE_REFUSED, MESSAGE_DESCRIPTOR };

typedef struct message {
    uint64_t magic;
    int32_t type, rank, world_size, has_fd;
    char text[256];
} message;

enum { RETRY_MILLISECONDS = 10 };

static void socket_name(const comm *c, struct sockaddr_un *address, socklen_t *length)
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
    if (got <= 0)
        return error_set(FSDP_ERR_PEER, "rank %d ended while ranks were meeting", from_rank);
    struct cmsghdr *header = CMSG_FIRSTHDR(&packet);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(header), sizeof *fd);
    if (got != sizeof *m || m->magic != SHM_MAGIC) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
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

/* The name may still be held by a job that is just ending: tried until the timeout. */
static fsdp_status open_meeting(const comm *c, double deadline, int *out)
{
    struct sockaddr_un address;
    socklen_t length;
    socket_name(c, &address, &length);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot make a Unix socket");
    while (bind(listener, (struct sockaddr *)&address, length) < 0) {
        if (errno != EADDRINUSE || clock_seconds() > deadline) {
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
    if (listen(listener, c->world_size) < 0) {
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

/* Takes one connection in. A stranger is turned away without failing the meeting. */
static fsdp_status greet(comm *c, int listener)
{
    shm_world *w = world_of(c);
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return errno == EINTR || errno == ECONNABORTED ? FSDP_OK : error_set_errno(FSDP_ERR_IO, "cannot accept a rank");
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0 || peer.uid != geteuid()) {
        close(socket);
        return FSDP_OK;
    }
    set_timeout(socket, c->config.timeout_seconds);
    message m;
    int fd;
    if (receive_message(c, socket, &m, &fd, -1) != FSDP_OK || m.type != MESSAGE_HELLO) {
        close(socket);
        return FSDP_OK;
    }
    if (fd >= 0)
        close(fd);
    fsdp_status status = FSDP_OK;
    if (m.world_size != c->world_size || m.rank < 1 || m.rank >= c->world_size)
        status = error_set(FSDP_ERR_PEER, "a rank that calls itself %d of %d came to a job of %d ranks", m.rank,
                           m.world_size, c->world_size);
    else if (w->sockets[m.rank] >= 0)
        status = error_set(FSDP_ERR_PEER,
                           "two processes call themselves rank %d; if two jobs share MASTER_ADDR and MASTER_PORT, give "
                           "each its own FSDP_JOB_TOKEN",
                           m.rank);
    if (status != FSDP_OK) {
        message refusal = make_message(c, MESSAGE_REFUSED, engine_error_text(c));
        send_message(socket, &refusal, -1, m.rank);
        close(socket);
        return status;
    }
    w->sockets[m.rank] = socket;
    return FSDP_OK;
}

static fsdp_status collect(comm *c, int listener, double deadline)
{
    for (int met = 1; met < c->world_size;) {
        double left = deadline - clock_seconds();
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        int ready = left > 0 ? poll(&wait, 1, (int)(left * 1000) + 1) : 0;
        if (ready < 0 && errno != EINTR)
            return error_set_errno(FSDP_ERR_IO, "cannot wait for other ranks");
        if (ready == 0) {
            char missing[128];
            name_missing(c, missing, sizeof missing);
            return error_set(FSDP_ERR_TIMEOUT, "%s of %d did not connect within %g s", missing, c->world_size,
                             c->config.timeout_seconds);
        }
        if (ready > 0)
            FSDP_TRY(greet(c, listener));
        met = 1;
        for (int rank = 1; rank < c->world_size; rank++)
            met += world_of(c)->sockets[rank] >= 0;
    }
    return FSDP_OK;
}

static fsdp_status meet_as_first(comm *c)
{
    double deadline = clock_seconds() + c->config.timeout_seconds;
    int listener = -1;
    FSDP_TRY(open_meeting(c, deadline, &listener));
    fsdp_status status = collect(c, listener, deadline);
    close(listener);
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

/* ---- the others ---- */

static fsdp_status meet_as_other(comm *c)
{
    double deadline = clock_seconds() + c->config.timeout_seconds;
    struct sockaddr_un address;
    socklen_t length;
    socket_name(c, &address, &length);
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
    set_timeout(s, c->config.timeout_seconds + 1); /* rank 0 began earlier, and says who is missing */
    message m = make_message(c, MESSAGE_HELLO, "");
    int fd;
    FSDP_TRY(send_message(s, &m, -1, 0));
    FSDP_TRY(receive_message(c, s, &m, &fd, 0));
    if (fd >= 0)
        close(fd);
    if (m.type == MESSAGE_REFUSED)
        return error_set(FSDP_ERR_PEER, "%s", m.text);
    return FSDP_OK;
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
    FSDP_TRY(send_descriptor(c, s, 0, c->rank, fds[c->rank]));
    for (int i = 1; i < c->world_size; i++) {
        int rank, fd;
        FSDP_TRY(receive_descriptor(c, s, 0, &rank, &fd));
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
