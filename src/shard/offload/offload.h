/* Offloaded units: masters, moments and gradients lie in host memory and the optimizer runs there; the device keeps the
 * shard-sized copy that is gathered.
 *
 *     compute   ... backward of unit 7 | unit 6 | ...           forward of unit 0 | unit 1 | ...
 *     sums                             | squares of 7 | ...
 *     out                              | gradient 7 to the host | ...
 *     worker                                         update 0 | update 1 | update 2 | ...
 *     in                                                      | copy 0 to the device | copy 1 | ...
 *
 * Gradients leave on a stream of their own as soon as they are summed; when all ranks know the norm, which does not
 * wait for those still leaving, a thread updates unit after unit in the order in which forward needs them (those that
 * have arrived first) and sends each copy back, while the next forward already runs. The caller's thread waits for a
 * unit only where the schedule says that its copy is needed. */
#ifndef SHARD_OFFLOAD_OFFLOAD_H
#define SHARD_OFFLOAD_OFFLOAD_H

#include "shard/model.h"
#include "shard/sharded.h"

typedef struct offload offload;

/* Which units, of these names: sets m->offloaded from the configuration's globs, less those that stay on the device
 * nevertheless (cpu_offload_resident). FSDP_ERR_INPUT, with the units' names, for a glob that matches none, also where
 * nothing is offloaded, and for a percentage that is none. */
fsdp_status offload_choose(fsdp_model *m, int n_units, const char *const *names);
bool offload_any(const fsdp_model *m);
/* FSDP_ERR_UNSUPPORTED where units are offloaded and this optimizer cannot update them in host memory. */
fsdp_status offload_check_optimizer(const fsdp_model *m, fsdp_optimizer_kind kind);

/* Streams, events and the worker. Of a model whose units are placed; with device and host memory of its own only as far
 * as the device's streams have. */
fsdp_status offload_create(fsdp_model *m, offload **out);
void offload_free(offload *o); /* NULL is legal; the worker ends after the unit in hand */

/* The device whose kernels work on host memory, and its stream for the caller's thread. NULL where nothing is
 * offloaded. */
device *offload_host(const fsdp_model *m);
stream *offload_host_stream(const fsdp_model *m);

/* ---- Gradients; all enqueue, on the caller's thread ---- */

/* Before a program runs: the memory of gradients that left last may be used again. */
fsdp_status offload_begin(fsdp_model *m);
/* The sum of earlier micro-batches starts back to `to`; and compute waits for it. */
fsdp_status offload_preload(fsdp_model *m, int index, void *to);
fsdp_status offload_preloaded(fsdp_model *m, int index);
/* This rank's sum lies at `landing`, as soon as compute and the unit's reduction are there. It leaves for the host;
 * when it is the step's `last`, replicas are summed and its squares taken before. */
fsdp_status offload_land(fsdp_model *m, int index, void *landing, bool last);
/* The unit's full gradients at `held` are reduced now, land and leave: after the last micro-batch, for units that it
 * did not use. */
fsdp_status offload_reduce(fsdp_model *m, int index, uint8_t *held);
/* Compute waits until it has left: the memory is free. */
fsdp_status offload_landed(fsdp_model *m, int index);
/* No gradient for this unit in this step, so far. */
fsdp_status offload_clear(fsdp_model *m, int index);
/* After the last micro-batch: the squares of all offloaded units are there for compute. */
fsdp_status offload_finish_gradients(fsdp_model *m);
/* The host's gradients have been changed since: their squares are taken anew. Waits. */
fsdp_status offload_take_squares(fsdp_model *m);

/* ---- The update ---- */

/* Where the worker's updates run: the processor's stream, and the device's that brings copies in. */
typedef struct offload_lanes {
    stream *host, *in;
} offload_lanes;

/* Updates a slice whose state lies in host memory; called on the worker's thread. *on_host: how many elements, from the
 * first on, have their new copy in host memory; those of the others are on the device when lanes.in is there. */
typedef fsdp_status (*offload_updater)(void *context, int slice, offload_lanes lanes, int64_t *on_host);
/* Starts updating all offloaded units that are trained. The gradients are finished and compute has been waited for;
 * `context` is borrowed until offload_wait. `stands`: updates that ran ahead are as they should be; otherwise they are
 * undone and made again. */
fsdp_status offload_update(fsdp_model *m, offload_updater updater, void *context, bool stands);
/* Before a unit's copy is read: it is on its way, and compute waits for it. */
fsdp_status offload_refresh(fsdp_model *m, int index);
/* Until the worker is done with all units; offload_settle (sharded.h) also waits for transfers. */
fsdp_status offload_wait(fsdp_model *m);

/* ---- Updates that run ahead of the norm ---- */

typedef struct offload_runner {
    /* Whether the slice may be updated as soon as its gradient has come; the caller's thread. */
    bool (*takes)(void *context, int slice);
    /* The worker's thread: updates it in host memory and keeps its old values; brings those back. */
    fsdp_status (*update)(void *context, int slice, stream *s);
    fsdp_status (*restore)(void *context, int slice, stream *s);
    void *context; /* borrowed */
} offload_runner;

/* From now on, in the last micro-batch of a step, units whose gradient lands are offered to the runner, which is
 * copied. NULL: no more. What ran ahead is undone by whoever needs host memory as it was before the step
 * (offload_settle), and by another micro-batch. No update is running. */
fsdp_status offload_run_ahead(fsdp_model *m, const offload_runner *runner);
/* None is begun any more, and the one in hand is done. */
fsdp_status offload_stop_ahead(fsdp_model *m);
/* They are all undone. Waits. */
fsdp_status offload_undo_ahead(fsdp_model *m);

#endif
