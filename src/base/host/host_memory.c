/* Reads /proc/meminfo and the memory controllers of cgroups, version 2 and 1. Cached pages of files that are not in use
 * count as free in both: the kernel drops them when memory runs short. */
#include "base/host/host_memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { LINE_BYTES = 4096 + 64 };

/* The number after `key` in a file of "key number" lines; -1: there is none. */
static int64_t number_in(const char *path, const char *key)
{
    char line[LINE_BYTES];
    int64_t value = -1;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    while (file && value < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && (length == 0 || strchr(" :\t", line[length])))
            (void)sscanf(line + length, "%*[: \t]%lld", (long long *)&value);
    if (file)
        fclose(file);
    return value;
}

/* The first word of a file as a number; -1: no number ("max"), or no file. */
static int64_t number_of(const char *path)
{
    long long value = -1;
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%lld", &value) != 1)
        value = -1;
    if (file)
        fclose(file);
    return value;
}

/* Names of the three files in a control group's folder. */
typedef struct controller {
    const char *folder, *limit, *usage, *idle;
} controller;

static const controller version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
                        version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file"};

static int64_t group_left(const char *root, const controller *c, const char *group)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%s%s/%s", root, c->folder, group, c->limit);
    int64_t limit = number_of(path);
    snprintf(path, sizeof path, "%s%s%s/%s", root, c->folder, group, c->usage);
    int64_t usage = number_of(path);
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, c->folder, group);
    int64_t idle = number_in(path, c->idle);
    if (limit < 0 || usage < 0)
        return INT64_MAX;
    return max_i64(1, limit - usage + max_i64(0, min_i64(idle, usage)));
}

/* The group and all above it: each has a limit of its own. */
static int64_t groups_left(const char *root, const controller *c, char *group)
{
    int64_t left = INT64_MAX;
    for (;;) {
        char *slash = strrchr(group, '/');
        left = min_i64(left, group_left(root, c, strcmp(group, "/") == 0 ? "" : group));
        if (!slash || !group[0])
            return left;
        *slash = '\0';
    }
}

/* Lines "0::/path" (version 2) and "5:memory:/path" (version 1). */
static int64_t control_groups_left(const char *root)
{
    char path[PATH_MAX], line[LINE_BYTES];
    int64_t left = INT64_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (names[1] == '\0')
            left = min_i64(left, groups_left(root, &version_2, group));
        else if (strcmp(names + 1, "memory") == 0)
            left = min_i64(left, groups_left(root, &version_1, group));
    }
    if (file)
        fclose(file);
    return left;
}

size_t host_memory_available_in(const char *root)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t kibibytes = number_in(path, "MemAvailable"), left = control_groups_left(root);
    int64_t system = kibibytes > 0 ? kibibytes * 1024 : INT64_MAX;
    return min_i64(system, left) == INT64_MAX ? 0 : (size_t)min_i64(system, left);
}

size_t host_memory_available(void)
{
    return host_memory_available_in("");
}
