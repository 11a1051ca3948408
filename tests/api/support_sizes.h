/* What holds for every struct with `size` across versions of the header, as tests over a table of such structs. */
#ifndef TESTS_API_SUPPORT_SIZES_H
#define TESTS_API_SUPPORT_SIZES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fsdp/status.h>

/* Calls a function that reads or fills `s`; what it should come to is the row's. */
typedef fsdp_status (*sized_call)(void *s);

typedef struct sized_row {
    const char *type, *init;
    const void *full; /* a struct that the call takes */
    size_t known;
    size_t older; /* size in an imagined older header: the fields behind it keep their defaults */
    sized_call call;
    const char *message; /* what the call fails with whatever the size, NULL: it succeeds */
    bool result;         /* filled by the library, not read */
} sized_row;

/* The state that each test below is given. */
typedef struct sized_rows {
    const sized_row *rows;
    size_t n;
} sized_rows;

/* A program built with an older header has a smaller struct. What lies behind it is neither read (it is garbage here)
 * nor written. */
void an_older_program_gets_defaults(void **state);
/* What a newer header added is at zero. */
void a_newer_program_works_while_it_uses_nothing_new(void **state);
void a_field_that_the_library_does_not_know_is_refused_by_name(void **state);
void a_struct_that_was_not_initialised_is_refused_by_name(void **state);
/* Reads include/fsdp: no struct with `size` is missing from the table. */
void every_struct_with_a_size_has_a_row(void **state);

#endif
