/* Memory that all ranks of the host reach: each rank's part is an anonymous file (memfd) mapped by every rank, gone
 * with the last process that maps it. Finds the region that an address lies in, and a peer's address of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "comm/shm/control.h"

enum { PAGE = 4096 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Reserves the pages at once, so that running out is an error here and not a signal later. */
static fsdp_status create_file(size_t bytes, int *out)
{
    int fd = memfd_create("fsdp", MFD_CLOEXEC);
    if (fd < 0)
        return error_set_errno(FSDP_ERR_MEMORY, "cannot create shared memory (memfd_create)");
    if (ftruncate(fd, (off_t)bytes) < 0 || fallocate(fd, 0, 0, (off_t)bytes) < 0) {
        fsdp_status status = error_set_errno(FSDP_ERR_MEMORY, "cannot allocate %zu bytes of shared memory", bytes);
        close(fd);
        return status;
    }
    *out = fd;
    return FSDP_OK;
}

fsdp_status shm_open_file(const comm *c, int world_rank, int theirs, size_t bytes, int *out)
{
    char path[64];
    struct stat found;
    fsdp_status status = FSDP_OK;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", world_of(c)->pids[world_rank], theirs);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &found) < 0)
        status = error_set_errno(FSDP_ERR_PEER, "cannot open the shared memory of rank %d (%s); has it ended?",
                                 world_rank, path);
    else if (!S_ISREG(found.st_mode) || found.st_uid != geteuid() || (uint64_t)found.st_size < bytes)
        status = error_set(FSDP_ERR_PEER,
                           "rank %d shared %lld bytes of memory instead of %zu; all ranks must run the same build",
                           world_rank, (long long)found.st_size, bytes);
    if (status != FSDP_OK && fd >= 0)
        close(fd);
    *out = status == FSDP_OK ? fd : -1;
    return status;
}

static fsdp_status map_file(int fd, size_t bytes, bool mine, char **out)
{
    /* Peers' memory is only read here, but mapped writable: streaming through read-only mappings took 1.5 times as long
     * on the one machine where both were measured. */
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED)
        return error_set_errno(FSDP_ERR_MEMORY, "cannot map %zu bytes of shared memory", bytes);
    madvise(start, bytes, MADV_HUGEPAGE);
    /* Page tables filled now, not during the first step; kernels that cannot do it fill them then. */
    madvise(start, bytes, mine ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    *out = start;
    return FSDP_OK;
}

static void region_free(comm *c, shm_region *region)
{
    if (!region)
        return;
    for (int rank = 0; region->start && rank < c->world_size; rank++)
        if (region->start[rank])
            munmap(region->start[rank], region->bytes[rank]);
    free(region->start);
    free(region->bytes);
    free(region);
}

static shm_region *region_create(const comm *c)
{
    shm_region *region = calloc(1, sizeof *region);
    if (!region)
        return NULL;
    region->bytes = calloc((size_t)c->world_size, sizeof *region->bytes);
    region->start = calloc((size_t)c->world_size, sizeof *region->start);
    if (region->bytes && region->start)
        return region;
    free(region->start);
    free(region->bytes);
    free(region);
    return NULL;
}

/* What a rank brings to comm_allocate: every rank learns whether all succeeded before anybody goes on. */
typedef struct offer {
    uint64_t bytes;
    int32_t failed;
    int32_t fd;
} offer;

static fsdp_status agree(comm *c, const offer *mine, offer *all, size_t *sizes, fsdp_status own)
{
    char text[512] = "";
    if (own != FSDP_OK)
        snprintf(text, sizeof text, "%s", engine_error_text(c));
    FSDP_TRY(comm_exchange(c->world, "memory", mine, sizeof *mine, sizeof *mine, all, sizes));
    if (own != FSDP_OK)
        return error_set(own, "%s", text);
    for (int rank = 0; rank < c->world_size; rank++)
        if (all[rank].failed)
            return error_set(FSDP_ERR_PEER, "rank %d could not allocate %llu bytes of shared memory", rank,
                             (unsigned long long)all[rank].bytes);
    return FSDP_OK;
}

static fsdp_status map_everybody(comm *c, shm_region *region, const offer *all)
{
    for (int rank = 0; rank < c->world_size; rank++) {
        int fd;
        size_t bytes = (size_t)all[rank].bytes;
        if (bytes == 0 || !world_of(c)->near[rank])
            continue;
        FSDP_TRY(shm_open_file(c, rank, all[rank].fd, bytes, &fd));
        fsdp_status status = map_file(fd, bytes, rank == c->rank, &region->start[rank]);
        close(fd);
        FSDP_TRY(status);
        region->bytes[rank] = bytes;
    }
    return FSDP_OK;
}

/* fd and all are the caller's to clean up: fd once all ranks have mapped it. */
static fsdp_status share(comm *c, size_t bytes, shm_region *region, int *fd, offer *all, size_t *sizes)
{
    fsdp_status own = bytes ? create_file(bytes, fd) : FSDP_OK;
    offer mine = {.bytes = bytes, .failed = own != FSDP_OK, .fd = *fd};
    FSDP_TRY(agree(c, &mine, all, sizes, own));
    own = map_everybody(c, region, all);
    mine.failed = own != FSDP_OK;
    return agree(c, &mine, all, sizes, own);
}

fsdp_status shm_allocate(comm *c, size_t bytes, void **out)
{
    shm_world *w = world_of(c);
    size_t n = (size_t)c->world_size, whole;
    if (checked_add(bytes, PAGE - 1, &whole))
        return error_set(FSDP_ERR_INPUT, "cannot allocate %zu bytes", bytes);
    whole = round_up(bytes, PAGE);
    shm_region *region = region_create(c);
    int fd = -1;
    offer *all = calloc(n, sizeof *all);
    size_t *sizes = calloc(n, sizeof *sizes);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!region || !all || !sizes) {
        error_set(status, "no memory to share %zu bytes", bytes);
        engine_fail(c, status, engine_error_text(c));
    } else {
        status = share(c, whole, region, &fd, all, sizes);
    }
    if (fd >= 0)
        close(fd);
    free(sizes);
    free(all);
    if (status != FSDP_OK) {
        region_free(c, region);
        return status;
    }
    region->id = w->n_regions++;
    region->next = w->regions;
    w->regions = region;
    if (whole)
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, (int64_t)whole, 1);
    *out = region->start[c->rank];
    return FSDP_OK;
}

static void unlink_region(comm *c, shm_region **link)
{
    shm_region *region = *link;
    *link = region->next;
    if (region->bytes[c->rank])
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "comm", NULL, -(int64_t)region->bytes[c->rank], 1);
    region_free(c, region);
}

void shm_release(comm *c, void *memory)
{
    for (shm_region **link = &world_of(c)->regions; *link; link = &(*link)->next)
        if ((*link)->start[c->rank] == memory) {
            unlink_region(c, link);
            return;
        }
}

void shm_release_all(comm *c)
{
    while (world_of(c)->regions)
        unlink_region(c, &world_of(c)->regions);
}

shm_location shm_locate(const comm *c, const void *data, size_t bytes)
{
    for (const shm_region *region = world_of(c)->regions; region; region = region->next) {
        uintptr_t start = (uintptr_t)region->start[c->rank], at = (uintptr_t)data;
        if (start && at >= start && at - start <= region->bytes[c->rank] &&
            bytes <= region->bytes[c->rank] - (at - start))
            return (shm_location){.region = region->id, .offset = (int64_t)(at - start)};
    }
    return (shm_location){.region = -1};
}

const char *shm_address(const comm *c, int world_rank, shm_location where)
{
    for (const shm_region *region = world_of(c)->regions; region; region = region->next)
        if (region->id == where.region)
            return region->start[world_rank] + where.offset;
    return NULL;
}
