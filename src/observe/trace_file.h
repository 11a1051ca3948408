/* One file with the traces of all ranks, in the trace event format of Chrome and Perfetto: a process per rank, a track
 * per row, arrows from a gather to the operation that first uses it. */
#ifndef OBSERVE_TRACE_FILE_H
#define OBSERVE_TRACE_FILE_H

#include "observe/trace.h"

typedef struct trace_file trace_file;

/* Appears under its name when it is closed. The caller closes *out. */
fsdp_status trace_file_create(const char *path, trace_file **out);
/* Events of a rank whose clock is `offset_ns` ahead of the file's. The first failure is kept for trace_file_close. */
void trace_file_add(trace_file *f, int rank, int64_t offset_ns, const trace_event *events, size_t n);
fsdp_status trace_file_close(trace_file *f); /* frees, also on failure; NULL is legal */
void trace_file_abort(trace_file *f);        /* leaves nothing; NULL is legal */

#endif
