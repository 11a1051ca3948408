/* Where a job meets: a host and a port, or, in a build that cannot prove a secret, a name among the Unix sockets of
 * this host, at which only processes of the same user are heard. */
#ifndef MEET_ENDPOINT_H
#define MEET_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

enum { ENDPOINT_HOST_BYTES = 256, ENDPOINT_TEXT_BYTES = ENDPOINT_HOST_BYTES + 16 };

typedef struct endpoint {
    char host[ENDPOINT_HOST_BYTES]; /* name or number; of a Unix socket: its name */
    int port;                       /* 0: one that is free; -1: a Unix socket */
} endpoint;

/* "host", "host:port", "[v6]:port", "unix:name". */
fsdp_status endpoint_parse(const char *text, int default_port, endpoint *out);
const char *endpoint_text(const endpoint *e, char text[ENDPOINT_TEXT_BYTES]);
bool endpoint_is_loopback(const endpoint *e); /* nobody from another host can come there */
/* A name that means the loopback here, and probably something else to other hosts. */
bool endpoint_is_misleading(const endpoint *e);

/* Listens at exactly this address, or, `anywhere`, at its port on all addresses of this host. e->port is filled in when
 * it was 0. FSDP_ERR_STATE: somebody listens there already; FSDP_ERR_INPUT: not an address of this host. */
fsdp_status endpoint_listen(endpoint *e, bool anywhere, int *socket);
/* One attempt, of at most `seconds`; -1: nobody is there. */
int endpoint_connect(const endpoint *e, double seconds);
/* Of a Unix socket: whether the process at its other end is our own user's. */
bool endpoint_is_own_user(int socket);
void endpoint_set_options(int socket); /* no delay; a peer that is gone without a word is noticed within a minute */
/* The address of this host from which `socket` was connected, as others see it. */
void endpoint_own_address(int socket, char *text, size_t bytes);

#endif
