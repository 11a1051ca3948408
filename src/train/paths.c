/* Walks up from each output to the first folder that exists; that one must be a folder in which something can be made.
 * Two paths are compared by where they lead, as far as they exist. */
#include "train/paths.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/save.h"

/* Cuts the last name off; leaves "." of a relative path with one name, "/" at the root. */
static void cut_name(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        strcpy(path, ".");
    else
        slash[slash == path] = '\0';
}

/* Tried, not asked: access() says yes to root where a file system says no later (an export of NFS, /proc). */
static bool can_make_in(const char *folder)
{
    char made[PATH_MAX];
    if (snprintf(made, sizeof made, "%s/.fsdp-XXXXXX", folder) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    return mkdtemp(made) && rmdir(made) == 0;
}

static fsdp_status check_output(const char *flag, const char *path, bool is_folder)
{
    char folder[PATH_MAX];
    if (!path)
        return FSDP_OK;
    if (snprintf(folder, sizeof folder, "%s", path) >= PATH_MAX)
        return error_set(FSDP_ERR_INPUT, "--%s: the path is too long", flag);
    if (!is_folder && file_is_directory(path))
        return error_set(FSDP_ERR_INPUT, "--%s=%s is a folder; a file is expected", flag, path);
    if (!is_folder && access(path, F_OK) == 0 && access(path, W_OK) != 0)
        return error_set_errno(FSDP_ERR_INPUT, "--%s=%s cannot be written", flag, path);
    if (!is_folder)
        cut_name(folder);
    while (access(folder, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        cut_name(folder);
    if (!file_is_directory(folder))
        return error_set(FSDP_ERR_INPUT, "--%s=%s cannot be made: %s is not a folder", flag, path, folder);
    if (!can_make_in(folder))
        return error_set_errno(FSDP_ERR_INPUT, "--%s=%s cannot be made: %s", flag, path, folder);
    return FSDP_OK;
}

fsdp_status paths_check(const fsdp_settings *s, const char *checkpoints)
{
    const struct {
        const char *flag, *path;
        bool is_folder;
    } outputs[] = {
        {"output_dir", s->output_dir, true}, {"checkpoint_dir", checkpoints, true},
        {"export_dir", s->export_dir, true}, {"tensorboard_dir", s->tensorboard_dir, true},
        {"metrics", s->metrics, false},      {"log_samples", s->log_samples, false},
        {"trace", s->trace, false},          {"export_adapter", s->export_adapter, true},
    };
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        FSDP_TRY(check_output(outputs[i].flag, outputs[i].path, outputs[i].is_folder));
    if (s->export_dir && ckpt_export_check(s->export_dir) != FSDP_OK) /* not to be found out when training has ended */
        return error_prefix(FSDP_ERR_INPUT, "--export_dir: ");
    return FSDP_OK;
}

/* The path without links, also of something that does not exist yet: what exists of it is resolved, the rest follows
 * name by name. False when it is too long. */
static bool resolve(const char *path, char out[PATH_MAX])
{
    char head[PATH_MAX];
    if (snprintf(head, sizeof head, "%s", path) >= PATH_MAX)
        return false;
    while (access(head, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        cut_name(head);
    if (!realpath(head, out))
        return false;
    size_t used = strlen(out);
    /* "." as the head of a relative path is no part of its text. */
    const char *rest = strncmp(path, head, strlen(head)) == 0 ? path + strlen(head) : path;
    while (*(rest += strspn(rest, "/"))) {
        size_t n = strcspn(rest, "/");
        if (n > 1 || *rest != '.') {
            if (used + n + 2 > PATH_MAX)
                return false;
            used += (size_t)sprintf(out + used, "/%.*s", (int)n, rest);
        }
        rest += n;
    }
    return true;
}

bool paths_are_same(const char *a, const char *b)
{
    char first[PATH_MAX], second[PATH_MAX];
    return resolve(a, first) && resolve(b, second) && strcmp(first, second) == 0;
}
