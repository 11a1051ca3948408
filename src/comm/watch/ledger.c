/* Calls are compared as they come. A collective that some ranks of its group have called and some have not is open;
 * those of a group lie in a queue in order, so the ranks it still lacks are those that have not reached its number. */
#include "comm/watch/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct open_call {
    signature what;
    int rank;      /* who called it first */
    int n_arrived; /* ranks that have called it */
} open_call;

typedef struct book {
    struct book *next;
    int serial, n;
    int n_freed;       /* ranks that will not call any more */
    int32_t *members;  /* (n) ranks of the world */
    uint32_t *reached; /* (n) calls each has made */
    /* The open calls, numbered from `front`, in a ring of `room`. */
    open_call *calls;
    uint32_t front;
    int n_calls, room;
    double waits_since; /* the one at the front */
} book;

typedef struct rank_state {
    signature last;
    const book *at;    /* where it made its last call, and which */
    uint32_t sequence; /* of it */
    bool left;
} rank_state;

struct ledger {
    int world_size;
    rank_state *ranks; /* (world_size) */
    book *books;
};

ledger *ledger_new(int world_size)
{
    ledger *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->world_size = world_size;
    l->ranks = calloc((size_t)world_size, sizeof *l->ranks);
    if (!l->ranks) {
        free(l);
        return NULL;
    }
    return l;
}

static void book_free(book *b)
{
    if (!b)
        return;
    free(b->members);
    free(b->reached);
    free(b->calls);
    free(b);
}

void ledger_free(ledger *l)
{
    if (!l)
        return;
    while (l->books) {
        book *next = l->books->next;
        book_free(l->books);
        l->books = next;
    }
    free(l->ranks);
    free(l);
}

static book *find_book(const ledger *l, int serial, int first)
{
    book *b = l->books;
    while (b && (b->serial != serial || b->members[0] != first))
        b = b->next;
    return b;
}

static fsdp_status no_memory(void)
{
    return error_set(FSDP_ERR_MEMORY, "no memory to compare what the ranks call");
}

fsdp_status ledger_add_group(ledger *l, int serial, const int32_t *members, int n)
{
    for (int i = 0; i < n; i++)
        if (members[i] < 0 || members[i] >= l->world_size)
            return error_set(FSDP_ERR_PEER, "a group of %d ranks with rank %d, in a world of %d", n, (int)members[i],
                             l->world_size);
    if (n > l->world_size)
        return error_set(FSDP_ERR_PEER, "a group of %d ranks in a world of %d", n, l->world_size);
    if (n < 1 || find_book(l, serial, members[0]))
        return FSDP_OK;
    book *b = calloc(1, sizeof *b);
    if (b) {
        b->members = malloc((size_t)n * sizeof *b->members);
        b->reached = calloc((size_t)n, sizeof *b->reached);
    }
    if (!b || !b->members || !b->reached) {
        book_free(b);
        return no_memory();
    }
    b->serial = serial;
    b->n = n;
    memcpy(b->members, members, (size_t)n * sizeof *b->members);
    b->next = l->books;
    l->books = b;
    return FSDP_OK;
}

/* ---- open calls ---- */

static open_call *call_at(const book *b, uint32_t sequence)
{
    return &b->calls[sequence % (uint32_t)b->room];
}

static fsdp_status append(book *b, const signature *what, int rank, double now)
{
    if (b->n_calls == b->room) {
        int room = b->room ? 2 * b->room : 16; /* a power of two: places stay right when numbers wrap around */
        open_call *calls = malloc((size_t)room * sizeof *calls);
        if (!calls)
            return no_memory();
        for (int i = 0; i < b->n_calls; i++)
            calls[(b->front + (uint32_t)i) % (uint32_t)room] = *call_at(b, b->front + (uint32_t)i);
        free(b->calls);
        b->calls = calls;
        b->room = room;
    }
    if (b->n_calls == 0)
        b->waits_since = now;
    *call_at(b, b->front + (uint32_t)b->n_calls) = (open_call){.what = *what, .rank = rank, .n_arrived = 1};
    b->n_calls++;
    return FSDP_OK;
}

static void drop_complete(book *b, double now)
{
    while (b->n_calls > 0 && call_at(b, b->front)->n_arrived == b->n) {
        b->front++;
        b->n_calls--;
        b->waits_since = now;
    }
}

/* The lower rank is the one that the other is compared with, no matter which came first. */
static fsdp_status mismatch(const open_call *open, const signature *what, int rank)
{
    return rank > open->rank ? signature_mismatch(what, rank, &open->what, open->rank)
                             : signature_mismatch(&open->what, open->rank, what, rank);
}

static int member_of(const book *b, int rank)
{
    if (rank < b->n && b->members[rank] == rank)
        return rank; /* the world, mostly */
    int i = 0;
    while (i < b->n && b->members[i] != rank)
        i++;
    return i;
}

/* A rank that left and is lacking at the front will never come. */
static fsdp_status check_left(const ledger *l, const book *b)
{
    char name[192], place[256];
    for (int i = 0; i < b->n && b->n_calls > 0; i++) {
        if (!l->ranks[b->members[i]].left || b->reached[i] != b->front)
            continue;
        const open_call *open = call_at(b, b->front);
        return error_set(FSDP_ERR_PEER, "rank %d left, but rank %d waits for it in %s (step %lld): rank %d %s",
                         (int)b->members[i], open->rank, signature_text(&open->what, name, sizeof name),
                         (long long)open->what.step, (int)b->members[i],
                         ledger_place(l, b->members[i], place, sizeof place));
    }
    return FSDP_OK;
}

/* `b` goes when the last of its ranks has freed the group. */
static void free_by_one(ledger *l, book *b)
{
    if (++b->n_freed < b->n)
        return;
    for (book **link = &l->books; *link; link = &(*link)->next)
        if (*link == b) {
            *link = b->next;
            break;
        }
    for (int i = 0; i < b->n; i++)
        if (l->ranks[b->members[i]].at == b)
            l->ranks[b->members[i]].at = NULL;
    book_free(b);
}

int ledger_count(const ledger *l)
{
    int n = 0;
    for (const book *b = l->books; b; b = b->next)
        n++;
    return n;
}

fsdp_status ledger_add(ledger *l, int rank, const ledger_call *call, double now)
{
    book *b = find_book(l, call->serial, call->first);
    int member = b ? member_of(b, rank) : 0;
    if (!b || member == b->n || call->sequence != b->reached[member])
        return error_set(FSDP_ERR_PEER, "rank %d announced call %u of a group that it is not in, or not so far in",
                         rank, call->sequence);
    if (call->frees) {
        free_by_one(l, b);
        return FSDP_OK;
    }
    l->ranks[rank].last = call->what;
    l->ranks[rank].at = b;
    l->ranks[rank].sequence = call->sequence;
    b->reached[member]++;
    if (call->sequence == b->front + (uint32_t)b->n_calls) {
        FSDP_TRY(append(b, &call->what, rank, now));
    } else {
        open_call *open = call_at(b, call->sequence);
        if (open->what.hash != call->what.hash)
            return mismatch(open, &call->what, rank);
        open->n_arrived++;
    }
    drop_complete(b, now);
    return check_left(l, b);
}

fsdp_status ledger_leave(ledger *l, int rank)
{
    l->ranks[rank].left = true;
    for (book *b = l->books; b; b = b->next)
        FSDP_TRY(check_left(l, b));
    return FSDP_OK;
}

/* ---- who is missing ---- */

/* Ranks wait for ranks that wait for others: from a book on, the one at the end of the chain. */
static const book *follow(const ledger *l, const book *b)
{
    for (int hops = 0; hops < l->world_size; hops++) {
        int i = 0;
        while (i < b->n && b->reached[i] != b->front)
            i++;
        const rank_state *missing = i < b->n ? &l->ranks[b->members[i]] : NULL;
        bool waits = missing && missing->at && missing->at != b && missing->at->n_calls > 0 &&
                     missing->sequence - missing->at->front < (uint32_t)missing->at->n_calls;
        if (!waits)
            break;
        b = missing->at;
    }
    return b;
}

static fsdp_status name_missing(const ledger *l, const book *b, double timeout)
{
    const open_call *open = call_at(b, b->front);
    char name[192], place[256], list[600] = "";
    size_t used = 0;
    int n_missing = 0;
    for (int i = 0; i < b->n; i++) {
        if (b->reached[i] != b->front)
            continue;
        if (n_missing++ < 3 && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%srank %d did not come, it %s", used ? "; " : "",
                                     (int)b->members[i], ledger_place(l, b->members[i], place, sizeof place));
    }
    if (n_missing > 3 && used < sizeof list)
        snprintf(list + used, sizeof list - used, "; and %d more", n_missing - 3);
    return error_set(FSDP_ERR_TIMEOUT, "%s (step %lld) timed out after %g s: %s",
                     signature_text(&open->what, name, sizeof name), (long long)open->what.step, timeout, list);
}

fsdp_status ledger_check(ledger *l, double now, double timeout)
{
    const book *oldest = NULL;
    for (const book *b = l->books; b; b = b->next)
        if (b->n_calls > 0 && now - b->waits_since > timeout && (!oldest || b->waits_since < oldest->waits_since))
            oldest = b;
    return oldest ? name_missing(l, follow(l, oldest), timeout) : FSDP_OK;
}

const char *ledger_place(const ledger *l, int rank, char *text, size_t bytes)
{
    return signature_place(&l->ranks[rank].last, text, bytes);
}
