/* Clocks, and the way of events to rank 0. */
#include "train/trace_gather.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "observe/trace_file.h"

enum { CLOCK_ROUNDS = 24, CHUNK_EVENTS = 256 };

/* What a rank knows of its clock in one round: before it gave its word, and when it had all words of the last round. */
typedef struct reading {
    int64_t before, after;
} reading;

/* Nobody has all words before everybody has given one. So in each round a_j, when rank j gave its word, is no later
 * than b_0, when rank 0 had all, and a_0 no later than b_j: the offset of j lies between a_j - b_0 and b_j - a_0. The
 * rounds together leave an interval as narrow as the fastest exchange; its middle is taken. */
static void narrow(const reading *now, int n, const int64_t *given, int64_t *low, int64_t *high)
{
    for (int rank = 0; rank < n; rank++) {
        int64_t least = given[rank] - now[0].after, most = now[rank].after - given[0];
        low[rank] = least > low[rank] ? least : low[rank];
        high[rank] = most < high[rank] ? most : high[rank];
    }
}

/* How far ahead of rank 0's each rank's clock is (n). Where the clocks may be the same, 0: ranks of one host share one.
 */
static fsdp_status clocks_compare(comm_group *world, int64_t *offsets_ns)
{
    int n = comm_group_size(world);
    reading mine = {0}, *all = calloc((size_t)n, sizeof *all);
    int64_t *room = calloc(3 * (size_t)n, sizeof *room), *given = room, *low = room + n, *high = room + 2 * (size_t)n;
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    fsdp_status status = FSDP_OK;
    if (!all || !room || !bytes)
        status = error_set(FSDP_ERR_MEMORY, "comparing clocks of %d ranks: out of host memory", n);
    for (int rank = 0; status == FSDP_OK && rank < n; rank++)
        low[rank] = INT64_MIN, high[rank] = INT64_MAX;
    for (int round = 0; status == FSDP_OK && round <= CLOCK_ROUNDS; round++) {
        mine.before = clock_nanoseconds();
        status = comm_exchange(world, "clocks", &mine, sizeof mine, sizeof mine, all, bytes);
        mine.after = clock_nanoseconds();
        if (status == FSDP_OK && round > 0)
            narrow(all, n, given, low, high);
        for (int rank = 0; status == FSDP_OK && rank < n; rank++)
            given[rank] = all[rank].before;
    }
    for (int rank = 0; status == FSDP_OK && rank < n; rank++)
        offsets_ns[rank] = low[rank] <= 0 && high[rank] >= 0 ? 0 : low[rank] + (high[rank] - low[rank]) / 2;
    free(all);
    free(room);
    free(bytes);
    return status;
}

/* A round for each chunk, until no rank has one. */
static fsdp_status send_events(comm_group *world, trace *t, const int64_t *offsets, trace_file *f)
{
    size_t n = (size_t)comm_group_size(world), most = CHUNK_EVENTS * sizeof(trace_event), at = 0, sent;
    trace_event *mine = malloc(most), *all = malloc(n * most);
    size_t *bytes = calloc(n, sizeof *bytes);
    fsdp_status status = FSDP_OK;
    if (!mine || !all || !bytes)
        status = error_set(FSDP_ERR_MEMORY, "gathering a trace: out of host memory");
    do {
        sent = 0;
        if (status != FSDP_OK)
            break;
        size_t count = trace_take(t, &at, mine, CHUNK_EVENTS);
        status = comm_exchange(world, "trace", mine, count * sizeof *mine, most, all, bytes);
        for (size_t rank = 0; status == FSDP_OK && rank < n; rank++) {
            sent += bytes[rank];
            if (f)
                trace_file_add(f, (int)rank, offsets[rank], all + rank * CHUNK_EVENTS, bytes[rank] / sizeof *all);
        }
    } while (sent > 0);
    free(mine);
    free(all);
    free(bytes);
    return status;
}

fsdp_status trace_gather(comm_group *world, trace *t, const char *path)
{
    int64_t *offsets = calloc((size_t)comm_group_size(world), sizeof *offsets);
    trace_file *f = NULL;
    if (!offsets)
        return error_set(FSDP_ERR_MEMORY, "gathering a trace: out of host memory");
    fsdp_status status = clocks_compare(world, offsets), opened = FSDP_OK;
    char message[1024] = "";
    if (status == FSDP_OK && comm_group_rank(world) == 0)
        opened = trace_file_create(path, &f);
    if (opened != FSDP_OK) /* said when the others have sent what they have */
        strncpy(message, fsdp_last_error(), sizeof message - 1);
    if (status == FSDP_OK)
        status = send_events(world, t, offsets, f);
    free(offsets);
    if (status != FSDP_OK || opened != FSDP_OK) {
        trace_file_abort(f);
        return status != FSDP_OK ? status : error_set(opened, "%s", message);
    }
    return trace_file_close(f);
}
