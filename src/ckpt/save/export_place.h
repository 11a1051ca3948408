/* Where an export goes. A folder that we exported into is marked by a file that lists what we wrote, and only that is
 * ever replaced: whatever else lies there is the user's. */
#ifndef CKPT_SAVE_EXPORT_PLACE_H
#define CKPT_SAVE_EXPORT_PLACE_H

#include <stdbool.h>

#include <fsdp/status.h>

#define EXPORT_MARK_NAME ".fsdp-export.json"

/* FSDP_OK when an export may go to `folder`: it is not there, or empty, or holds an earlier export, as it was written.
 * Otherwise FSDP_ERR_INPUT, saying what is in the way. Changes nothing. */
fsdp_status export_place_check(const char *folder);

/* Removes what exports to `folder` left beside it, under the names `folder`.tmp-..., when they were killed. What is
 * written to now stays, and what holds no word of its owner: that may be the user's. */
void export_place_sweep(const char *folder);

/* Marks `folder`, which holds an export and, until it is put in its place, the file OWNER. */
fsdp_status export_place_mark(const char *folder);

/* Puts the marked folder `temporary` at `final`, in one system call where the file system can. An earlier export there
 * gives way; what else was there is moved over into the new folder. *placed: `temporary` is at `final` now, and what
 * has its name is not to be removed. */
fsdp_status export_place_take(const char *temporary, const char *final, const char *id, bool *placed);

#endif
