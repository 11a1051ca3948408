/* libcurl, opened when something is to be downloaded: linked, it and its two dozen dependencies would be loaded by
 * every command and needed by every installation. */
#ifndef FORMAT_HUB_LIBCURL_H
#define FORMAT_HUB_LIBCURL_H

#define CURL_DISABLE_TYPECHECK /* its macros name the functions themselves, which are not linked */
#include <curl/curl.h>

#include <fsdp/status.h>

#define CURL_FUNCTIONS(X)                                                                                              \
    X(curl_global_init)                                                                                                \
    X(curl_version_info)                                                                                               \
    X(curl_easy_init)                                                                                                  \
    X(curl_easy_reset)                                                                                                 \
    X(curl_easy_setopt)                                                                                                \
    X(curl_easy_perform)                                                                                               \
    X(curl_easy_strerror)                                                                                              \
    X(curl_easy_cleanup)                                                                                               \
    X(curl_slist_append)                                                                                               \
    X(curl_slist_free_all)                                                                                             \
    X(curl_url)                                                                                                        \
    X(curl_url_set)                                                                                                    \
    X(curl_url_get)                                                                                                    \
    X(curl_url_cleanup)                                                                                                \
    X(curl_free)

#define CURL_FUNCTION(name) __typeof__(&name) name;
typedef struct curl_api {
    CURL_FUNCTIONS(CURL_FUNCTION)
} curl_api;
#undef CURL_FUNCTION

/* Finds the functions. The library stays open. */
fsdp_status libcurl_open(curl_api *api);

#endif
