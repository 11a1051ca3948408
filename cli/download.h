/* Fetching with its progress on standard error: what `fsdp fetch` and --download of other commands share. */
#ifndef CLI_DOWNLOAD_H
#define CLI_DOWNLOAD_H

#include <fsdp/fetch.h>

#define DOWNLOAD_HELP "download what is given by hub name into the Hugging Face cache (uses HF_ENDPOINT and HF_TOKEN)"

/* fsdp_fetch as `command` shows it; sets the callbacks of `config`. */
fsdp_status download_shown(const char *command, fsdp_fetch_config *config, fsdp_fetch_result *result);
/* --download of one name; what is here will do. NULL is no name. */
fsdp_status download(const char *command, fsdp_fetch_kind kind, const char *name, const char *config_name);

#endif
