/* HTTP requests of the hub: retried where that may help, redirected by hand so that the token stays with its host. */
#ifndef FORMAT_HUB_HTTP_H
#define FORMAT_HUB_HTTP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct http http;

/* `endpoint` is the host that gets `token` (NULL: none); both are copied. */
fsdp_status http_open(const char *endpoint, const char *token, http **out);
void http_close(http *h); /* NULL is legal */

/* The body of a small answer, with a NUL after it; malloc'd. `timeout` is what may pass without a byte, in seconds. */
fsdp_status http_get(http *h, const char *url, double timeout, char **body, size_t *bytes);

/* From now on `progress` hears of every part that http_download keeps: the bytes that its file has then. */
void http_on_progress(http *h, void (*progress)(void *context, int64_t bytes), void *context);

/* While *stop is true, whatever is under way ends within a second or so, with FSDP_ERR_STATE. Borrowed. */
void http_stop_when(http *h, const atomic_bool *stop);

/* Into the open file, from its present length on; `bytes` is the length it must have in the end. */
fsdp_status http_download(http *h, const char *url, double timeout, int fd, const char *path, int64_t bytes);

#endif
