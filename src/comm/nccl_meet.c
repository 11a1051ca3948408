/* The meeting place of NCCL's ranks, over TCP. What is done with the id, and with bad news, is left to nccl.c. */
#include "comm/nccl_meet.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"

/* First words of a rank that comes, and rank 0's answer. Hosts of one job have one byte order. */
typedef struct hello {
    char magic[8];
    uint64_t token;
    int32_t rank, world_size;
} hello;

typedef struct welcome {
    int32_t refused;
    char reason[252];
    uint8_t gift[MEET_GIFT_BYTES];
} welcome;

/* Later: a failure, or the announcement that a rank leaves. */
typedef struct note {
    int32_t leaves;
    int32_t rank;
    char text[MEET_TEXT_BYTES];
} note;

static const char magic[8] = "fsdp-1";

struct meeting {
    job job;
    int listener;
    int *sockets; /* (world_size) on rank 0, where 0 is unused; else only [0], to rank 0; -1: none */
    int n_sockets;
    pthread_mutex_t lock; /* of writing */
};

static bool send_all(int s, const void *data, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        ssize_t n = send(s, (const char *)data + sent, bytes - sent, MSG_NOSIGNAL);
        if (n <= 0 && errno != EINTR)
            return false;
        sent += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool wait_readable(int s, double deadline)
{
    double left = deadline - clock_seconds();
    struct pollfd p = {.fd = s, .events = POLLIN};
    return left > 0 && poll(&p, 1, (int)(left * 1e3) + 1) > 0;
}

static bool receive_all(int s, void *data, size_t bytes, double deadline)
{
    for (size_t got = 0; got < bytes;) {
        if (!wait_readable(s, deadline))
            return false;
        ssize_t n = recv(s, (char *)data + got, bytes - got, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static void set_options(int s)
{
    int on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

static fsdp_status listen_at(meeting *m)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)m->job.master_port)};
    int on = 1;
    m->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (m->listener < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot open a socket to meet the other ranks");
    setsockopt(m->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(m->listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(m->listener, 128) != 0)
        return error_set_errno(FSDP_ERR_IO, "cannot listen at port %d for the other ranks; choose another MASTER_PORT",
                               m->job.master_port);
    return FSDP_OK;
}

static void refuse(int s, const char *reason)
{
    welcome w = {.refused = 1};
    snprintf(w.reason, sizeof w.reason, "%s", reason);
    send_all(s, &w, sizeof w);
    close(s);
}

/* One visitor: a rank of this job, or somebody to be sent away. */
static bool admit(meeting *m, int s, double deadline)
{
    hello h;
    char reason[200];
    double soon = clock_seconds() + 5;
    if (!receive_all(s, &h, sizeof h, soon < deadline ? soon : deadline) || memcmp(h.magic, magic, sizeof magic) != 0) {
        close(s);
        return false;
    }
    if (h.token != hash_text(HASH_START, m->job.token)) {
        refuse(s,
               "another job meets at this address: its token (FSDP_JOB_TOKEN) is not yours; use another MASTER_PORT");
        return false;
    }
    if (h.world_size != m->job.world_size || h.rank < 1 || h.rank >= h.world_size || m->sockets[h.rank] >= 0) {
        snprintf(reason, sizeof reason, "rank %d of %d does not fit into this job of %d ranks, or came twice", h.rank,
                 h.world_size, m->job.world_size);
        refuse(s, reason);
        return false;
    }
    set_options(s);
    m->sockets[h.rank] = s;
    return true;
}

/* Names those that did not come, also to those that did. */
static fsdp_status name_missing(meeting *m, double timeout)
{
    char list[256] = "";
    size_t used = 0;
    for (int rank = 1; rank < m->job.world_size && used < sizeof list - 16; rank++)
        if (m->sockets[rank] < 0)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", rank);
    fsdp_status status = error_set(
        FSDP_ERR_TIMEOUT, "waited %g s at port %d for rank %s: are all ranks started, with this host as MASTER_ADDR?",
        timeout, m->job.master_port, list);
    for (int rank = 1; rank < m->job.world_size; rank++)
        if (m->sockets[rank] >= 0) {
            refuse(m->sockets[rank], fsdp_last_error());
            m->sockets[rank] = -1;
        }
    return status;
}

static fsdp_status receive_ranks(meeting *m, double timeout, const void *gift)
{
    double deadline = clock_seconds() + timeout;
    FSDP_TRY(listen_at(m));
    for (int missing = m->job.world_size - 1; missing > 0;) {
        if (!wait_readable(m->listener, deadline))
            return name_missing(m, timeout);
        int s = accept(m->listener, NULL, NULL);
        if (s >= 0 && admit(m, s, deadline))
            missing--;
    }
    welcome w = {.refused = 0};
    memcpy(w.gift, gift, sizeof w.gift);
    for (int rank = 1; rank < m->job.world_size; rank++)
        if (!send_all(m->sockets[rank], &w, sizeof w))
            return error_set(FSDP_ERR_PEER, "rank %d went away while the ranks were meeting", rank);
    return FSDP_OK;
}

static void pause_briefly(void)
{
    struct timespec pause = {.tv_nsec = 50000000};
    nanosleep(&pause, NULL);
}

static int connect_once(const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) == 0)
            return s;
        if (s >= 0)
            close(s);
    }
    return -1;
}

static fsdp_status find_master(meeting *m, double timeout, double deadline, int *out)
{
    char port[16];
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list = NULL;
    snprintf(port, sizeof port, "%d", m->job.master_port);
    int code = getaddrinfo(m->job.master_address, port, &hints, &list);
    if (code != 0)
        return error_set(FSDP_ERR_INPUT, "MASTER_ADDR %s is no address: %s", m->job.master_address, gai_strerror(code));
    while ((*out = connect_once(list)) < 0 && clock_seconds() < deadline)
        pause_briefly(); /* rank 0 may not be there yet */
    freeaddrinfo(list);
    if (*out < 0)
        return error_set(FSDP_ERR_TIMEOUT,
                         "rank 0 did not answer at %s:%d within %g s; is it started, and is this "
                         "its address?",
                         m->job.master_address, m->job.master_port, timeout);
    return FSDP_OK;
}

static fsdp_status go_to_master(meeting *m, double timeout, void *gift)
{
    double deadline = clock_seconds() + timeout;
    hello h = {.token = hash_text(HASH_START, m->job.token), .rank = m->job.rank, .world_size = m->job.world_size};
    welcome w;
    memcpy(h.magic, magic, sizeof magic);
    FSDP_TRY(find_master(m, timeout, deadline, &m->sockets[0]));
    set_options(m->sockets[0]);
    if (!send_all(m->sockets[0], &h, sizeof h) || !receive_all(m->sockets[0], &w, sizeof w, deadline))
        return error_set(FSDP_ERR_TIMEOUT,
                         "rank 0 at %s:%d took us in but did not begin within %g s: other ranks are "
                         "missing, or another program listens there",
                         m->job.master_address, m->job.master_port, timeout);
    if (w.refused)
        return error_set(FSDP_ERR_PEER, "rank 0 at %s:%d refused us: %.250s", m->job.master_address, m->job.master_port,
                         w.reason);
    memcpy(gift, w.gift, sizeof w.gift);
    return FSDP_OK;
}

fsdp_status meeting_open(const job *j, double timeout_seconds, void *gift, meeting **out)
{
    meeting *m = calloc(1, sizeof *m);
    if (m)
        m->sockets = malloc((size_t)j->world_size * sizeof *m->sockets);
    if (!m || !m->sockets) {
        free(m);
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", j->world_size);
    }
    m->job = *j;
    m->listener = -1;
    m->n_sockets = j->rank == 0 ? j->world_size : 1;
    for (int i = 0; i < j->world_size; i++)
        m->sockets[i] = -1;
    pthread_mutex_init(&m->lock, NULL);
    fsdp_status status =
        j->rank == 0 ? receive_ranks(m, timeout_seconds, gift) : go_to_master(m, timeout_seconds, gift);
    if (status != FSDP_OK) {
        meeting_close(m);
        return status;
    }
    *out = m;
    return FSDP_OK;
}

/* To everybody this rank has a line to, but for `except`. */
static void send_note(meeting *m, const note *n, int except)
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n_sockets; i++)
        if (m->sockets[i] >= 0 && i != except)
            send_all(m->sockets[i], n, sizeof *n);
    pthread_mutex_unlock(&m->lock);
}

void meeting_tell(meeting *m, const char *text)
{
    note n = {.rank = m->job.rank};
    snprintf(n.text, sizeof n.text, "%s", text);
    send_note(m, &n, -1);
}

static void hang_up(meeting *m, int line)
{
    pthread_mutex_lock(&m->lock);
    close(m->sockets[line]);
    m->sockets[line] = -1;
    pthread_mutex_unlock(&m->lock);
}

bool meeting_listen(meeting *m, int milliseconds, int *rank, char text[MEET_TEXT_BYTES])
{
    struct pollfd lines[256]; /* more ranks than that are heard of through NCCL's own errors and timeouts */
    int of[256], n = 0;
    for (int i = 0; i < m->n_sockets && n < 256; i++)
        if (m->sockets[i] >= 0) {
            lines[n] = (struct pollfd){.fd = m->sockets[i], .events = POLLIN};
            of[n++] = i;
        }
    if (poll(lines, (nfds_t)n, milliseconds) <= 0)
        return false;
    for (int i = 0; i < n; i++) {
        if (!lines[i].revents)
            continue;
        note got;
        bool complete = receive_all(lines[i].fd, &got, sizeof got, clock_seconds() + 1);
        if (!complete || got.leaves)
            hang_up(m, of[i]);
        if (complete && got.leaves)
            continue;
        if (!complete) {
            got = (note){.rank = of[i]};
            snprintf(got.text, sizeof got.text, "its connection broke: the process ended without a word");
        }
        if (m->job.rank == 0)
            send_note(m, &got, of[i]);
        *rank = got.rank;
        memcpy(text, got.text, MEET_TEXT_BYTES);
        text[MEET_TEXT_BYTES - 1] = 0;
        return true;
    }
    return false;
}

void meeting_close(meeting *m)
{
    if (!m)
        return;
    note bye = {.leaves = 1, .rank = m->job.rank};
    send_note(m, &bye, -1);
    for (int i = 0; i < m->n_sockets; i++)
        if (m->sockets[i] >= 0)
            close(m->sockets[i]);
    if (m->listener >= 0)
        close(m->listener);
    pthread_mutex_destroy(&m->lock);
    free(m->sockets);
    free(m);
}
