/* System calls that fail on demand: definitions in the test's own program, which go before those of the C library. One
 * test program includes this once. */
#ifndef TESTS_CKPT_FAULTS_H
#define TESTS_CKPT_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* The fault to come: counts calls down, in this process. */
static struct {
    atomic_int countdown; /* 0: none; 1: the next call fails */
    int number;
    bool stays;      /* every later call fails too: a disk that is full stays full */
    bool background; /* only calls of other threads than the one that set it */
    pthread_t setter;
    atomic_bool tripped;
} fault;

static bool fault_strikes(void)
{
    if (fault.background && pthread_equal(fault.setter, pthread_self()))
        return false;
    if (atomic_load(&fault.tripped) && fault.stays) {
        errno = fault.number;
        return true;
    }
    if (atomic_load(&fault.countdown) == 0 || atomic_fetch_sub(&fault.countdown, 1) != 1)
        return false;
    atomic_store(&fault.tripped, true);
    errno = fault.number;
    return true;
}

static void fault_set(int countdown, int number, bool stays)
{
    fault.number = number;
    fault.stays = stays;
    fault.background = false;
    fault.setter = pthread_self();
    atomic_store(&fault.tripped, false);
    atomic_store(&fault.countdown, countdown);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    return fault_strikes() ? -1 : syscall(SYS_pwrite64, fd, data, bytes, offset);
}

int fsync(int fd)
{
    return fault_strikes() ? -1 : (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    return fault_strikes() ? -1 : (int)syscall(SYS_rename, from, to);
}

int ftruncate(int fd, off_t length)
{
    return fault_strikes() ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

int mkdir(const char *path, mode_t mode)
{
    return fault_strikes() ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    return fault_strikes() ? -1 : (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    return fault_strikes() ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

/* Only files that are written: what fails is the disk that takes the checkpoint. */
int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return (flags & O_ACCMODE) != O_RDONLY && fault_strikes() ? -1
                                                              : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#endif
