/* A client for the server of a run (observe/serve/http_server.h): one request, one answer, in plain HTTP. */
#ifndef REPORT_LIVE_SERVER_ASK_H
#define REPORT_LIVE_SERVER_ASK_H

#include <stddef.h>

#include <fsdp/status.h>

#include "meet/endpoint.h"

/* What `path` has, of at most `most` bytes, within `seconds`; `token` may be "". *body is malloc'd and ends with a NUL
 * that *bytes does not count. FSDP_ERR_IO: nobody is there or answers; FSDP_ERR_INPUT: they say no. */
fsdp_status server_ask(const endpoint *server, const char *path, const char *token, size_t most, double seconds,
                       char **body, size_t *bytes);

#endif
