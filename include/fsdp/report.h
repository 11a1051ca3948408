/* Reports of run folders: what `fsdp report` does, and what every run leaves in its folder at the end.
 *
 *     const char *folders[] = {"runs/a", "runs/b"};
 *     fsdp_report_config what = FSDP_REPORT_CONFIG_INIT;
 *     char *text;
 *     what.folders = folders;
 *     what.n_folders = 2;
 *     what.html = "compared.html";
 *     FSDP_TRY(fsdp_report(&what, &text));
 *     puts(text);
 *     free(text);
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_REPORT_H
#define FSDP_REPORT_H

#include <stddef.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most runs on one page. */
enum { FSDP_REPORT_RUNS = 12 };

typedef struct fsdp_report_config {
    size_t size;
    const char *const *folders; /* (n_folders) run folders, at most FSDP_REPORT_RUNS */
    int n_folders;
    const char *html;  /* the page; NULL: report.html in the folder of a single run, else in the current folder */
    const char *trace; /* of the first run; NULL: the file of that name in its folder, where there is one */
    const char *svg;   /* a folder for each picture as an SVG file of its own; NULL: none */
} fsdp_report_config;

#define FSDP_REPORT_CONFIG_INIT                                                                                        \
    {                                                                                                                  \
        .size = sizeof(fsdp_report_config)                                                                             \
    }

/* Writes the page. `*text` is the verdict on each run in words and where the page is; malloc'd. A folder may be a
 * stranger's: nothing in it is run, links in it are not followed, and what is missing or torn is said in the text. A
 * folder that holds no run at all is an error. */
FSDP_API fsdp_status fsdp_report(const fsdp_report_config *config, char **text);

#ifdef __cplusplus
}
#endif
#endif
