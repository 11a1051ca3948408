/* Flags described by a table: each row says how one flag is spelled, what it takes, what it means and which field of a
 * struct it fills. The same rows make parsing, help, the man page, completion and the reference page.
 *
 *     typedef struct { fsdp_flag_state state; int64_t layers; bool verbose; } options;
 *     static const fsdp_flag table[] = {
 *         {.name = "layers", .type = FSDP_FLAG_INT, .offset = offsetof(options, layers),
 *          .default_value = "2", .min = 1, .max = 1e9, .unit = "N", .help = "layers of the model"},
 *         {.name = "verbose", .type = FSDP_FLAG_SWITCH, .offset = offsetof(options, verbose), .help = "say more"},
 *         {.name = NULL},
 *     };
 *
 * Spelling: "--layers=2" and "--layers 2"; dashes and underscores are equal; a switch is "--x", "--x=1", "--x=true" or
 * "--no_x". The last of several wins. An unknown flag is an error that suggests the nearest name.
 *
 * The command's surface: it serves `fsdp` first and may change in any version, so build and run with one version of the
 * library. fsdp/fsdp.h, which keeps its promises across versions, does not include it. */
#ifndef FSDP_FLAGS_H
#define FSDP_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_flag_type {
    FSDP_FLAG_INT,    /* int64_t */
    FSDP_FLAG_FLOAT,  /* double */
    FSDP_FLAG_BYTES,  /* int64_t; "80GB", "512MiB", "4096" */
    FSDP_FLAG_TEXT,   /* const char *, NULL when nothing was given; with `choices`, the name of one */
    FSDP_FLAG_SWITCH, /* bool */
    FSDP_FLAG_CHOICE, /* int, one of `choices` */
    FSDP_FLAG_LIST,   /* fsdp_text_list; parts separated by commas */
} fsdp_flag_type;

typedef struct fsdp_text_list {
    const char *const *items;
    int n;
} fsdp_text_list;

/* One value of a choice. Names are compared without regard to case; dashes equal underscores. */
typedef struct fsdp_choice {
    const char *name; /* NULL ends the list */
    int value;
    const char *aliases; /* other names, separated by spaces, or NULL */
} fsdp_choice;

typedef struct fsdp_flag {
    const char *name;    /* without dashes, with underscores; NULL ends the table */
    const char *aliases; /* other names, separated by spaces, or NULL */
    const char *only;    /* the commands that take it, separated by spaces; NULL: every command of the table */
    const char *group;   /* heading in help; rows of a group stand together */
    fsdp_flag_type type;
    size_t offset;             /* of the field */
    const char *default_value; /* default, spelled as on the command line; NULL: 0, off, the first choice, no text */
    const char *bare; /* value of the flag when it stands alone; NULL: it needs a value (switches: always "true") */
    const char *unit; /* what stands for the value in help: "N", "FILE", "steps" */
    const char *help; /* one sentence, without a full stop */
    const fsdp_choice *choices; /* for choices and texts: all values; for numbers: words that stand for some values */
    double min, max;            /* bounds of numbers, inclusive; both 0: none */
} fsdp_flag;

/* Where the value of a row comes from. From FSDP_FROM_FILE on, the user set it. */
typedef enum fsdp_origin {
    FSDP_FROM_DEFAULT,
    FSDP_FROM_OTHERS, /* other settings imply it */
    FSDP_FROM_MODEL,  /* the model's config.json, its tokenizer or its data */
    FSDP_FROM_SIZE,   /* chosen by model size and free memory */
    FSDP_FROM_PRESET,
    FSDP_FROM_FILE,
    FSDP_FROM_COMMAND,
    FSDP_FROM_DEEPSPEED, /* DeepSpeed's file; flags and --config come first */
    FSDP_FROM_ACCELERATE,
} fsdp_origin;

enum { FSDP_FLAGS_MAX = 256 }; /* rows of one table */

/* Where each row's value comes from, and the texts that fields point at. Zeroed before first use. */
typedef struct fsdp_flag_state {
    uint8_t origin[FSDP_FLAGS_MAX]; /* fsdp_origin */
    void *storage;
} fsdp_flag_state;

/* Fills the fields that the table names with their defaults. `state` and `values` may belong to one struct. */
FSDP_API fsdp_status fsdp_flags_init(const fsdp_flag *table, void *values, fsdp_flag_state *state);
/* Frees the texts; fields that point at them are then dangling. */
FSDP_API void fsdp_flags_free(fsdp_flag_state *state);

/* Reads arguments. Words that are not flags, and everything after "--", go to rest[0 .. *n_rest-1] (room for argc),
 * borrowed from argv; with rest NULL such a word is an error. `command` is the command that asks, for rows with `only`.
 */
FSDP_API fsdp_status fsdp_flags_parse(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                                      int argc, char *const *argv, const char **rest, int *n_rest);
/* The same, but stops at the first word that is not a flag, or after "--"; *n_used arguments were read. */
FSDP_API fsdp_status fsdp_flags_parse_leading(const fsdp_flag *table, void *values, fsdp_flag_state *state,
                                              const char *command, int argc, char *const *argv, int *n_used);
/* The same, from a file: a JSON object, or lines of "key = value" with comments after #. Flags that are already set
 * keep their value. */
FSDP_API fsdp_status fsdp_flags_read(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *command,
                                     const char *path);
/* Gives one flag a value (NULL: as if it stood alone) and notes where it comes from. */
FSDP_API fsdp_status fsdp_flags_set(const fsdp_flag *table, void *values, fsdp_flag_state *state, const char *name,
                                    const char *text, fsdp_origin origin);

/* NULL when no row has this name or alias. */
FSDP_API const fsdp_flag *fsdp_flags_find(const fsdp_flag *table, const char *name);
/* Whether the user gave it, in a file or on the command line. */
FSDP_API bool fsdp_flags_given(const fsdp_flag *table, const fsdp_flag_state *state, const char *name);
/* Whether the row is for this command (NULL: for any). */
FSDP_API bool fsdp_flags_belongs(const fsdp_flag *flag, const char *command);
/* The value of a row as the command line would spell it; malloc'd, NULL for a text that is not set or no memory. */
FSDP_API char *fsdp_flags_value(const fsdp_flag *flag, const void *values);
/* All rows but those of one command only, as a JSON object that fsdp_flags_read takes; malloc'd. Left out are texts
 * that are not set, and empty lists that the user did not empty; the texts are UTF-8. */
FSDP_API fsdp_status fsdp_flags_json(const fsdp_flag *table, const void *values, const fsdp_flag_state *state,
                                     char **text);

/* The candidate nearest to `word`, NULL when none is near enough to be what was meant. */
FSDP_API const char *fsdp_nearest(const char *word, const char *const *candidates, int n);

#ifdef __cplusplus
}
#endif
#endif
