/* Records of kernels, copies and clears from CUPTI, which is opened at run time: kernels inside of graphs have records
 * of their own. CUPTI knows no context for its callbacks, so what is recorded is a global of this file, under a lock;
 * one device of a process records at a time. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "device/activity.h"
#include "device/cuda/cuda_device.h"

#if __has_include(<cupti.h>)
#include <cupti.h>
#include <dlfcn.h>

#define CUPTI_FUNCTIONS(X)                                                                                             \
    X(cuptiActivityRegisterCallbacks)                                                                                  \
    X(cuptiActivityEnable)                                                                                             \
    X(cuptiActivityDisable)                                                                                            \
    X(cuptiActivityFlushAll)                                                                                           \
    X(cuptiActivityGetNextRecord)                                                                                      \
    X(cuptiGetTimestamp)                                                                                               \
    X(cuptiGetResultString)

typedef struct cupti_api {
    CUPTI_FUNCTIONS(LIBRARY_FUNCTION)
} cupti_api;

enum { BUFFER_BYTES = 1 << 20, MOST_RECORDS = 1 << 20, CLOCK_READINGS = 16, SYMBOL_BYTES = 256, TABLE = 1 << 12 };

/* What the host called, and when: joined with what ran by its number. */
typedef struct launch_note {
    uint32_t number;
    uint64_t at;
} launch_note;

typedef struct ran_note {
    activity_kind kind;
    uint32_t number, stream;
    bool in_graph;
    uint64_t begin, end; /* CUPTI's clock */
    int64_t bytes;
    const char *name; /* a literal, or of `names` */
} ran_note;

static struct {
    pthread_mutex_t lock;
    void *file;
    cupti_api api;
    bool on;
    clock_pair begun;
    ran_note *ran;
    size_t n_ran, ran_room;
    launch_note *launches;
    size_t n_launches, launch_room;
    uint64_t lost;
    /* Each kernel's name once; CUPTI says a kernel's name by the same pointer every time, but does not say for how
     * long that is good. */
    const char *symbols[TABLE];
    char *names[TABLE];
} records = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME,
                                           CUPTI_ACTIVITY_KIND_DRIVER};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static fsdp_status check(CUptiResult result, const char *what)
{
    const char *words = NULL;
    if (result == CUPTI_SUCCESS)
        return FSDP_OK;
    if (records.api.cuptiGetResultString)
        (void)records.api.cuptiGetResultString(result, &words);
    return error_set(FSDP_ERR_UNSUPPORTED, "CUPTI could not %s: %s%s", what, words ? words : "for an unknown reason",
                     result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES
                         ? "; the driver's option NVreg_RestrictProfilingToAdminUsers=0 allows it"
                         : "");
}

/* ---- records, on CUPTI's thread or on the one that flushes ---- */

static const char *kernel_name(const char *symbol)
{
    char plain[SYMBOL_BYTES];
    size_t at = ((uintptr_t)symbol >> 4) % TABLE;
    for (size_t tried = 0; tried < TABLE && records.names[at]; tried++, at = (at + 1) % TABLE)
        if (records.symbols[at] == symbol)
            return records.names[at];
    if (records.names[at])
        return "kernel";
    activity_plain_name(symbol ? symbol : "kernel", plain, sizeof plain);
    records.symbols[at] = symbol;
    records.names[at] = strdup(plain);
    return records.names[at] ? records.names[at] : "kernel";
}

static void *room_for(void *list, size_t n, size_t *room, size_t bytes)
{
    if (n < *room)
        return list;
    size_t wanted = *room ? 2 * *room : 4096;
    void *grown = wanted <= MOST_RECORDS ? realloc(list, wanted * bytes) : NULL;
    if (grown)
        *room = wanted;
    return grown;
}

static void add_ran(ran_note note)
{
    ran_note *list = room_for(records.ran, records.n_ran, &records.ran_room, sizeof *list);
    if (list) {
        records.ran = list;
        list[records.n_ran++] = note;
    } else {
        records.lost++;
    }
}

static void add_launch(launch_note note)
{
    launch_note *list = room_for(records.launches, records.n_launches, &records.launch_room, sizeof *list);
    if (!list)
        return;
    records.launches = list;
    list[records.n_launches++] = note;
}

/* Fields that these forms share with later ones lie at the same places: CUPTI appends. */
static void add_record(const CUpti_Activity *record)
{
    const void *any = record;
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel9 *k = any;
        add_ran((ran_note){.kind = ACTIVITY_KERNEL,
                           .number = k->correlationId,
                           .stream = k->streamId,
                           .in_graph = k->graphNodeId != 0,
                           .begin = k->start,
                           .end = k->end,
                           .name = kernel_name(k->name)});
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy5 *c = any;
        const char *name = c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to the device"
                           : c->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to the host"
                                                                            : "copy";
        add_ran((ran_note){.kind = ACTIVITY_COPY,
                           .number = c->correlationId,
                           .stream = c->streamId,
                           .in_graph = c->graphNodeId != 0,
                           .begin = c->start,
                           .end = c->end,
                           .bytes = (int64_t)c->bytes,
                           .name = name});
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *c = any;
        add_ran((ran_note){.kind = ACTIVITY_COPY,
                           .number = c->correlationId,
                           .stream = c->streamId,
                           .in_graph = c->graphNodeId != 0,
                           .begin = c->start,
                           .end = c->end,
                           .bytes = (int64_t)c->bytes,
                           .name = "clear"});
        break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
        const CUpti_ActivityAPI *a = any;
        add_launch((launch_note){a->correlationId, a->start});
        break;
    }
    default:
        break;
    }
}

static void CUPTIAPI give_buffer(uint8_t **memory, size_t *size, size_t *most_records)
{
    *memory = aligned_alloc(8, BUFFER_BYTES);
    *size = *memory ? BUFFER_BYTES : 0;
    *most_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t queue, uint8_t *memory, size_t size, size_t valid)
{
    CUpti_Activity *record = NULL;
    (void)context, (void)queue, (void)size;
    pthread_mutex_lock(&records.lock);
    while (valid > 0 && records.on && records.api.cuptiActivityGetNextRecord(memory, valid, &record) == CUPTI_SUCCESS)
        add_record(record);
    pthread_mutex_unlock(&records.lock);
    free(memory);
}

/* ---- begin and end ---- */

static fsdp_status open_cupti(void)
{
    const char *missing = NULL;
    char name[32];
    if (records.file)
        return FSDP_OK;
    snprintf(name, sizeof name, "libcupti.so.%d", CUDART_VERSION / 1000); /* whose structures were compiled with */
    void *file = cuda_open_library(name);
    if (!file)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s was not found; install it or name its folder in FSDP_CUDA_LIBRARIES",
                         name);
#define FIND(name)                                                                                                     \
    {                                                                                                                  \
        void *symbol = dlsym(file, #name);                                                                             \
        if (!symbol)                                                                                                   \
            missing = #name;                                                                                           \
        memcpy(&records.api.name, &symbol, sizeof symbol);                                                             \
    }
    CUPTI_FUNCTIONS(FIND)
#undef FIND
    if (missing)
        return error_set(FSDP_ERR_UNSUPPORTED, "CUPTI has no %s; a newer CUDA toolkit is needed", missing);
    FSDP_TRY(check(records.api.cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "be told where to write"));
    records.file = file; /* stays open: its thread may be at work until the process ends */
    return FSDP_OK;
}

/* The reading with the least time around it. */
static fsdp_status read_clocks(clock_pair *out)
{
    int64_t narrowest = INT64_MAX;
    for (int i = 0; i < CLOCK_READINGS; i++) {
        uint64_t theirs;
        int64_t before = clock_nanoseconds();
        FSDP_TRY(check(records.api.cuptiGetTimestamp(&theirs), "tell the time"));
        int64_t around = clock_nanoseconds() - before;
        if (around < narrowest) {
            narrowest = around;
            *out = (clock_pair){(int64_t)theirs, before + around / 2};
        }
    }
    return FSDP_OK;
}

static void disable(int n)
{
    for (int i = 0; i < n; i++)
        (void)records.api.cuptiActivityDisable(kinds[i]);
}

static fsdp_status enable(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        fsdp_status status = check(records.api.cuptiActivityEnable(kinds[i]), "record");
        if (status != FSDP_OK) {
            disable(i);
            return status;
        }
    }
    return FSDP_OK;
}

static void forget(void)
{
    free(records.ran);
    free(records.launches);
    for (int i = 0; i < TABLE; i++) {
        free(records.names[i]);
        records.names[i] = NULL;
    }
    records.ran = NULL;
    records.launches = NULL;
    records.n_ran = records.ran_room = records.n_launches = records.launch_room = 0;
    records.lost = 0;
}

fsdp_status cuda_activity_begin(device *d)
{
    FSDP_TRY(cuda_enter((cuda_device *)d));
    FSDP_TRY(open_cupti());
    if (records.on)
        return error_set(FSDP_ERR_STATE, "another device of this process is being recorded");
    FSDP_TRY(cuda_check(cudaDeviceSynchronize(), "waiting for the GPU"));
    FSDP_TRY(read_clocks(&records.begun));
    pthread_mutex_lock(&records.lock);
    records.on = true;
    pthread_mutex_unlock(&records.lock);
    fsdp_status status = enable();
    if (status != FSDP_OK)
        records.on = false;
    return status;
}

static int by_number(const void *a, const void *b)
{
    const launch_note *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void give_out(clock_pair ended, activity_sink sink, void *context)
{
    if (records.n_launches)
        qsort(records.launches, records.n_launches, sizeof *records.launches, by_number);
    for (size_t i = 0; i < records.n_ran; i++) {
        const ran_note *r = &records.ran[i];
        launch_note wanted = {.number = r->number};
        const launch_note *l = records.n_launches ? bsearch(&wanted, records.launches, records.n_launches,
                                                            sizeof *records.launches, by_number)
                                                  : NULL;
        device_activity a = {.kind = r->kind,
                             .name = r->name,
                             .begin_ns = clock_map(records.begun, ended, (int64_t)r->begin),
                             .end_ns = clock_map(records.begun, ended, (int64_t)r->end),
                             .launched_ns = l ? clock_map(records.begun, ended, (int64_t)l->at) : 0,
                             .bytes = r->bytes,
                             .stream = r->stream,
                             .in_graph = r->in_graph};
        sink(context, &a);
    }
}

/* All that ran has a record from here on. */
static fsdp_status collect(device *d, clock_pair *ended)
{
    FSDP_TRY(cuda_enter((cuda_device *)d));
    FSDP_TRY(cuda_check(cudaDeviceSynchronize(), "waiting for the GPU"));
    FSDP_TRY(check(records.api.cuptiActivityFlushAll(0), "hand over its records"));
    return read_clocks(ended);
}

fsdp_status cuda_activity_end(device *d, activity_sink sink, void *context)
{
    clock_pair ended = {0, 0};
    fsdp_status status = sink ? collect(d, &ended) : FSDP_OK;
    disable(N_KINDS);
    pthread_mutex_lock(&records.lock);
    records.on = false;
    if (sink && status == FSDP_OK)
        give_out(ended, sink, context);
    forget();
    pthread_mutex_unlock(&records.lock);
    return status;
}
#else
fsdp_status cuda_activity_begin(device *d)
{
    (void)d;
    return error_set(FSDP_ERR_UNSUPPORTED, "this program was built without CUPTI");
}

fsdp_status cuda_activity_end(device *d, activity_sink sink, void *context)
{
    (void)d, (void)sink, (void)context;
    return FSDP_OK;
}
#endif
