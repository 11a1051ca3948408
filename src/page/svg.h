/* Pictures as SVG files of their own, for documents and slides: stacked areas or lines over x, with the colours of the
 * pages, light and dark. */
#ifndef PAGE_SVG_H
#define PAGE_SVG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <fsdp/status.h>

typedef struct svg_series {
    const char *name;
    const int64_t *values; /* (n of the picture); each holds from its x to the next */
    int color;             /* 0 to 11, see page.css */
} svg_series;

typedef struct svg_mark {
    double x;
    char name[96];
} svg_mark;

typedef struct svg_picture {
    const char *title, *about, *x_name;
    int n;
    const double *x;         /* (n), ascending */
    const svg_series *areas; /* stacked */
    int n_areas;
    const svg_series *outlines; /* lines over them */
    int n_outlines;
    int64_t limit; /* a line across; 0: none */
    const svg_mark *marks;
    int n_marks;
    char *(*format)(char *text, int64_t value); /* writes at most 40 bytes */
} svg_picture;

/* Pieces of pictures of other kinds: a sheet with the pages' style and a title, to be ended with </svg>; text on it;
 * text as XML takes it. */
enum { SVG_WIDTH = 960 };
void svg_begin(FILE *out, const char *title, const char *about, int height);
void svg_text(FILE *out, double x, double y, const char *class, const char *anchor, const char *text);
void svg_escape(FILE *out, const char *text);

/* The file appears complete or not at all. */
fsdp_status svg_write(const svg_picture *p, const char *path);

#endif
