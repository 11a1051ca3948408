/* Counts what is needed and what is there. */
#include "ckpt/hot/room.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "ckpt/save/save.h"
#include "meet/meeting.h"

enum { SNAPSHOTS_HELD = 2 }; /* the newest that is whole, and the one under way */

int hot_next_rank(const hot_rank *ranks, int n, int rank)
{
    for (int i = 1; i < n; i++)
        if (ranks[(rank + i) % n].node != ranks[rank].node)
            return (rank + i) % n;
    return -1;
}

hot_need hot_count_need(const hot_rank *ranks, int n, uint64_t host)
{
    hot_need need = {0};
    for (int i = 0; i < n; i++) {
        int next = hot_next_rank(ranks, n, i);
        if (ranks[i].host == host) {
            need.files += SNAPSHOTS_HELD * ranks[i].bytes;
            need.buffers += (int64_t)ckpt_saver_room(ranks[i].bytes);
            need.n_ranks++;
            if (i == 0 || ranks[i - 1].node != ranks[i].node)
                need.held += ranks[i].held;
        }
        if (next >= 0 && ranks[next].host == host) {
            need.files += SNAPSHOTS_HELD * ranks[i].bytes;
            need.n_neighbors++;
        }
    }
    return need;
}

static double mebibytes(int64_t bytes)
{
    return (double)bytes / 1048576;
}

fsdp_status hot_check_room(const hot_need *need, int64_t files_left, int64_t memory_left)
{
    int64_t files = need->files - need->held;
    if (files_left > 0 && files > files_left)
        return error_set(FSDP_ERR_INPUT,
                         "--snapshot_freq: snapshots of %d ranks and copies for %d take %.1f MiB of /dev/shm, which "
                         "has room for %.1f MiB; make it larger (mount -o remount,size=...) or leave snapshots out",
                         need->n_ranks, need->n_neighbors, mebibytes(need->files), mebibytes(files_left + need->held));
    if (memory_left > 0 && files + need->buffers > memory_left)
        return error_set(
            FSDP_ERR_INPUT,
            "--snapshot_freq: snapshots of %d ranks and copies for %d take %.1f MiB of this host's memory, "
            "of which %.1f MiB are left; use more hosts or leave snapshots out",
            need->n_ranks, need->n_neighbors, mebibytes(need->files + need->buffers),
            mebibytes(memory_left + need->held));
    return FSDP_OK;
}

uint64_t hot_host_of(const char *folder)
{
    struct stat info;
    return hash_u64(meeting_machine_id(), stat(folder, &info) == 0 ? (uint64_t)info.st_dev : 0);
}

int64_t hot_bytes_in(const char *folder)
{
    int64_t total = 0;
    DIR *all = opendir(folder);
    struct stat info;
    for (const struct dirent *e; all && (e = readdir(all));) {
        if (e->d_name[0] == '.' || fstatat(dirfd(all), e->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        char *path = S_ISDIR(info.st_mode) ? file_join(folder, e->d_name) : NULL;
        total += path ? hot_bytes_in(path) : S_ISREG(info.st_mode) ? (int64_t)info.st_blocks * 512 : 0;
        free(path);
    }
    if (all)
        closedir(all);
    return total;
}

int64_t hot_room_left(const char *folder)
{
    struct statvfs info;
    return statvfs(folder, &info) == 0 ? (int64_t)info.f_bavail * (int64_t)info.f_frsize : 0;
}
