/* The meeting place of NCCL's ranks, over TCP. What is done with the id, and with bad news, is left to nccl.c. */
#include "comm/meet/meeting.h"

#include <arpa/inet.h>
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
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/meet/line.h"
#include "comm/meet/visitors.h"

/* First words of a rank that comes, and rank 0's answer. Each side shows that it knows the job's token without saying
 * it: by a hash of the token and a number that the visitor has drawn. Hosts of one job have one byte order. */
typedef struct hello {
    char magic[8];
    uint64_t number, proof;
    int32_t rank, world_size;
} hello;

typedef struct welcome {
    uint64_t proof;
    int32_t refused;
    char reason[252];
    uint8_t payload[MEET_PAYLOAD_BYTES];
} welcome;

enum side { SIDE_VISITOR, SIDE_HOST };

static const char magic[8] = "fsdp-3";
/* Room for this many silent strangers besides the ranks. */
enum { STRANGERS = 64 };
static const double LINGER_SECONDS = 0.5, LATE_SECONDS = 1;

struct meeting {
    job job;
    int listener;
    line *lines; /* (world_size) on rank 0, where 0 is nobody; else only [0], to rank 0 */
    int n_lines;
    struct pollfd *polled; /* (n_lines), and whose they are: of whoever listens */
    int *line_of;
    uint64_t *scalars;    /* (n_lines) what each rank has drawn */
    pthread_mutex_t lock; /* of sending */
};

static uint64_t proof(const job *j, uint64_t number, enum side side)
{
    return hash_text(hash_u64(hash_u64(HASH_START, number), (uint64_t)side), j->token);
}

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

/* The master's address as rank 0 sees it; 0 where that says nothing about where the others come from. A job on one
 * host, or one whose master is the loopback by name or number, is nobody else's business. */
static in_addr_t loopback_of(const job *j)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list = NULL;
    struct in_addr literal;
    bool named = inet_pton(AF_INET, j->master_address, &literal) == 1 || strcmp(j->master_address, "localhost") == 0;
    if ((!named && j->n_nodes > 1) || getaddrinfo(j->master_address, NULL, &hints, &list) != 0)
        return 0;
    in_addr_t found = ((const struct sockaddr_in *)list->ai_addr)->sin_addr.s_addr;
    freeaddrinfo(list);
    return ntohl(found) >> 24 == IN_LOOPBACKNET ? found : 0;
}

static fsdp_status listen_at(const job *j, int *out)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)j->master_port), .sin_addr.s_addr = loopback_of(j)};
    int on = 1, s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot open a socket to meet the other ranks");
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s, (struct sockaddr *)&address, sizeof address) != 0 || listen(s, 128) != 0) {
        fsdp_status status = error_set_errno(
            FSDP_ERR_IO, "cannot listen at port %d for the other ranks; choose another MASTER_PORT", j->master_port);
        close(s);
        return status;
    }
    *out = s;
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
static bool admit(meeting *m, int s, const hello *h)
{
    char reason[200];
    if (memcmp(h->magic, magic, sizeof magic) != 0) {
        close(s);
        return false;
    }
    if (h->proof != proof(&m->job, h->number, SIDE_VISITOR)) {
        refuse(s,
               "another job meets at this address: its token (FSDP_JOB_TOKEN) is not yours; use another MASTER_PORT");
        return false;
    }
    if (h->world_size != m->job.world_size || h->rank < 1 || h->rank >= h->world_size ||
        m->lines[h->rank].socket >= 0) {
        snprintf(reason, sizeof reason, "rank %d of %d does not fit into this job of %d ranks, or came twice", h->rank,
                 h->world_size, m->job.world_size);
        refuse(s, reason);
        return false;
    }
    set_options(s);
    m->scalars[h->rank] = h->number;
    line_open(&m->lines[h->rank], s);
    return true;
}

/* Names those that did not come, also to those that did. */
static fsdp_status name_missing(meeting *m, double timeout)
{
    char list[256] = "";
    size_t used = 0;
    for (int rank = 1; rank < m->job.world_size && used < sizeof list - 16; rank++)
        if (m->lines[rank].socket < 0)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", rank);
    fsdp_status status = error_set(
        FSDP_ERR_TIMEOUT, "waited %g s at port %d for rank %s: are all ranks started, with this host as MASTER_ADDR?",
        timeout, m->job.master_port, list);
    for (int rank = 1; rank < m->job.world_size; rank++)
        if (m->lines[rank].socket >= 0) {
            refuse(m->lines[rank].socket, fsdp_last_error());
            m->lines[rank].socket = -1;
        }
    return status;
}

static fsdp_status collect(meeting *m, visitors *v, double timeout)
{
    double deadline = clock_seconds() + timeout;
    for (int missing = m->job.world_size - 1; missing > 0;) {
        hello h;
        int s;
        FSDP_TRY(visitors_next(v, deadline, &h, &s));
        bool ours = s >= 0 && admit(m, s, &h);
        if (s < 0 || (!ours && clock_seconds() > deadline + LATE_SECONDS))
            return name_missing(m, timeout);
        missing -= ours;
    }
    return FSDP_OK;
}

static fsdp_status receive_ranks(meeting *m, double timeout, const void *payload)
{
    visitors *v = visitors_new(m->listener, sizeof(hello), m->job.world_size + STRANGERS);
    if (!v)
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", m->job.world_size);
    fsdp_status status = collect(m, v, timeout);
    visitors_free(v);
    if (status != FSDP_OK)
        return status;
    welcome w = {.refused = 0};
    memcpy(w.payload, payload, sizeof w.payload);
    for (int rank = 1; rank < m->job.world_size; rank++) {
        w.proof = proof(&m->job, m->scalars[rank], SIDE_HOST);
        if (!send_all(m->lines[rank].socket, &w, sizeof w))
            return error_set(FSDP_ERR_PEER, "rank %d went away while the ranks were meeting", rank);
    }
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

/* Over a connection to whoever listens there. */
static fsdp_status introduce(meeting *m, double timeout, double deadline, void *payload)
{
    hello h = {.rank = m->job.rank, .world_size = m->job.world_size};
    int s = m->lines[0].socket;
    welcome w;
    memcpy(h.magic, magic, sizeof magic);
    if (getrandom(&h.number, sizeof h.number, 0) != sizeof h.number)
        return error_set_errno(FSDP_ERR_IO, "cannot draw a random number to meet the other ranks");
    h.proof = proof(&m->job, h.number, SIDE_VISITOR);
    if (!send_all(s, &h, sizeof h) || !receive_all(s, &w, sizeof w, deadline))
        return error_set(FSDP_ERR_TIMEOUT,
                         "rank 0 at %s:%d took us in but did not begin within %g s: other ranks are "
                         "missing, or another program listens there",
                         m->job.master_address, m->job.master_port, timeout);
    if (w.refused)
        return error_set(FSDP_ERR_PEER, "rank 0 at %s:%d refused us: %.250s", m->job.master_address, m->job.master_port,
                         w.reason);
    if (w.proof != proof(&m->job, h.number, SIDE_HOST))
        return error_set(FSDP_ERR_PEER,
                         "who answers at %s:%d does not know this job's token (FSDP_JOB_TOKEN): not our rank 0; use "
                         "another MASTER_PORT",
                         m->job.master_address, m->job.master_port);
    memcpy(payload, w.payload, sizeof w.payload);
    return FSDP_OK;
}

static fsdp_status go_to_master(meeting *m, double timeout, void *payload)
{
    double deadline = clock_seconds() + timeout;
    int s;
    FSDP_TRY(find_master(m, timeout, deadline, &s));
    line_open(&m->lines[0], s);
    set_options(s);
    return introduce(m, timeout, deadline, payload);
}

static void free_tables(meeting *m)
{
    free(m->lines);
    free(m->polled);
    free(m->line_of);
    free(m->scalars);
}

static meeting *meeting_new(const job *j)
{
    meeting *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->job = *j;
    m->listener = -1;
    m->n_lines = j->rank == 0 ? j->world_size : 1;
    m->lines = calloc((size_t)m->n_lines, sizeof *m->lines);
    m->polled = calloc((size_t)m->n_lines, sizeof *m->polled);
    m->line_of = calloc((size_t)m->n_lines, sizeof *m->line_of);
    m->scalars = calloc((size_t)m->n_lines, sizeof *m->scalars);
    if (!m->lines || !m->polled || !m->line_of || !m->scalars) {
        free_tables(m);
        free(m);
        return NULL;
    }
    for (int i = 0; i < m->n_lines; i++)
        m->lines[i].socket = -1;
    return m;
}

/* Takes `socket`: rank 0's listener, or a connection to it; -1: to be opened. */
fsdp_status meeting_open_at(const job *j, int socket, double timeout_seconds, void *payload, meeting **out)
{
    meeting *m = meeting_new(j);
    if (!m) {
        if (socket >= 0)
            close(socket);
        return error_set(FSDP_ERR_MEMORY, "no memory to meet %d ranks", j->world_size);
    }
    pthread_mutex_init(&m->lock, NULL);
    fsdp_status status = FSDP_OK;
    if (j->rank == 0) {
        m->listener = socket;
        if (socket < 0)
            status = listen_at(j, &m->listener);
        if (status == FSDP_OK)
            status = receive_ranks(m, timeout_seconds, payload);
    } else if (socket >= 0) {
        line_open(&m->lines[0], socket);
        status = introduce(m, timeout_seconds, clock_seconds() + timeout_seconds, payload);
    } else {
        status = go_to_master(m, timeout_seconds, payload);
    }
    if (status != FSDP_OK) {
        meeting_close(m);
        return status;
    }
    *out = m;
    return FSDP_OK;
}

fsdp_status meeting_open(const job *j, double timeout_seconds, void *payload, meeting **out)
{
    return meeting_open_at(j, -1, timeout_seconds, payload, out);
}

void meeting_send(meeting *m, uint32_t kind, const void *body, size_t bytes, int except)
{
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n_lines; i++)
        if (i != except && !line_queue(&m->lines[i], kind, body, bytes))
            shutdown(m->lines[i].socket, SHUT_RDWR); /* no memory: better lost than out of step */
    pthread_mutex_unlock(&m->lock);
}

void meeting_flush(meeting *m, double seconds)
{
    double deadline = clock_seconds() + seconds;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->n_lines; i++)
        line_flush_until(&m->lines[i], deadline); /* who is gone is noticed by listening */
    pthread_mutex_unlock(&m->lock);
}

static void hang_up(meeting *m, int i)
{
    pthread_mutex_lock(&m->lock);
    line_close(&m->lines[i]);
    pthread_mutex_unlock(&m->lock);
}

/* All that the line has to say. */
static void hear(meeting *m, int i, meeting_listener listener, void *context)
{
    meeting_message message = {.rank = i};
    line_state state;
    while ((state = line_receive(&m->lines[i], &message.kind, &message.body, &message.bytes)) == LINE_MESSAGE) {
        if (message.kind == MEET_LEFT)
            break;
        if (message.kind >= MEET_USER && listener)
            listener(context, &message);
    }
    if (state == LINE_NOTHING)
        return;
    hang_up(m, i);
    if (listener)
        listener(context, &(meeting_message){.rank = i, .kind = state == LINE_MESSAGE ? MEET_LEFT : MEET_LOST});
}

/* How many lines are still open; their sockets for poll, and whose they are. */
static int open_lines(meeting *m)
{
    int n = 0;
    for (int i = 0; i < m->n_lines; i++)
        if (m->lines[i].socket >= 0) {
            m->polled[n] = (struct pollfd){.fd = m->lines[i].socket, .events = POLLIN};
            m->line_of[n++] = i;
        }
    return n;
}

void meeting_listen(meeting *m, int milliseconds, meeting_listener listener, void *context)
{
    meeting_flush(m, 0);
    int n = open_lines(m);
    if (poll(m->polled, (nfds_t)n, milliseconds) <= 0)
        return;
    for (int i = 0; i < n; i++)
        if (m->polled[i].revents)
            hear(m, m->line_of[i], listener, context);
}

/* A socket closed while something unread lies in it takes back what was sent last: rank 0, which hears most, listens
 * until the others have gone too. */
static void linger(meeting *m)
{
    double deadline = clock_seconds() + LINGER_SECONDS;
    while (m->job.rank == 0 && open_lines(m) > 0 && clock_seconds() < deadline)
        meeting_listen(m, 20, NULL, NULL);
}

void meeting_close(meeting *m)
{
    if (!m)
        return;
    meeting_send(m, MEET_LEFT, NULL, 0, -1);
    meeting_flush(m, LINGER_SECONDS);
    for (int i = 0; i < m->n_lines; i++)
        if (m->lines[i].socket >= 0)
            shutdown(m->lines[i].socket, SHUT_WR);
    linger(m);
    for (int i = 0; i < m->n_lines; i++)
        line_close(&m->lines[i]);
    if (m->listener >= 0)
        close(m->listener);
    pthread_mutex_destroy(&m->lock);
    free_tables(m);
    free(m);
}
