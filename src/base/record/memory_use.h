/* What memory is taken for, in the words of plans and pictures. Allocators report bytes (HOOK_MEMORY) and do not know
 * what for; whoever asked them says it here. */
#ifndef BASE_RECORD_MEMORY_USE_H
#define BASE_RECORD_MEMORY_USE_H

#include <stdint.h>

typedef enum memory_use {
    MEMORY_PARAMETERS,
    MEMORY_COPIES, /* in low precision: what is gathered */
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_GATHERED,
    MEMORY_FULL_GRADIENTS,
    MEMORY_ACTIVATIONS, /* of what is taken, with workspace, and with what validation needs beyond training */
    MEMORY_WORKSPACE,
    MEMORY_BUFFERS,
    MEMORY_COMMUNICATION, /* of what is taken, all that nobody has claimed */
    MEMORY_VALIDATION,
    MEMORY_IN_HOST, /* where that is the device's memory, too */
    MEMORY_USES
} memory_use;

extern const char *const memory_use_names[MEMORY_USES];

/* So much memory of the device was taken, or given back (bytes < 0), for this. */
void memory_use_note(memory_use use, int64_t bytes);

#endif
