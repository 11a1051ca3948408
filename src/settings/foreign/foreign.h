/* Files of other tools as settings. A table per tool says for each of its keys which flag it is, that it has no meaning
 * here (a line says so), or that it is refused because the result would be another. A key that no table has is refused
 * too: it may be a slip of the pen. Values of null and "auto" leave a setting to flags and defaults. */
#ifndef SETTINGS_FOREIGN_H
#define SETTINGS_FOREIGN_H

#include <jansson.h>

#include <fsdp/settings.h>

/* Read into the settings, below what flags and --config have set. `text` has a NUL after its `bytes` and is modified.
 */
fsdp_status deepspeed_read(fsdp_settings *settings, const char *command, const char *path, char *text, size_t bytes);
fsdp_status accelerate_read(fsdp_settings *settings, const char *command, const char *path, char *text, size_t bytes);

/* Reads the file that --deepspeed or --accelerate names, if there is one. */
fsdp_status foreign_read_files(fsdp_settings *settings, const char *command);

/* ---- For the readers of the tools ---- */

typedef fsdp_status (*foreign_reader)(fsdp_settings *settings, const char *command, const char *path, char *text,
                                      size_t bytes);
fsdp_status foreign_read_file(fsdp_settings *settings, const char *command, const char *path, foreign_reader read);

typedef struct foreign_file {
    fsdp_settings *settings;
    const char *command, *path;
    fsdp_origin origin;
} foreign_file;

typedef enum foreign_kind {
    FOREIGN_READ,    /* code looks at it, beside the table */
    FOREIGN_FLAG,    /* its value is that of `flag`; `values` may translate it: "theirs=ours ..." */
    FOREIGN_NOTE,    /* no meaning here; `why`. Said unless it is off or one of `values` */
    FOREIGN_MUST,    /* one of `values`, or refused: it changes the result; `why` is the remedy */
    FOREIGN_OFF,     /* a section that must not be enabled; `why` */
    FOREIGN_SECTION, /* an object with `rows` of its own */
} foreign_kind;

typedef struct foreign_row {
    const char *key;
    foreign_kind kind;
    const char *flag, *values, *why;
    const struct foreign_row *rows; /* end with a row without a key */
} foreign_row;

/* Goes through an object by its table. `where` stands before keys in messages: "zero_optimization." or "". */
fsdp_status foreign_walk(foreign_file *f, const char *where, const json_t *object, const foreign_row *rows);

/* Sets a flag that the user has not set, if the command has it. */
fsdp_status foreign_set(foreign_file *f, const char *flag, const char *text);
fsdp_status foreign_set_number(foreign_file *f, const char *flag, double value);
/* Whether flags or --config have set it: the file must leave it alone. */
bool foreign_taken(const foreign_file *f, const char *flag);

/* A line for the user about something that is read but does nothing. */
fsdp_status foreign_note(foreign_file *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* FSDP_ERR_INPUT with the file named. */
fsdp_status foreign_refuse(const foreign_file *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Values, which may be absent, null or "auto": then *given is false and *out stays. */
bool foreign_open(const json_t *value); /* absent, null or "auto" */
fsdp_status foreign_number(const foreign_file *f, const json_t *object, const char *key, double *out, bool *given);
fsdp_status foreign_count(const foreign_file *f, const json_t *object, const char *key, int64_t *out, bool *given);
fsdp_status foreign_switch(const foreign_file *f, const json_t *object, const char *key, bool *out, bool *given);
/* The text of a value, "" where it is left open; `room` holds it. A list or an object is refused. */
enum { FOREIGN_TEXT = 256 };
fsdp_status foreign_text(const foreign_file *f, const json_t *object, const char *key, char room[FOREIGN_TEXT]);

/* A device that state is offloaded to: cpu, none, or refused. */
fsdp_status foreign_take_offload(foreign_file *f, const char *where, const json_t *object, const char *key);

/* Ranks that the job will have: --world_size of `fsdp plan`, else the environment's; 0 where --world_size is auto. */
fsdp_status foreign_world_size(const foreign_file *f, int64_t *out);

#endif
