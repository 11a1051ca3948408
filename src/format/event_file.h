/* TensorBoard event files: scalars and texts over steps, in a file that TensorBoard opens while it grows. Every record
 * is whole or, after a crash, the torn last one, which readers pass over. What to log and when is the caller's. */
#ifndef FORMAT_EVENT_FILE_H
#define FORMAT_EVENT_FILE_H

#include <stdint.h>

#include <fsdp/status.h>

typedef struct event_file event_file;

/* Makes the folder where needed, and in it a new file "events.out.tfevents.<time>.<host>.<pid>.<number>". The caller
 * closes *out. One thread at a time. */
fsdp_status event_file_open(const char *folder, event_file **out);
/* Flushes, closes and frees, also on failure; NULL is legal. */
fsdp_status event_file_close(event_file *file);

/* A session begins with `step`: TensorBoard forgets what earlier files of the folder have from that step on. */
fsdp_status event_file_session(event_file *file, int64_t step);
/* `wall_time` is seconds since 1970. Values that are not finite are kept as they are: TensorBoard shows them. */
fsdp_status event_file_scalar(event_file *file, const char *tag, int64_t step, double wall_time, double value);
/* Markdown, shown under "Text"; the time is now. */
fsdp_status event_file_text(event_file *file, const char *tag, int64_t step, const char *text);

/* Everything written so far becomes visible to readers. */
fsdp_status event_file_flush(event_file *file);

#endif
