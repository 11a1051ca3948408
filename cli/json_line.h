/* Just enough JSON for records of a line: one text or one list of numbers out of an object, and texts written safely.
 */
#ifndef CLI_JSON_LINE_H
#define CLI_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Memory that is used again for every line. */
typedef struct json_text {
    char *bytes; /* UTF-8, not ended by a NUL */
    size_t n, capacity;
} json_text;

typedef struct json_numbers {
    int32_t *values;
    size_t n, capacity;
} json_numbers;

/* The text of field `key` of the object in `line`, or the text that the line is. False when it is neither, or
 * malformed. */
bool json_line_text(const char *line, const char *key, json_text *out);
/* The same for a list of whole numbers. */
bool json_line_numbers(const char *line, const char *key, json_numbers *out);

/* With quotes and escapes. */
void json_line_print(FILE *out, const char *text, size_t n);

#endif
