/* A device that computes nothing: it hands every kernel that it is asked for to a listener, with what the call amounts
 * to. A program that runs on it tells what it would do on the device that it stands for. Memory that it gives out is
 * not there. */
#ifndef DEVICE_NOTING_H
#define DEVICE_NOTING_H

#include "device/device.h"
#include "device/kernel_work.h"

typedef fsdp_status (*noting_listener)(void *context, const kernel_work *work);

typedef struct noting_device noting_device;

/* Stands for `like`, which must outlive it: the same traits and workspaces. The caller owns *out. */
fsdp_status noting_device_open(const device *like, noting_listener listen, void *context, noting_device **out);
void noting_device_close(noting_device *d); /* NULL is legal */
device *noting_device_base(noting_device *d);
stream *noting_device_stream(noting_device *d);

#endif
