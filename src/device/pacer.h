/* A thread that answers a device in time. The device writes into a word of host memory how long it wants to wait, goes
 * on with something else, then waits until the word is 0; the pacer sets it to 0 when the time has passed. So a stream
 * is held up without a kernel, which would have to wait for room on the device. Each waiter has a word of its own. */
#ifndef DEVICE_PACER_H
#define DEVICE_PACER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct pacer pacer;

/* Waiters at a time; words lie a cache line apart. */
enum { PACER_WAITERS = 64, PACER_STRIDE = 64 };
static const size_t pacer_bytes = (size_t)PACER_WAITERS * PACER_STRIDE;

/* The longest that one request can ask for. */
#define PACER_MAX_SECONDS 1.0

/* memory: pacer_bytes that are 0, which the device can write and which outlive the pacer. */
fsdp_status pacer_open(void *memory, pacer **out);

/* When no request is under way. */
void pacer_close(pacer *p);

/* A waiter's word; NULL: all are taken. Given back when it is 0 and nothing enqueued writes it any more. */
_Atomic uint32_t *pacer_take(pacer *p);
void pacer_give_back(pacer *p, _Atomic uint32_t *word);

/* n requests more will come; said before they are enqueued. The thread looks for requests only as long as some are
 * left. */
void pacer_expect(pacer *p, int n);

/* What the device writes: answer me `seconds` from now, or, where it follows a request, from when that one was due. */
uint32_t pacer_request(double seconds, bool follows);

#endif
