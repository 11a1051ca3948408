/* Connections that have not said yet who they are. All are heard at once, so that one that says nothing keeps nobody
 * waiting: ranks come late and in any order, and anybody can connect. Who belongs is left to the caller. */
#ifndef COMM_MEET_VISITORS_H
#define COMM_MEET_VISITORS_H

#include <stddef.h>

#include <fsdp/status.h>

typedef struct visitors visitors;

/* Takes in whoever connects to `listener` (borrowed; stream or packets) and hears `hello_bytes` from each. Of more than
 * `most` that say nothing, the one that has been silent longest is sent away. NULL: no memory. */
visitors *visitors_new(int listener, size_t hello_bytes, int most);
void visitors_free(visitors *v); /* closes those that are still here; NULL is legal */

/* The next visitor whose hello is complete: *socket is the caller's, and blocks. *socket is -1 when nobody more has
 * come by the deadline (clock_seconds; one that has passed takes what is there already). */
fsdp_status visitors_next(visitors *v, double deadline, void *hello, int *socket);

#endif
