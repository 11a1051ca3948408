/* A stack of laps per thread. Time is given to the lap on top whenever the top changes. */
#include "base/record/laps.h"

#include <string.h>

#include "base/clock.h"

enum { DEEPEST = 16 };

static const char *const names[LAP_COUNT] = {"data",           "forward",    "backward", "optimizer",
                                             "validation",     "save",       "other",    "all_gather",
                                             "reduce_scatter", "all_reduce", "exchange"};

typedef struct lap_stack {
    bool measured;
    int depth; /* may pass DEEPEST: what lies deeper belongs to the lap there */
    uint8_t open[DEEPEST];
    int64_t since;
    int64_t sums[LAP_COUNT];
    laps_follower follower; /* NULL: nobody follows */
    void *context;
    int64_t before[LAP_COUNT]; /* sums when it began to */
} lap_stack;

static _Thread_local lap_stack own;

const char *lap_name(lap which)
{
    return names[which];
}

static lap lap_of(bool wait, const char *name)
{
    for (int i = wait ? LAP_ALL_GATHER : 0; i < (wait ? LAP_EXCHANGE : LAP_OTHER); i++)
        if (strcmp(names[i], name) == 0)
            return (lap)i;
    return wait ? LAP_EXCHANGE : strcmp(name, "checkpoint") == 0 ? LAP_SAVE : LAP_OTHER;
}

static lap open_lap(void)
{
    int top = own.depth < DEEPEST ? own.depth : DEEPEST;
    return top ? (lap)own.open[top - 1] : LAP_OTHER;
}

static void give_time(int64_t now)
{
    own.sums[open_lap()] += now - own.since;
    own.since = now;
}

void laps_hear(bool wait, bool begins, const char *name, int64_t now)
{
    if (!own.measured)
        return;
    give_time(now);
    if (!begins) {
        own.depth -= own.depth > 0;
    } else {
        if (own.depth < DEEPEST)
            own.open[own.depth] = (uint8_t)lap_of(wait, name);
        own.depth++;
    }
    if (own.follower)
        own.follower(own.context, open_lap());
}

void laps_begin(void)
{
    own = (lap_stack){.measured = true, .since = clock_nanoseconds()};
}

void laps_end(void)
{
    own.measured = false;
}

void laps_take(int64_t nanoseconds[LAP_COUNT])
{
    if (own.measured)
        give_time(clock_nanoseconds());
    memcpy(nanoseconds, own.sums, sizeof own.sums);
    memset(own.sums, 0, sizeof own.sums);
}

bool laps_follow(laps_follower follower, void *context)
{
    if (!own.measured || own.follower)
        return false;
    give_time(clock_nanoseconds());
    memcpy(own.before, own.sums, sizeof own.sums);
    own.follower = follower;
    own.context = context;
    follower(context, open_lap());
    return true;
}

void laps_unfollow(const void *context)
{
    if (own.context == context)
        own.follower = NULL;
}

/* Two clocks never agree to the nanosecond: what was measured is cut where it is longer than the time that passed. */
void laps_settle(const int64_t nanoseconds[LAP_COUNT])
{
    int64_t left = 0;
    own.follower = NULL;
    if (!own.measured)
        return;
    give_time(clock_nanoseconds());
    for (int i = 0; i < LAP_COUNT; i++)
        left += own.sums[i] - own.before[i];
    memcpy(own.sums, own.before, sizeof own.sums);
    for (int i = 0; i < LAP_COUNT; i++) {
        int64_t given = nanoseconds[i] < left ? nanoseconds[i] : left;
        own.sums[i] += given;
        left -= given;
    }
    own.sums[LAP_OTHER] += left;
}
