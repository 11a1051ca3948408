/* Connections that have not yet said who they are. All are heard at once, so that a silent one does not hold up the
 * others: ranks come late and in any order, and anyone can connect. The caller decides who belongs. */
#ifndef COMM_MEET_VISITORS_H
#define COMM_MEET_VISITORS_H

#include <stddef.h>

#include <fsdp/status.h>

typedef struct visitors visitors;

/* Accepts connections to `listener` (borrowed; stream or packets) and reads `hello_bytes` from each. When more than
 * `most` are silent, the one that has been silent longest is closed. NULL: no memory. */
visitors *visitors_new(int listener, size_t hello_bytes, int most);
void visitors_free(visitors *v); /* closes those that are still here; NULL is legal */

/* The next visitor whose hello is complete: *socket is the caller's, and blocks. *socket is -1 when no other has come
 * by the deadline (clock_seconds; one that has passed takes what is there already). */
fsdp_status visitors_next(visitors *v, double deadline, void *hello, int *socket);

#endif
