/* Adds up memory events, reads the process's own view, and shows both beside the plan. */
#include "observe/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/record/hooks.h"
#include "observe/table.h"
#include "observe/units.h"

typedef struct count {
    atomic_llong bytes, peak;
} count;

struct fsdp_memory_meter {
    count device, host;
    atomic_bool beside; /* a device has memory of its own: what else there is, is the host's */
    atomic_llong uses[MEMORY_USES];
};

/* On the CPU all memory is one. */
static count *count_of(fsdp_memory_meter *m, const char *name)
{
    bool pinned = strcmp(name, "cuda.host") == 0, snapshot = strcmp(name, "checkpoint snapshot") == 0;
    if (strcmp(name, "cuda") == 0)
        atomic_store(&m->beside, true);
    return pinned || (snapshot && atomic_load(&m->beside)) ? &m->host : &m->device;
}

static void on_use(fsdp_memory_meter *m, const hook_event *event)
{
    for (int i = 0; i < MEMORY_USES; i++)
        if (strcmp(event->name, memory_use_names[i]) == 0)
            atomic_fetch_add(&m->uses[i], event->bytes);
}

static void on_event(void *context, const hook_event *event)
{
    fsdp_memory_meter *m = context;
    if (event->kind == HOOK_MEMORY_USE) {
        on_use(m, event);
        return;
    }
    count *c = count_of(m, event->name);
    bool in_host = strcmp(event->name, "host") == 0 || strcmp(event->name, "checkpoint snapshot") == 0;
    if (in_host && c == &m->device)
        atomic_fetch_add(&m->uses[MEMORY_IN_HOST], event->bytes);
    long long now = atomic_fetch_add(&c->bytes, event->bytes) + event->bytes, peak = atomic_load(&c->peak);
    while (now > peak && !atomic_compare_exchange_weak(&c->peak, &peak, now))
        ;
}

fsdp_status fsdp_memory_meter_start(fsdp_memory_meter **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a memory meter");
    fsdp_status status = hooks_add_kind(HOOK_MEMORY, on_event, *out);
    if (status == FSDP_OK)
        status = hooks_add_kind(HOOK_MEMORY_USE, on_event, *out);
    if (status != FSDP_OK) {
        hooks_remove(on_event, *out);
        free(*out);
        *out = NULL;
    }
    return status;
}

void fsdp_memory_meter_free(fsdp_memory_meter *m)
{
    if (m)
        hooks_remove(on_event, m);
    free(m);
}

int64_t fsdp_memory_meter_bytes(const fsdp_memory_meter *m)
{
    return atomic_load(&m->device.bytes);
}

int64_t fsdp_memory_meter_peak(const fsdp_memory_meter *m)
{
    return atomic_load(&m->device.peak);
}

int64_t fsdp_memory_meter_host_peak(const fsdp_memory_meter *m)
{
    return atomic_load(&m->host.peak);
}

/* What nobody has claimed is the backends': their own memory, and what they round up. */
void memory_meter_uses(const fsdp_memory_meter *m, int64_t uses[MEMORY_USES])
{
    int64_t claimed = 0, all = fsdp_memory_meter_bytes(m);
    for (int i = 0; i < MEMORY_USES; i++)
        claimed += uses[i] = atomic_load(&m->uses[i]);
    uses[MEMORY_COMMUNICATION] += all > claimed ? all - claimed : 0;
}

void fsdp_memory_meter_reset(fsdp_memory_meter *m)
{
    atomic_store(&m->device.peak, atomic_load(&m->device.bytes));
    atomic_store(&m->host.peak, atomic_load(&m->host.bytes));
}

/* The number of kB after "\nKey:", as bytes. */
static int64_t field(const char *text, const char *key)
{
    const char *at = text ? strstr(text, key) : NULL;
    return at ? 1024 * strtoll(at + strlen(key), NULL, 10) : 0;
}

process_memory process_memory_read(void)
{
    process_memory memory = {0};
    char *text = NULL;
    size_t bytes;
    if (file_read("/proc/self/smaps_rollup", &text, &bytes) == FSDP_OK) {
        memory.rss_bytes = field(text, "\nRss:");
        memory.pss_bytes = field(text, "\nPss:");
        free(text);
    }
    if (file_read("/proc/self/status", &text, &bytes) == FSDP_OK) {
        memory.rss_peak_bytes = field(text, "\nVmHWM:");
        if (!memory.rss_bytes)
            memory.rss_bytes = field(text, "\nVmRSS:");
        free(text);
    }
    return memory;
}

static const char *optional(char *text, int64_t bytes)
{
    return bytes ? units_bytes(text, bytes) : "";
}

static fsdp_status add_row(table *t, const char *name, const memory_row *r)
{
    char text[8][UNITS_TEXT];
    return table_row(t, "%s|%s|%s|%s|%s|%s|%s|%s|%s", name, optional(text[0], r->plan_bytes),
                     optional(text[1], r->measured_bytes), optional(text[6], r->host_plan_bytes),
                     optional(text[7], r->host_measured_bytes), optional(text[2], r->replicated_bytes),
                     optional(text[3], r->process.rss_bytes), optional(text[4], r->process.rss_peak_bytes),
                     optional(text[5], r->process.pss_bytes));
}

static fsdp_status add_sum(table *t, const memory_row *rows, int n)
{
    memory_row sum = {0};
    for (int i = 0; i < n; i++) {
        sum.plan_bytes += rows[i].plan_bytes;
        sum.measured_bytes += rows[i].measured_bytes;
        sum.host_plan_bytes += rows[i].host_plan_bytes;
        sum.host_measured_bytes += rows[i].host_measured_bytes;
        sum.replicated_bytes += rows[i].replicated_bytes;
        sum.process.pss_bytes += rows[i].process.pss_bytes; /* the only view of the system that adds up */
    }
    return add_row(t, "all", &sum);
}

fsdp_status memory_report(const memory_row *rows, int n, char **text)
{
    table *t;
    fsdp_status status;
    *text = NULL;
    FSDP_TRY(table_new(
        "rank|planned|measured|host planned|host measured|unsharded plan|resident|resident peak|proportional", &t));
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", rows[i].rank);
        TRY_OR(done, add_row(t, name, &rows[i]));
    }
    if (n > 1)
        TRY_OR(done, add_sum(t, rows, n));
    status = table_text(t, text);
done:
    table_free(t);
    return status;
}
