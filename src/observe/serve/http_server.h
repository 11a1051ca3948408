/* A small HTTP server on a thread of its own, for pages and numbers of a run: fixed paths, read-only. It holds few
 * connections, short requests and nobody's slowness: a client can keep others from being answered, never the run from
 * training. */
#ifndef OBSERVE_SERVE_HTTP_SERVER_H
#define OBSERVE_SERVE_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

enum { HTTP_CURSOR = 4, HTTP_STREAMS = 16 }; /* at most that many streams at a time */

typedef struct http_route {
    const char *path; /* the whole of it: "/metrics" */
    const char *content_type;
    /* On the server's thread: the answer (malloc'd), or NULL, for which the client is told 503. */
    char *(*answer)(void *context, size_t *bytes);
    void *context;
    /* A stream of server-sent events instead, for as long as the client stays: asked several times a second for what
     * this client is to be told next (malloc'd; NULL: nothing yet). `cursor` begins with zeros and is the route's.
     * `last`: the server closes, nothing is asked after this. */
    char *(*next)(void *context, int64_t cursor[HTTP_CURSOR], bool last, size_t *bytes);
    bool guarded; /* needs the token; without one, the client must have asked for this host by number or "localhost" */
} http_route;

typedef struct http_server http_server;

typedef struct http_config {
    const char *flag, *address; /* what errors blame: "--metrics_port"; where to listen */
    int port;                   /* 0: any that is free */
    const http_route *routes;   /* (n_routes), which outlive the server */
    int n_routes;
    /* Guarded routes are for those who know it: "?token=" in the path, or "Authorization: Bearer". Copied. NULL: there
     * is none. */
    const char *token;
} http_config;

/* The caller closes *out. FSDP_ERR_UNSUPPORTED in builds without libmicrohttpd. */
fsdp_status http_server_open(const http_config *config, http_server **out);
int http_server_port(const http_server *s);
/* Waits for answers that are being made, and shortly for streams to end; NULL is legal. */
void http_server_close(http_server *s);

#endif
