/* Text from files and peers, made fit for a terminal and a log. A name may hold anything: escape sequences that move
 * the cursor, a newline that forges a line of ours, marks that reverse what is read. error_set and log_write pass whole
 * messages through here; code that prints names in another way does so too. */
#ifndef BASE_TEXT_PRINTABLE_H
#define BASE_TEXT_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Copies `text` into `out` (room bytes, always terminated), with control characters, bytes that are not UTF-8, line
 * separators and marks of text direction written as \xNN or \u{NNNN}. `lines`: newlines and tabs stay. A backslash
 * stays itself, so text that went through here comes out unchanged. Returns the length that all of it has, as snprintf
 * does; what does not fit is cut between characters. `out` does not overlap `text`. */
size_t printable(const char *text, bool lines, char *out, size_t room);

/* The same; malloc'd, NULL when out of memory. */
char *printable_copy(const char *text, bool lines);

#endif
