/* FSDP told step by step: a small model is really trained for two steps, and what its ranks did is told from their own
 * events.
 *
 *     fsdp_explain_config what = FSDP_EXPLAIN_CONFIG_INIT;
 *     char *text;
 *     FSDP_TRY(fsdp_explain(&what, &text));
 *     puts(text);
 *     free(text);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_EXPLAIN_H
#define FSDP_EXPLAIN_H

#include <fsdp/shard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most ranks that fsdp_explain starts, and a value of `strategy`: every one that applies. */
enum { FSDP_EXPLAIN_RANKS = 8, FSDP_EXPLAIN_ALL = -1 };

typedef struct fsdp_explain_config {
    size_t size;
    int ranks;            /* processes to start on this host, 2 to FSDP_EXPLAIN_RANKS */
    int strategy;         /* an fsdp_strategy, or FSDP_EXPLAIN_ALL */
    const char *language; /* "en", "ko" */
    const char *html;     /* also write a page that plays it; NULL: none */
} fsdp_explain_config;

#define FSDP_EXPLAIN_CONFIG_INIT                                                                                       \
    {                                                                                                                  \
        .size = sizeof(fsdp_explain_config), .ranks = 2, .strategy = FSDP_FULL, .language = "en"                       \
    }

/* `*text` is the tale; malloc'd. Starts processes of its own and waits for them. Call it before this process computes
 * anything: it forks. */
FSDP_API fsdp_status fsdp_explain(const fsdp_explain_config *config, char **text);

#ifdef __cplusplus
}
#endif
#endif
