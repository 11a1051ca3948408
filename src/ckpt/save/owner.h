/* Who writes an unfinished save, and whether that process still lives. A save's temporary directory holds a file OWNER
 * that says so and that the owner keeps locked; the lock dies with the owner, however it dies. Where locks are not to
 * be relied on, because the file system is shared between hosts, the file is a lease: the owner touches it as it goes
 * on, and it lapses when it has not been touched for long. docs/checkpoint-format.md says what holds on which file
 * system. */
#ifndef CKPT_SAVE_OWNER_H
#define CKPT_SAVE_OWNER_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

#define OWNER_NAME "OWNER"

/* Seconds. What a dead save left is not worth a mistake: renewals are frequent, and the lease is long enough for clocks
 * that differ by half an hour and for a disk that takes a quarter of one to sync. */
enum { OWNER_LEASE = 3600, OWNER_RENEWAL = 10 };
/* A directory without the file was made this instant, or by an earlier version that wrote none. */
enum { OWNER_GRACE = 60 };

typedef struct save_owner save_owner;

/* Makes this process the owner of `folder`, a new directory. */
fsdp_status owner_take(const char *folder, save_owner **out);
/* To be called now and then while the save goes on; does something every OWNER_RENEWAL seconds. NULL is legal. */
void owner_renew(save_owner *o);
/* Removes the file from `folder`, whose name keeps others away now. */
void owner_remove(const char *folder);
/* Ends the ownership. The file stays where the directory is; NULL is legal. */
void owner_release(save_owner *o);

/* True when nobody writes the save in `folder` any more. `who` gets a few words on its owner. */
bool owner_is_gone(const char *folder, char *who, size_t room);

/* ---- The decision by itself, for tests ---- */

typedef struct owner_facts {
    bool named;        /* the file is there and says who */
    bool locked;       /* somebody has it locked now */
    bool locks_count;  /* the owner had locked it, on a file system of this host's alone */
    bool same_host;    /* its process would be visible from here */
    bool process_runs; /* and is: the same process, not another of its number */
    double age; /* seconds since the file, or without it the directory, was touched, by the file system's clock */
} owner_facts;

bool owner_facts_gone(const owner_facts *facts);

/* The file system is this host's alone, by the number that statfs gives its kind. What is not known counts as shared.
 */
bool owner_filesystem_is_local(long kind);

#endif
