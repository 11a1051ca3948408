/* Where the output of each rank goes: shown, into files of the log folder, or both, as torchrun's --redirects, --tee
 * and
 * --local-ranks-filter say. */
#ifndef LAUNCH_OUTPUTS_H
#define LAUNCH_OUTPUTS_H

#include <fsdp/launch.h>

#include "launch/lines.h"

enum output_stream { OUTPUT_OUT = 1, OUTPUT_ERR = 2 }; /* as torchrun counts them */

typedef struct output_choice {
    bool shown[2]; /* of stdout, stderr */
    bool kept[2];  /* in a file */
} output_choice;

typedef struct outputs {
    output_choice *ranks; /* (n) by local rank */
    int n;
    const char *log_dir;
} outputs;

fsdp_status outputs_read(const fsdp_launch_config *config, outputs *out);
void outputs_free(outputs *o); /* legal on a zeroed one */
/* Fills in the macros of a template (NULL: the usual one) as Python's Template does: what it does not know stays. Too
 * long a prefix is cut. */
void outputs_prefix(const char *template, int rank, int local_rank, char out[LINE_PREFIX_BYTES]);
/* Opens LOG_DIR/rRESTART/RANK/stdout.log or stderr.log of a rank of this node; -1: not kept. */
fsdp_status outputs_open(const outputs *o, int local_rank, int restart, int rank, int stream, int *fd);

#endif
