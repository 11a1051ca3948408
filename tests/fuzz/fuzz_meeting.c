/* Any bytes to the meeting of ranks over sockets and to the roll that follows it, from either side: nothing crashes,
 * hangs or stays open, and what is refused is named. Built with clang -fsanitize=fuzzer it searches; otherwise it
 * replays tests/fuzz/corpus/meeting.
 *
 * An input is a byte (which side we are, how many ranks) and records of three bytes (what, who, how much) with their
 * data: raw bytes from a connection, a true hello, a framed message, or a call of a collective with the fields given.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/hash.h"
#include "comm/meet/ledger.h"
#include "comm/meet/meeting.h"
#include "comm/meet/watchdog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { MOST_VISITORS = 4, CALLS = MEET_USER + 1 };

static const char token[] = "fuzz";

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

/* As in meeting.c: what a rank that knows the token says. */
static void say_hello(int s, int rank, int world_size)
{
    struct {
        char magic[8];
        uint64_t number, proof;
        int32_t rank, world_size;
    } h = {.magic = "fsdp-3", .number = 7, .rank = rank, .world_size = world_size};
    h.proof = hash_text(hash_u64(hash_u64(HASH_START, h.number), 0), token);
    (void)send(s, &h, sizeof h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_framed(int s, uint32_t kind, const void *body, uint32_t bytes)
{
    uint32_t header[] = {kind, bytes};
    (void)send(s, header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)send(s, body, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A call whose numbers are bytes of the input; the rest of them are the beginning of its names. */
static void say_call(int s, const uint8_t *data, size_t bytes)
{
    uint8_t b[16] = {0};
    ledger_call call = {.serial = 0};
    memcpy(b, data, bytes < sizeof b ? bytes : sizeof b);
    call.serial = b[0], call.first = b[1], call.sequence = b[2], call.frees = b[3] & 1;
    call.what.hash = b[4], call.what.step = b[5], call.what.elements = b[6], call.what.n_spans = b[7];
    call.what.kind = (int8_t)b[8], call.what.from = (int8_t)b[9], call.what.to = (int8_t)b[10];
    call.what.reduction = (int8_t)b[11], call.what.root = (int8_t)b[12];
    memset(call.what.unit, b[13], sizeof call.what.unit);
    memset(call.what.label, b[14], sizeof call.what.label);
    say_framed(s, CALLS, &call, sizeof call);
}

static void play(const int *peers, int n, int world_size, const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at + 3 <= bytes;) {
        const uint8_t *record = data + at;
        int s = peers[record[1] % n];
        size_t room = bytes - at - 3, length = record[2] < room ? record[2] : room;
        at += 3;
        switch (record[0] % 4) {
        case 0:
            (void)send(s, data + at, length, MSG_NOSIGNAL | MSG_DONTWAIT);
            break;
        case 1:
            say_hello(s, record[2] % 8, world_size);
            length = 0;
            break;
        case 2:
            say_framed(s, record[0] / 4 % 8, data + at, (uint32_t)length);
            break;
        default:
            say_call(s, data + at, length);
        }
        at += length;
    }
}

static int n_failures;

static void failed(void *context, fsdp_status status, const char *text)
{
    (void)context;
    require(status != FSDP_OK && strcmp(fsdp_status_name(status), "unknown") != 0 && text[0]);
    n_failures++;
}

static void call_the_roll(const job *j, meeting *m, const int *peers, int n)
{
    watchdog_config config = {.job = *j, .timeout_seconds = 1000, .fail = failed};
    int32_t members[] = {0, 1, 2, 3};
    signature opening = {.kind = COMM_BARRIER, .hash = 1};
    watchdog *r;
    n_failures = 0;
    require(watchdog_open_over(&config, m, &r) == FSDP_OK);
    require(watchdog_group(r, 0, members, j->world_size) == FSDP_OK);
    require(watchdog_call(r, 0, 0, 0, &opening) == FSDP_OK);
    watchdog_round(r, 0);
    for (int i = 0; i < n; i++)
        shutdown(peers[i], SHUT_WR);
    watchdog_round(r, 0);
    watchdog_round(r, 0);
    require(n_failures <= 1);
    watchdog_close(r);
}

/* A listener with a name that the system chooses. */
static int open_listener(struct sockaddr_un *address, socklen_t *length)
{
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    *length = sizeof *address;
    require(s >= 0 && bind(s, (struct sockaddr *)address, sizeof address->sun_family) == 0 && listen(s, 8) == 0);
    require(getsockname(s, (struct sockaddr *)address, length) == 0);
    return s;
}

static void as_rank_0(job *j, const uint8_t *data, size_t bytes)
{
    struct sockaddr_un address;
    socklen_t length;
    char gift[MEET_PAYLOAD_BYTES] = "gift";
    int peers[MOST_VISITORS], listener = open_listener(&address, &length);
    meeting *m;
    for (int i = 0; i < MOST_VISITORS; i++) {
        peers[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        require(connect(peers[i], (struct sockaddr *)&address, length) == 0);
    }
    play(peers, MOST_VISITORS, j->world_size, data, bytes);
    if (meeting_open_at(j, listener, 0, gift, &m) == FSDP_OK)
        call_the_roll(j, m, peers, MOST_VISITORS);
    else
        require(strlen(fsdp_last_error()) > 0);
    for (int i = 0; i < MOST_VISITORS; i++)
        close(peers[i]);
}

/* Rank 0 knows the token here when the first byte says so. */
static void as_another(job *j, const uint8_t *data, size_t bytes)
{
    int ends[2];
    char gift[MEET_PAYLOAD_BYTES];
    meeting *m;
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    play(&ends[0], 1, j->world_size, data, bytes);
    shutdown(ends[0], SHUT_WR);
    if (meeting_open_at(j, ends[1], 10, gift, &m) == FSDP_OK)
        call_the_roll(j, m, &ends[0], 1);
    else
        require(strlen(fsdp_last_error()) > 0);
    close(ends[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    int before = lowest_free_descriptor();
    job j = job_single();
    strcpy(j.token, token);
    j.world_size = 2 + data[0] / 2 % 3;
    j.rank = data[0] & 1;
    if (j.rank == 0)
        as_rank_0(&j, data + 1, bytes - 1);
    else
        as_another(&j, data + 1, bytes - 1);
    require(lowest_free_descriptor() == before);
    return 0;
}
