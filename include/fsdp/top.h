/* A run as a page of text: what `fsdp top` shows.
 *
 *     fsdp_top_config what = FSDP_TOP_CONFIG_INIT;
 *     char *text;
 *     what.target = "fsdp_runs/latest";
 *     FSDP_TRY(fsdp_top(&what, &text));
 *     puts(text);
 *     free(text);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_TOP_H
#define FSDP_TOP_H

#include <stddef.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_top_config {
    size_t size;
    const char *target; /* a run's folder, HOST:PORT of its --dashboard, or the address of its page; NULL: the newest */
    const char *token;  /* of the page; NULL: the one in the address, or FSDP_DASHBOARD_TOKEN */
    int columns, rows;  /* of the terminal: longer lines and further rows are cut; 0: none is */
} fsdp_top_config;

#define FSDP_TOP_CONFIG_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(fsdp_top_config)                                                                                \
    }

/* `*text` is the run as it is now, without escape sequences, whatever its names hold; malloc'd. A folder is asked
 * through its run's page where it has one, else read. */
FSDP_API fsdp_status fsdp_top(const fsdp_top_config *config, char **text);

#ifdef __cplusplus
}
#endif
#endif
