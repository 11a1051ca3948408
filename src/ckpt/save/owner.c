/* Writes, renews and judges the OWNER file of an unfinished save. */
#include "ckpt/save/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

enum { MAX_OWNER_BYTES = 64 << 10 };

struct save_owner {
    int fd;
    double renewed;
};

/* ---- Processes ---- */

/* One line of a small file of /proc; "" when it cannot be read. */
static void read_line(const char *path, char *line, size_t room)
{
    char *text = NULL;
    size_t bytes;
    line[0] = '\0';
    if (file_read_at_most(path, MAX_OWNER_BYTES, &text, &bytes) == FSDP_OK)
        snprintf(line, room, "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
}

/* When the process was started, in ticks since the host was; 0 when it is not there or has ended. The name in front may
 * hold anything, so fields are counted from its last parenthesis. */
static unsigned long long process_start(long pid)
{
    char path[64], line[4096], state = 'X';
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    read_line(path, line, sizeof line);
    const char *rest = strrchr(line, ')');
    if (!rest || sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                        &state, &start) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : start;
}

/* Names this boot of this host and the numbering of its processes (a container has its own). */
static void name_host(char *text, size_t room)
{
    char boot[64], space[64];
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[n > 0 ? n : 0] = '\0';
    snprintf(text, room, "%s %s", boot, space);
}

/* ---- The owner's side ---- */

static fsdp_status write_owner(int fd, const char *path)
{
    char host[160], name[256] = "";
    name_host(host, sizeof host);
    (void)gethostname(name, sizeof name - 1);
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    json_t *owner = json_pack("{s:s, s:s, s:I, s:I, s:b}", "name", name, "host", host, "pid", (json_int_t)getpid(),
                              "started", (json_int_t)process_start(getpid()), "locked", locked);
    char *text = owner ? json_dumps(owner, 0) : NULL;
    fsdp_status status = FSDP_OK;
    if (!text)
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    else if (pwrite(fd, text, strlen(text), 0) != (ssize_t)strlen(text))
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot write", path);
    free(text);
    json_decref(owner);
    return status;
}

/* The file gets its name when it is locked and written: nobody sees it otherwise. */
fsdp_status owner_take(const char *folder, save_owner **out)
{
    char *path = file_join(folder, OWNER_NAME), *new = file_join(folder, OWNER_NAME ".new");
    save_owner *o = calloc(1, sizeof *o);
    fsdp_status status = FSDP_OK;
    if (!path || !new || !o) {
        status = error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
        goto done;
    }
    o->fd = open(new, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot create", new);
        goto done;
    }
    o->renewed = clock_seconds();
    status = write_owner(o->fd, new);
    if (status == FSDP_OK && rename(new, path) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot rename to %s", new, path);
    if (status != FSDP_OK)
        close(o->fd);
done:
    free(new);
    free(path);
    if (status == FSDP_OK)
        *out = o;
    else
        free(o);
    return status;
}

void owner_renew(save_owner *o)
{
    if (!o || clock_seconds() - o->renewed < OWNER_RENEWAL)
        return;
    o->renewed = clock_seconds();
    (void)futimens(o->fd, NULL); /* on NFS the server's clock */
}

void owner_remove(const char *folder)
{
    char *path = file_join(folder, OWNER_NAME);
    if (path)
        (void)unlink(path);
    free(path);
}

void owner_release(save_owner *o)
{
    if (!o)
        return;
    close(o->fd);
    free(o);
}

/* ---- Others' side ---- */

bool owner_filesystem_is_local(long kind)
{
    static const long local[] = {
        0xef53,     /* ext2, ext3, ext4 */
        0x58465342, /* xfs */
        0x9123683e, /* btrfs */
        0x01021994, /* tmpfs */
        0x858458f6, /* ramfs */
        0x794c7630, /* overlayfs */
        0x2fc12fc1, /* zfs */
        0xf2f52010, /* f2fs */
        0xca451a4e, /* bcachefs */
        0x3153464a, /* jfs */
    };
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if ((uint32_t)local[i] == (uint32_t)kind)
            return true;
    return false;
}

static bool is_local(const char *folder)
{
    struct statfs info;
    return statfs(folder, &info) == 0 && owner_filesystem_is_local((long)info.f_type);
}

bool owner_facts_gone(const owner_facts *facts)
{
    if (!facts->named)
        return facts->age > (facts->locks_count ? OWNER_GRACE : OWNER_LEASE);
    if (facts->locked)
        return false; /* a lock that is seen is held, wherever */
    if (facts->locks_count)
        return true;
    if (facts->same_host)
        return !facts->process_runs;
    return facts->age > OWNER_LEASE;
}

/* Seconds since `info` was touched, by the clock that stamps files there: a new file beside it tells the time, whatever
 * the clocks of the hosts. Without one (no room, no permission) nothing is old. */
static double age_of(const char *folder, const struct stat *info)
{
    struct stat now;
    char *path;
    if (asprintf(&path, "%s.now-%ld", folder, (long)getpid()) < 0)
        return 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool known = fd >= 0 && futimens(fd, NULL) == 0 && fstat(fd, &now) == 0;
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(path);
    if (!known)
        return 0;
    return (double)(now.st_mtim.tv_sec - info->st_mtim.tv_sec) +
           (double)(now.st_mtim.tv_nsec - info->st_mtim.tv_nsec) * 1e-9;
}

static void read_owner(int fd, const char *path, owner_facts *facts, char *who, size_t room)
{
    char text[4096], host[160];
    ssize_t bytes = pread(fd, text, sizeof text, 0);
    json_t *owner = NULL;
    if (bytes <= 0 || json_parse(path, text, (size_t)bytes, &owner) != FSDP_OK)
        return;
    const char *its_host = json_string_value(json_object_get(owner, "host"));
    const char *name = json_string_value(json_object_get(owner, "name"));
    long pid = (long)json_integer_value(json_object_get(owner, "pid"));
    unsigned long long started = (unsigned long long)json_integer_value(json_object_get(owner, "started"));
    name_host(host, sizeof host);
    facts->named = its_host && name && pid > 0;
    facts->same_host = its_host && started > 0 && strcmp(its_host, host) == 0;
    facts->process_runs = facts->same_host && process_start(pid) == started;
    facts->locks_count &= json_is_true(json_object_get(owner, "locked"));
    if (facts->named)
        snprintf(who, room, "process %ld on %s", pid, name);
    json_decref(owner);
}

bool owner_is_gone(const char *folder, char *who, size_t room)
{
    owner_facts facts = {.locks_count = is_local(folder)};
    struct stat info;
    char *path = file_join(folder, OWNER_NAME);
    int fd = -1;
    snprintf(who, room, "%s", "a process that is not known");
    if (!path || stat(folder, &info) != 0) {
        free(path);
        return false;
    }
    if (file_open_regular(path, MAX_OWNER_BYTES, &fd, NULL) == FSDP_OK) {
        read_owner(fd, path, &facts, who, room);
        facts.locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (facts.named)
            (void)fstat(fd, &info);
        close(fd);
    }
    free(path);
    facts.age = INFINITY;
    if (!owner_facts_gone(&facts))
        return false;
    facts.age = 0;
    if (owner_facts_gone(&facts))
        return true;
    facts.age = age_of(folder, &info); /* only now is it asked */
    return owner_facts_gone(&facts);
}
