/* Any messages of any kind to the store, from launchers and ranks that come, speak and go in any order: nothing
 * crashes, hangs or grows past its bounds, and every answer is one that a client can read. Built with clang
 * -fsanitize=fuzzer it searches; otherwise it replays tests/fuzz/corpus/rendezvous.
 *
 * An input is records of three bytes (what and who, kind, how much) with their data. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "meet/line.h"
#include "meet/rounds.h"
#include "meet/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { GUESTS = 6, LAUNCHERS = 2, SEATS = 3 };

static void require(int condition)
{
    if (!condition)
        abort();
}

/* What a client would make of it. */
static void check_message(void *context, store_guest *g, uint32_t kind, const void *body, size_t bytes)
{
    wire_reader r = wire_read(body, bytes);
    round_place place;
    round_stop stop;
    (void)context;
    require(g->link != NULL && bytes <= LINE_BODY_BYTES);
    if (kind == WIRE_ROUND)
        require(round_place_get(&r, &place) && place.node >= 0 && place.node < place.n_nodes && place.world_size >= 1);
    else if (kind == WIRE_STOP)
        require(round_stop_get(&r, &stop));
    else
        require(kind == WIRE_ANSWER || kind == WIRE_POST || kind == WIRE_GONE || kind == WIRE_FINISHED ||
                kind == WIRE_EXAMINE || ((kind == WIRE_BEAT || kind == WIRE_NOTHING) && bytes == 0));
}

/* What comes from a store is read by launchers. */
static void read_as_launcher(const uint8_t *data, size_t bytes)
{
    round_join join;
    round_place place;
    round_stop stop;
    round_failure failure;
    wire_reader r[] = {wire_read(data, bytes), wire_read(data, bytes), wire_read(data, bytes), wire_read(data, bytes)};
    if (round_join_get(&r[0], &join))
        require(memchr(join.host, 0, sizeof join.host) && memchr(join.address, 0, sizeof join.address));
    if (round_place_get(&r[1], &place))
        require(memchr(place.master_address, 0, sizeof place.master_address) != NULL);
    if (round_stop_get(&r[2], &stop))
        require(memchr(stop.reason, 0, sizeof stop.reason) != NULL);
    if (round_failure_get(&r[3], &failure))
        require(memchr(failure.reason, 0, sizeof failure.reason) != NULL);
}

/* The first LAUNCHERS are launchers, the others ranks at the seat that a byte says. */
static store_guest *come(store *s, int who, uint8_t seat, int *link)
{
    store_introduction introduction = {
        .circle = "", .seat = seat % (SEATS + 1), .seats = seat == 255 ? SEATS + 1 : SEATS, .who = "somebody"};
    store_guest *g = NULL;
    if (who >= LAUNCHERS)
        strcpy(introduction.circle, seat / 4 % 2 ? "ranks.0" : "ranks.1");
    return store_admit(s, &introduction, link, &g) == FSDP_OK ? g : NULL;
}

/* A join whose numbers make sense, so that rounds begin. */
static bool join(store *s, store_guest *g, uint8_t byte, double now)
{
    round_join j = {.node_rank = byte % 4 - 1,
                    .n_ranks = 1 + byte / 4 % 3,
                    .min_nodes = 1,
                    .max_nodes = 2,
                    .last_round = -1,
                    .launcher = byte / 16 % 3};
    wire_body body = {0};
    strcpy(j.host, "host");
    strcpy(j.address, "address");
    round_join_put(&body, &j);
    bool understood = store_hear(s, g, WIRE_JOIN, body.data, body.bytes, now);
    wire_free(&body);
    return understood;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    rounds_policy policy = {.min_nodes = 1,
                            .max_nodes = 2,
                            .last_call_seconds = 1,
                            .join_timeout_seconds = 50,
                            .max_restarts = 3,
                            .watchdog_seconds = 5};
    store_guest *guests[GUESTS] = {NULL};
    int links[GUESTS];
    double now = 1;
    store *s = store_new(check_message, NULL, &policy);
    require(s != NULL);
    for (size_t at = 0; at + 3 <= bytes; now += 0.25) {
        int who = data[at] % GUESTS, what = data[at] / GUESTS % 8;
        uint8_t kind = data[at + 1];
        size_t left = bytes - at - 3, length = data[at + 2] < left ? data[at + 2] : left;
        bool understood = true;
        at += 3;
        read_as_launcher(data + at, length);
        if (!guests[who]) {
            guests[who] = come(s, who, kind, &links[who]);
            continue;
        }
        if (what == 0) {
            store_lose(s, guests[who], kind % 2, now);
            guests[who] = NULL;
            continue;
        }
        if (what == 1)
            store_tick(s, now += kind);
        else if (what == 2 && who < LAUNCHERS)
            understood = join(s, guests[who], kind, now);
        else
            understood = store_hear(s, guests[who], kind % (WIRE_KINDS + 2), data + at, length, now);
        at += length;
        if (!understood) {
            store_lose(s, guests[who], false, now);
            guests[who] = NULL;
        }
    }
    int n = 0;
    for (int i = 0; i < GUESTS; i++)
        n += guests[i] != NULL;
    require(store_count(s) == n);
    store_free(s);
    return 0;
}
