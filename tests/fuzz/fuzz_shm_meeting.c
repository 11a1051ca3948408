/* Any packets to the meeting of the ranks of one host, from either side, with and without descriptors: nothing crashes,
 * hangs or stays open. Built with clang -fsanitize=fuzzer it searches; otherwise it replays
 * tests/fuzz/corpus/shm_meeting.
 *
 * An input is a byte (which side we are, how many ranks) and records of three bytes (what, who, how much) with their
 * data: a raw packet, or a message with the fields given, either with 0 to 3 descriptors. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/shm/control.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MOST_VISITORS = 4, MOST_RANKS = 4 };

static void require(int condition)
{
    if (!condition)
        abort();
}

static int lowest_free_descriptor(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static void send_packet(int s, const void *data, size_t bytes, int n_fds)
{
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(3 * sizeof(int))];
    } control = {.space = {0}};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};
    int fds[] = {STDERR_FILENO, STDERR_FILENO, STDERR_FILENO};
    if (n_fds > 0) {
        packet.msg_control = control.space;
        packet.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, (size_t)n_fds * sizeof(int));
    }
    (void)sendmsg(s, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* As in meet.c. */
static void send_fields(int s, const uint8_t *data, size_t bytes, int world_size, int n_fds)
{
    struct {
        uint64_t magic;
        int32_t type, rank, world_size, has_fd;
        char text[256];
    } m = {.magic = 0x31304d4853504453ull, .world_size = world_size};
    uint8_t b[5] = {0};
    memcpy(b, data, bytes < sizeof b ? bytes : sizeof b);
    m.type = b[0] % 6;
    m.rank = (int8_t)b[1];
    m.has_fd = b[2] & 1;
    m.world_size += b[3] == 255;
    memset(m.text, b[4], sizeof m.text);
    send_packet(s, &m, sizeof m, n_fds);
}

static void play(const int *peers, int n, int world_size, const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at + 3 <= bytes;) {
        const uint8_t *record = data + at;
        int s = peers[record[1] % n], n_fds = record[0] / 2 % 4;
        size_t room = bytes - at - 3, length = record[2] < room ? record[2] : room;
        at += 3;
        if (record[0] % 2)
            send_fields(s, data + at, length, world_size, n_fds);
        else
            send_packet(s, data + at, length, n_fds);
        at += length;
    }
}

/* Whoever met exchanges descriptors; what came is closed. */
static void pass_around(comm *c)
{
    int fds[MOST_RANKS], mine = dup(STDERR_FILENO);
    if (shm_pass_descriptors(c, mine, fds) == FSDP_OK) {
        for (int i = 0; i < c->world_size; i++)
            if (i != c->rank && fds[i] >= 0)
                close(fds[i]);
    } else {
        require(strlen(fsdp_last_error()) > 0);
    }
    close(mine);
}

static void as_rank_0(comm *c, const uint8_t *data, size_t bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address;
    int peers[MOST_VISITORS], listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    require(bind(listener, (struct sockaddr *)&address, sizeof address.sun_family) == 0 && listen(listener, 8) == 0);
    require(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    for (int i = 0; i < MOST_VISITORS; i++) {
        peers[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        require(connect(peers[i], (struct sockaddr *)&address, length) == 0);
    }
    play(peers, MOST_VISITORS, c->world_size, data, bytes);
    fsdp_status status = shm_collect(c, listener, 0);
    require(status == FSDP_OK || strlen(fsdp_last_error()) > 0);
    for (int i = 0; i < MOST_VISITORS; i++)
        shutdown(peers[i], SHUT_WR);
    if (status == FSDP_OK)
        pass_around(c);
    for (int i = 0; i < MOST_VISITORS; i++)
        close(peers[i]);
    close(listener);
}

static void as_another(comm *c, const uint8_t *data, size_t bytes)
{
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    world_of(c)->sockets[0] = ends[1];
    play(&ends[0], 1, c->world_size, data, bytes);
    shutdown(ends[0], SHUT_WR);
    if (shm_introduce(c) == FSDP_OK)
        pass_around(c);
    else
        require(strlen(fsdp_last_error()) > 0);
    close(ends[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    int before = lowest_free_descriptor(), sockets[MOST_RANKS] = {-1, -1, -1, -1};
    shm_world w = {.sockets = sockets};
    comm c = {.state = &w, .rank = data[0] & 1, .world_size = 2 + data[0] / 2 % 3, .config = COMM_CONFIG_INIT};
    c.config.job = job_single();
    if (c.rank == 0)
        as_rank_0(&c, data + 1, bytes - 1);
    else
        as_another(&c, data + 1, bytes - 1);
    for (int i = 0; i < MOST_RANKS; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
    require(lowest_free_descriptor() == before);
    return 0;
}
