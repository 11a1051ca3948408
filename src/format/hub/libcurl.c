/* Debian and its kin have libcurl under two names, by the TLS library it uses; either will do. */
#ifdef FSDP_WITH_CURL
#include "format/hub/libcurl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { OLDEST = 0x075500 }; /* 7.85: CURLOPT_PROTOCOLS_STR */

fsdp_status libcurl_open(curl_api *api)
{
    const char *missing = NULL;
    char why[256];
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        snprintf(why, sizeof why, "%s", reason != NULL ? reason : "no reason given");
        library = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
    }
    if (library == NULL)
        return error_set(FSDP_ERR_UNSUPPORTED, "--download needs libcurl (apt install libcurl4): %s", why);
#define FIND(name)                                                                                                     \
    {                                                                                                                  \
        void *symbol = dlsym(library, #name);                                                                          \
        memcpy(&api->name, &symbol, sizeof symbol);                                                                    \
        missing = symbol != NULL ? missing : #name;                                                                    \
    }
    CURL_FUNCTIONS(FIND)
#undef FIND
    if (missing != NULL)
        return error_set(FSDP_ERR_UNSUPPORTED, "libcurl is too old for --download (no %s); 7.85 or newer is needed",
                         missing);
    const curl_version_info_data *version = api->curl_version_info(CURLVERSION_NOW);
    if (version->version_num < OLDEST)
        return error_set(FSDP_ERR_UNSUPPORTED, "libcurl %s is too old for --download; 7.85 or newer is needed",
                         version->version);
    return FSDP_OK;
}
#else
typedef int libcurl_is_absent; /* ISO C forbids an empty translation unit */
#endif
