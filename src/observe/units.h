/* Numbers as people read them. All write into `text` and return it. */
#ifndef OBSERVE_UNITS_H
#define OBSERVE_UNITS_H

#include <stddef.h>
#include <stdint.h>

enum { UNITS_TEXT = 40 }; /* room enough for each of these */

char *units_bytes(char *text, int64_t bytes);     /* "512 B", "1.50 GiB" */
char *units_count(char *text, double count);      /* "950", "12.3k", "1.24B" */
char *units_duration(char *text, double seconds); /* "0.42 s", "42 s", "3:05", "1:02:03", "2 d 3:00:00" */
/* The shortest form that reads back as the same double; "null" when it is not finite. */
char *units_json(char *text, double value);

#endif
