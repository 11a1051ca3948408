/* The names, and the event that tells listeners. */
#include "base/record/memory_use.h"

#include "base/record/hooks.h"

const char *const memory_use_names[MEMORY_USES] = {
    [MEMORY_PARAMETERS] = "parameters",   [MEMORY_COPIES] = "low-precision copies",
    [MEMORY_GRADIENTS] = "gradients",     [MEMORY_OPTIMIZER] = "optimizer",
    [MEMORY_GATHERED] = "gathered units", [MEMORY_FULL_GRADIENTS] = "full gradients",
    [MEMORY_ACTIVATIONS] = "activations", [MEMORY_WORKSPACE] = "workspace",
    [MEMORY_BUFFERS] = "buffers",         [MEMORY_COMMUNICATION] = "communication",
    [MEMORY_VALIDATION] = "validation",   [MEMORY_IN_HOST] = "host memory"};

void memory_use_note(memory_use use, int64_t bytes)
{
    HOOK(HOOK_MEMORY_USE, HOOK_INSTANT, memory_use_names[use], NULL, bytes, 0);
}
