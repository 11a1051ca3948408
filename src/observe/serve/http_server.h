/* A small HTTP server on a thread of its own, for pages and numbers of a run: fixed paths, read-only. It holds few
 * connections, short requests and nobody's slowness: a client can keep others from being answered, never the run from
 * training. */
#ifndef OBSERVE_SERVE_HTTP_SERVER_H
#define OBSERVE_SERVE_HTTP_SERVER_H

#include <stddef.h>

#include <fsdp/status.h>

typedef struct http_route {
    const char *path; /* the whole of it: "/metrics" */
    const char *content_type;
    /* On the server's thread: the answer (malloc'd), or NULL, for which the client is told 503. */
    char *(*answer)(void *context, size_t *bytes);
    void *context;
} http_route;

typedef struct http_server http_server;

/* `flag` is what errors blame: "--metrics_port". Port 0: any that is free. The routes outlive the server; the caller
 * closes *out. FSDP_ERR_UNSUPPORTED in builds without libmicrohttpd. */
fsdp_status http_server_open(const char *flag, const char *address, int port, const http_route *routes, int n_routes,
                             http_server **out);
int http_server_port(const http_server *s);
void http_server_close(http_server *s); /* waits for answers that are being made; NULL is legal */

#endif
