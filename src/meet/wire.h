/* What clients and the store say to each other: the kinds of messages, and bodies written and read field by field with
 * every length checked. Numbers have the byte order of the hosts, which is one in a job (the greeting shows it). */
#ifndef MEET_WIRE_H
#define MEET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC 0x3274656d70647366ull /* "fsdpmet2" */

enum { WIRE_NAME_BYTES = 128, WIRE_TEXT_BYTES = 1024, WIRE_VALUE_BYTES = 256 << 10 };

/* The store speaks first: GREETING. The client answers with HELLO, and is WELCOME or REFUSED. */
enum wire_kind {
    WIRE_NOTHING,  /* never sent: the store wants the connection ended */
    WIRE_GREETING, /* magic, nonce */
    WIRE_HELLO,    /* nonce, proof, job, circle, seat, seats, who */
    WIRE_WELCOME,  /* proof */
    WIRE_REFUSED,  /* why (enum wire_refusal), text */
    /* Requests; a client has one at a time, and each is answered by one ANSWER. */
    WIRE_SET,    /* name, value: no answer */
    WIRE_GET,    /* name, seconds: the value, once it was set */
    WIRE_ADD,    /* name, amount: the sum */
    WIRE_GATHER, /* name, seconds, value: everybody's values in the order of seats */
    WIRE_ANSWER, /* status; then what was asked for, or a text */
    /* Between those of a circle. */
    WIRE_POST,  /* from clients: to (seat, or -1: all others), except, kind, body; from the store: from, kind, body */
    WIRE_LEAVE, /* a goodbye */
    WIRE_GONE,  /* seat, whether it said goodbye: to seat 0 of others, to all of seat 0 */
    /* Between launchers and the store: rounds.h. */
    WIRE_JOIN,
    WIRE_FAIL,
    WIRE_DONE,
    WIRE_BEAT,
    WIRE_ROUND,
    WIRE_STOP,
    WIRE_FINISHED,
    WIRE_EXAMINE,
    /* Parts of snapshots: vault.h. Each is answered by one ANSWER. */
    WIRE_PART_WRITE,  /* part, id, file, offset, data */
    WIRE_PART_COMMIT, /* part, id */
    WIRE_PART_LIST,   /* part, id: number of files; name and bytes of each */
    WIRE_PART_READ,   /* part, id, file, offset: data */
    WIRE_KINDS,       /* one more than the last */
};

enum wire_refusal { WIRE_WRONG_JOB = 1, WIRE_WRONG_SECRET, WIRE_WRONG_SEAT, WIRE_FULL };

/* A body that is written; grows. */
typedef struct wire_body {
    char *data;
    size_t bytes, room;
    bool failed; /* no memory */
} wire_body;

void wire_put(wire_body *b, const void *data, size_t bytes);
void wire_put_u32(wire_body *b, uint32_t value);
void wire_put_i32(wire_body *b, int32_t value);
void wire_put_i64(wire_body *b, int64_t value);
void wire_put_f64(wire_body *b, double value);
void wire_put_blob(wire_body *b, const void *data, size_t bytes); /* length and data */
void wire_put_text(wire_body *b, const char *text);
void wire_free(wire_body *b); /* leaves it empty */

/* A body that is read. What is not there is 0 or "", and `broken` stays set. */
typedef struct wire_reader {
    const char *at;
    size_t left;
    bool broken;
} wire_reader;

wire_reader wire_read(const void *body, size_t bytes);
bool wire_get(wire_reader *r, void *out, size_t bytes);
uint32_t wire_get_u32(wire_reader *r);
int32_t wire_get_i32(wire_reader *r);
int64_t wire_get_i64(wire_reader *r);
double wire_get_f64(wire_reader *r);
const void *wire_get_blob(wire_reader *r, size_t *bytes, size_t most); /* borrowed; broken when longer than `most` */
void wire_get_text(wire_reader *r, char *text, size_t room);           /* broken when it does not fit, or holds a 0 */
bool wire_done(const wire_reader *r);                                  /* all was there, and nothing is left */

#endif
