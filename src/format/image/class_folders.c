/* A folder counts only when all it has are folders with pictures in them: a picture beside text is no data. Pictures
 * beside the folders are left out, as torchvision does; an empty folder is a class that lacks its pictures, an error.
 */
#include "format/image/class_folders.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/image/picture.h"

enum { MAX_CLASSES = 256, RGB = 3 };

/* Byte by byte, whatever the locale says. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void free_entries(struct dirent **entries, int n)
{
    while (n > 0)
        free(entries[--n]);
    free(entries);
}

/* Calls `visit` with every entry of a folder that is not hidden, in order of names, until it says stop or fails. */
static fsdp_status visit_folder(const char *folder, fsdp_status (*visit)(void *context, const char *path, bool *stop),
                                void *context)
{
    struct dirent **entries;
    fsdp_status status = FSDP_OK;
    bool stop = false;
    int n = scandir(folder, &entries, NULL, by_name);
    if (n < 0)
        return error_set_errno(FSDP_ERR_INPUT, "%s: the folder cannot be read", folder);
    for (int i = 0; i < n && status == FSDP_OK && !stop; i++) {
        if (entries[i]->d_name[0] == '.')
            continue;
        char *path = file_join(folder, entries[i]->d_name);
        status = path == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory") : visit(context, path, &stop);
        free(path);
    }
    free_entries(entries, n);
    return status;
}

/* --- finding ----------------------------------------------------------------------------------------------------- */

/* What a look at a folder found. */
typedef struct look {
    bool any;     /* something in the class that is looked at */
    bool picture; /* a picture there */
    bool other;   /* something that classes do not lie beside: then a picture is only an illustration */
    int n_classes;
} look;

static fsdp_status note_picture(void *context, const char *path, bool *stop)
{
    ((look *)context)->any = true;
    *stop = ((look *)context)->picture = picture_is_named_so(path) && !file_is_directory(path);
    return FSDP_OK;
}

static fsdp_status note_class(void *context, const char *path, bool *stop)
{
    look *l = context;
    const char *name = strrchr(path, '/');
    bool about = name != NULL && (strncmp(name, "/README", 7) == 0 || strncmp(name, "/LICENSE", 8) == 0);
    l->picture = l->any = false;
    if (file_is_directory(path))
        FSDP_TRY(visit_folder(path, note_picture, context));
    else
        l->any = !about && !picture_is_named_so(path);
    l->n_classes += l->picture;
    *stop = l->other = !l->picture && l->any;
    return FSDP_OK;
}

static bool has_classes(const char *folder)
{
    look l = {0};
    return file_is_directory(folder) && visit_folder(folder, note_class, &l) == FSDP_OK && !l.other && l.n_classes > 0;
}

/* The folder of the part, malloc'd; NULL where there is none. */
static char *find_part(const char *folder, bool training)
{
    static const char *const names[2][4] = {{"val", "valid", "validation", "test"}, {"train", "training"}};
    for (int i = 0; i < 4 && names[training][i] != NULL; i++) {
        char *path = file_join(folder, names[training][i]);
        if (path != NULL && has_classes(path))
            return path;
        free(path);
    }
    return training && has_classes(folder) ? strdup(folder) : NULL;
}

bool class_folders_has(const char *folder, bool training)
{
    char *part = find_part(folder, training);
    free(part);
    return part != NULL;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

typedef struct reading {
    image_set *set;
    char *first; /* the picture that says the size */
    int64_t capacity;
    bool any; /* a picture in this class */
} reading;

static fsdp_status grow(reading *r, const char *path)
{
    image_set *set = r->set;
    size_t numel = (size_t)set->channels * (size_t)set->height * (size_t)set->width, bytes;
    if (set->n_images < r->capacity)
        return FSDP_OK;
    int64_t larger = r->capacity * 2 + 64;
    if (checked_mul((size_t)larger, numel, &bytes))
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %lld pictures", path, (long long)larger);
    uint8_t *pixels = realloc(set->pixels, bytes);
    set->pixels = pixels != NULL ? pixels : set->pixels;
    uint8_t *labels = realloc(set->labels, (size_t)larger);
    set->labels = labels != NULL ? labels : set->labels;
    if (pixels == NULL || labels == NULL)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for %lld pictures", path, (long long)larger);
    r->capacity = larger;
    return FSDP_OK;
}

static fsdp_status keep_picture(reading *r, const char *path, const picture *p)
{
    image_set *set = r->set;
    if (r->first == NULL) {
        r->first = strdup(path);
        set->channels = RGB;
        set->height = p->height;
        set->width = p->width;
    }
    if (p->height != set->height || p->width != set->width)
        return error_set(FSDP_ERR_INPUT, "%s is %d x %d, but %s is %d x %d: pictures must have one size; resize them",
                         path, p->width, p->height, r->first == NULL ? "the first" : r->first, set->width, set->height);
    FSDP_TRY(grow(r, path));
    size_t plane = (size_t)set->height * (size_t)set->width;
    for (size_t c = 0; c < RGB; c++)
        memcpy(set->pixels + ((size_t)set->n_images * RGB + c) * plane, p->pixels + (p->channels == 1 ? 0 : c) * plane,
               plane);
    set->labels[set->n_images++] = (uint8_t)set->n_classes;
    r->any = true;
    return FSDP_OK;
}

/* Pictures may lie deeper in a class's folder, as torchvision takes them. */
static fsdp_status read_entry(void *context, const char *path, bool *stop)
{
    picture p;
    (void)stop;
    if (file_is_directory(path))
        return visit_folder(path, read_entry, context);
    if (!picture_is_named_so(path))
        return FSDP_OK;
    FSDP_TRY(picture_read(path, &p));
    fsdp_status status = keep_picture(context, path, &p);
    free(p.pixels);
    return status;
}

static fsdp_status read_class(void *context, const char *path, bool *stop)
{
    reading *r = context;
    (void)stop;
    if (!file_is_directory(path))
        return FSDP_OK;
    if (r->set->n_classes == MAX_CLASSES)
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: more than %d classes are not supported", path, MAX_CLASSES);
    r->any = false;
    FSDP_TRY(visit_folder(path, read_entry, context));
    if (!r->any)
        return error_set(FSDP_ERR_INPUT, "%s: the class has no pictures", path);
    r->set->n_classes++;
    return FSDP_OK;
}

fsdp_status class_folders_read(const char *folder, bool training, image_set *out)
{
    *out = (image_set){0};
    reading r = {.set = out};
    char *part = find_part(folder, training);
    fsdp_status status = part == NULL ? error_set(FSDP_ERR_INPUT, "%s: has no folders of pictures for %s", folder,
                                                  training ? "training" : "validation")
                                      : visit_folder(part, read_class, &r);
    free(r.first);
    free(part);
    if (status != FSDP_OK)
        image_set_free(out);
    return status;
}
