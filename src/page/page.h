/* Self-contained HTML pages: one style sheet, one kit of pictures (page.js), one view, and the data they show. A page
 * fetches nothing, and its data, which may come from strangers, cannot run: it is escaped, and the page's policy lets
 * only the embedded scripts run. */
#ifndef PAGE_PAGE_H
#define PAGE_PAGE_H

#include <stdbool.h>

#include <jansson.h>

#include <fsdp/status.h>

#include "base/embedded.h"

typedef struct page {
    const char *title;
    const char *language; /* "en", "ko" */
    const char *view;     /* the script that draws it: a file of src/page without its ending */
    const char *kit;      /* a script that views share, which runs before it; NULL: none */
    bool asks;            /* it may ask the server that it came from for more, and nobody else */
    const json_t *data;   /* what the view reads as page.data; borrowed */
} page;

/* malloc'd, ends with a NUL that *bytes does not count. */
fsdp_status page_text(const page *p, char **text, size_t *bytes);
/* The same in a file, which appears complete or not at all. */
fsdp_status page_write(const page *p, const char *path);

/* The style sheet of all pages, which pictures of their own carry too. */
const char *page_style(void);

/* Files of src/page, as the build embedded them; ends with an entry without a name. */
extern const embedded_file page_assets[];

#endif
