/* What is called how in PyTorch: tensors, optimizer state, the options of an optimizer. The bytes are format/torch's.
 */
#include "ckpt/commands/pytorch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/save/export_place.h"
#include "ckpt/save/owner.h"
#include "format/torch/dcp_writer.h"

enum { AT_ONCE = 1 << 18 }; /* elements that are read, rounded and written at a time */

/* ---- Elements ---- */

typedef struct pump {
    float values[AT_ONCE];
    uint8_t rounded[AT_ONCE * sizeof(float)];
} pump;

typedef fsdp_status (*sink)(void *to, const void *data, size_t bytes);

static fsdp_status to_zip(void *to, const void *data, size_t bytes)
{
    return zip_writer_write(to, data, bytes);
}

static fsdp_status to_chunk(void *to, const void *data, size_t bytes)
{
    return dcp_writer_write(to, data, bytes);
}

static fsdp_status pump_elements(pump *p, const source_tensor *tensor, int64_t first, int64_t n, fsdp_dtype dtype,
                                 sink write, void *to)
{
    for (int64_t done = 0; done < n; done += AT_ONCE) {
        int64_t now = min_i64(AT_ONCE, n - done);
        safetensors_tensor values = {
            .name = tensor->name, .path = "", .dtype = FSDP_F32, .numel = now, .data = (const uint8_t *)p->values};
        FSDP_TRY(source_read(tensor, first + done, now, p->values));
        FSDP_TRY(safetensors_read(&values, 0, now, dtype, p->rounded));
        FSDP_TRY(write(to, p->rounded, (size_t)now * fsdp_dtype_size(dtype)));
    }
    return FSDP_OK;
}

static bool is_model(const source_tensor *tensor)
{
    return CKPT_ROLES_MODEL & CKPT_ROLE_BIT(tensor->role);
}

static fsdp_status make_pump(const char *path, pump **out)
{
    *out = malloc(sizeof **out);
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory to write it", path);
}

/* ---- A file ---- */

static fsdp_status pickle_state_dict(const ckpt_source *source, const torch_element *element, pickle_writer *w)
{
    char key[32];
    size_t n = 0;
    pickle_begin(w);
    pickle_put_global(w, "collections", "OrderedDict");
    pickle_put(w, ")R(");
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        if (!is_model(tensor))
            continue;
        snprintf(key, sizeof key, "%zu", n++);
        pickle_put_text(w, tensor->name);
        pickle_put_tensor(w, element, key, tensor->n_dims, tensor->shape);
    }
    pickle_put(w, "u");
    return pickle_end(w);
}

static fsdp_status write_storages(const ckpt_source *source, fsdp_dtype dtype, pump *p, zip_writer *zip)
{
    size_t n = 0;
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        if (!is_model(tensor))
            continue;
        FSDP_TRY(archive_storage(zip, n++, (uint64_t)tensor->numel * fsdp_dtype_size(dtype)));
        FSDP_TRY(pump_elements(p, tensor, 0, tensor->numel, dtype, to_zip, zip));
    }
    return FSDP_OK;
}

static fsdp_status write_archive(const ckpt_source *source, fsdp_dtype dtype, pump *p, file_writer *file)
{
    pickle_writer pickle = {0};
    zip_writer *zip = NULL;
    uint64_t end;
    fsdp_status status = pickle_state_dict(source, torch_element_find(dtype), &pickle);
    if (status == FSDP_OK)
        status = archive_begin(file, 0, &pickle, &zip);
    pickle_writer_free(&pickle);
    FSDP_TRY(status);
    status = write_storages(source, dtype, p, zip);
    if (status == FSDP_OK)
        return archive_finish(zip, &end);
    zip_writer_free(zip);
    return status;
}

static fsdp_status make_parent(const char *path)
{
    char *parent = file_parent(path);
    fsdp_status status = parent ? file_make_directories(parent) : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    free(parent);
    return status;
}

fsdp_status pytorch_write_file(const ckpt_source *source, fsdp_dtype dtype, const char *path)
{
    pump *p;
    file_writer *file;
    if (file_exists(path))
        return error_set(FSDP_ERR_INPUT, "%s: is there already; choose another path, or move it away", path);
    FSDP_TRY(make_parent(path));
    FSDP_TRY(file_writer_create(path, &file));
    fsdp_status status = make_pump(path, &p);
    if (status == FSDP_OK)
        status = write_archive(source, dtype, p, file);
    free(p);
    return file_writer_finish(file, status);
}

/* ---- A folder: tensors ---- */

/* What training remembers beside tensors, in PyTorch's words. */
typedef struct optimizer_options {
    bool adam, decoupled;
    double lr, beta1, beta2, eps, weight_decay, momentum;
    int64_t steps;
} optimizer_options;

typedef struct folder_writer {
    const ckpt_source *source;
    fsdp_dtype dtype;
    int n_files;
    dcp_writer *out;
    pump *pump;
    optimizer_options options;
    save_owner *owner;
} folder_writer;

/* Rows of dimension 0, shared out evenly as torch.chunk does; a scalar goes into the first file. */
static fsdp_status write_rows(folder_writer *w, const source_tensor *tensor, fsdp_dtype dtype)
{
    int64_t rows = tensor->n_dims > 0 ? tensor->shape[0] : 1, share = ceil_div(rows, w->n_files);
    int64_t row_numel = rows > 0 ? tensor->numel / rows : 0;
    for (int file = 0; file < w->n_files; file++) {
        int64_t first = min_i64(rows, file * share), n = min_i64(rows, first + share) - first;
        int64_t offsets[CKPT_MAX_DIMS] = {first}, sizes[CKPT_MAX_DIMS];
        if (n == 0 && file > 0) /* an empty tensor is one empty chunk */
            continue;
        memcpy(sizes, tensor->shape, sizeof sizes);
        sizes[0] = n;
        FSDP_TRY(dcp_writer_chunk(w->out, file, offsets, sizes));
        if (n * row_numel > 0)
            FSDP_TRY(pump_elements(w->pump, tensor, first * row_numel, n * row_numel, dtype, to_chunk, w->out));
    }
    return FSDP_OK;
}

static fsdp_status write_steps(folder_writer *w, const source_tensor *tensor)
{
    const char *path[] = {"optim", "state", tensor->name, "step"};
    const int64_t none[1] = {0};
    float steps = (float)w->options.steps;
    FSDP_TRY(dcp_writer_tensor(w->out, path, 4, torch_element_find(FSDP_F32), 0, none));
    FSDP_TRY(dcp_writer_chunk(w->out, 0, none, none));
    return dcp_writer_write(w->out, &steps, sizeof steps);
}

/* Adam has both moments; SGD and Muon, whose matrices stand beside AdamW's parameters, have one. */
static const char *moment_name(const folder_writer *w, const source_tensor *tensor)
{
    if (tensor->role == CKPT_ROWS || tensor->role == CKPT_COLUMNS) /* as transformers' Adafactor has them */
        return tensor->role == CKPT_ROWS ? "exp_avg_sq_row" : "exp_avg_sq_col";
    if (tensor->role != CKPT_MOMENT1)
        return "exp_avg_sq";
    return source_find(w->source, CKPT_MOMENT2, tensor->name) ? "exp_avg" : "momentum_buffer";
}

static fsdp_status write_tensor(folder_writer *w, const source_tensor *tensor)
{
    fsdp_dtype dtype = is_model(tensor) ? w->dtype : FSDP_F32;
    const char *model[] = {"model", tensor->name};
    const char *state[] = {"optim", "state", tensor->name, moment_name(w, tensor)};
    const char *average[] = {"ema", tensor->name};
    const char *const *path = is_model(tensor) ? model : tensor->role == CKPT_AVERAGE ? average : state;
    if (tensor->role == CKPT_OTHER)
        return error_set(FSDP_ERR_INPUT, "%s: state of the optimizer that PyTorch has no name for", tensor->name);
    FSDP_TRY(dcp_writer_tensor(w->out, path, path == state ? 4 : 2, torch_element_find(dtype), tensor->n_dims,
                               tensor->shape));
    FSDP_TRY(write_rows(w, tensor, dtype));
    return tensor->role == CKPT_MOMENT1 && source_find(w->source, CKPT_MOMENT2, tensor->name) ? write_steps(w, tensor)
                                                                                              : FSDP_OK;
}

/* ---- A folder: the options of the optimizer, by group and by parameter ---- */

static double number_of(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

static optimizer_options read_options(const ckpt_source *source)
{
    const manifest *m = source_manifest(source);
    const json_t *extra = m ? m->extra : NULL, *flags = json_object_get(extra, "flags");
    optimizer_options o = {.adam = source_has_role(source, CKPT_MOMENT2)};
    const char *kind = json_string_value(json_object_get(flags, "optimizer"));
    o.decoupled = !kind || strcmp(kind, "adam") != 0;
    o.lr = number_of(extra, "lr", number_of(flags, "lr", 1e-3));
    o.beta1 = number_of(flags, "beta1", 0.9);
    o.beta2 = number_of(flags, "beta2", 0.999);
    o.eps = number_of(flags, "eps", 1e-8);
    o.weight_decay = number_of(flags, "weight_decay", 0);
    o.momentum = number_of(flags, "momentum", 0.9);
    o.steps = json_integer_value(json_object_get(extra, "optimizer_steps"));
    if (!flags && source_has_role(source, CKPT_MOMENT1))
        log_write(FSDP_LOG_WARNING,
                  "%s does not say its optimizer's options: betas, eps and weight decay are written as 0.9, 0.999, "
                  "1e-8 and 0; set yours after loading",
                  source_path(source));
    return o;
}

enum { OPTION_NUMBER, OPTION_PAIR, OPTION_FALSE, OPTION_TRUE, OPTION_NONE };

typedef struct option {
    const char *name;
    int kind;
    double value, second;
} option;

enum { MAX_OPTIONS = 12 };

static int list_options(const optimizer_options *o, bool decays, option *out)
{
    double decay = decays ? o->weight_decay : 0;
    const option adam[] = {{"lr", OPTION_NUMBER, o->lr, 0},
                           {"betas", OPTION_PAIR, o->beta1, o->beta2},
                           {"eps", OPTION_NUMBER, o->eps, 0},
                           {"weight_decay", OPTION_NUMBER, decay, 0},
                           {"amsgrad", OPTION_FALSE, 0, 0},
                           {"maximize", OPTION_FALSE, 0, 0},
                           {"foreach", OPTION_NONE, 0, 0},
                           {"capturable", OPTION_FALSE, 0, 0},
                           {"differentiable", OPTION_FALSE, 0, 0},
                           {"fused", OPTION_NONE, 0, 0},
                           {"decoupled_weight_decay", o->decoupled ? OPTION_TRUE : OPTION_FALSE, 0, 0}};
    const option sgd[] = {{"lr", OPTION_NUMBER, o->lr, 0},    {"momentum", OPTION_NUMBER, o->momentum, 0},
                          {"dampening", OPTION_NUMBER, 0, 0}, {"weight_decay", OPTION_NUMBER, decay, 0},
                          {"nesterov", OPTION_FALSE, 0, 0},   {"maximize", OPTION_FALSE, 0, 0},
                          {"foreach", OPTION_NONE, 0, 0},     {"differentiable", OPTION_FALSE, 0, 0},
                          {"fused", OPTION_NONE, 0, 0}};
    int n = o->adam ? (int)(sizeof adam / sizeof *adam) : (int)(sizeof sgd / sizeof *sgd);
    memcpy(out, o->adam ? adam : sgd, (size_t)n * sizeof *out);
    return n;
}

static void pickle_option(pickle_writer *w, const option *o)
{
    pickle_begin(w);
    if (o->kind == OPTION_NUMBER || o->kind == OPTION_PAIR)
        pickle_put_float(w, o->value);
    if (o->kind == OPTION_PAIR) {
        pickle_put_float(w, o->second);
        pickle_put(w, "\x86");
    }
    if (o->kind == OPTION_FALSE || o->kind == OPTION_TRUE)
        pickle_put_bool(w, o->kind == OPTION_TRUE);
    if (o->kind == OPTION_NONE)
        pickle_put(w, "N");
}

/* `of`: the number of a group, or the name of a parameter. */
static fsdp_status write_options(folder_writer *w, const char *of, bool decays)
{
    option options[MAX_OPTIONS];
    pickle_writer value = {0};
    fsdp_status status = FSDP_OK;
    int n = list_options(&w->options, decays, options);
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        pickle_option(&value, &options[i]);
        status = pickle_end(&value);
        if (status == FSDP_OK)
            status =
                dcp_writer_value(w->out, (const char *[]){"optim", "param_groups", of, options[i].name}, 4, &value);
    }
    pickle_writer_free(&value);
    return status;
}

/* Parameters of two or more dimensions decay (fsdp/optim.h). */
static bool decays(const source_tensor *tensor)
{
    return tensor->n_dims >= 2;
}

static fsdp_status write_group(folder_writer *w, const char *number, bool of_decaying, bool all)
{
    pickle_writer names = {0};
    pickle_begin(&names);
    pickle_put(&names, "](");
    for (int i = 0; i < source_count(w->source); i++) {
        const source_tensor *tensor = source_at(w->source, i);
        if (tensor->role == CKPT_MOMENT1 && (all || decays(tensor) == of_decaying))
            pickle_put_text(&names, tensor->name);
    }
    pickle_put(&names, "e");
    fsdp_status status = pickle_end(&names);
    if (status == FSDP_OK)
        status = dcp_writer_value(w->out, (const char *[]){"optim", "param_groups", number, "params"}, 4, &names);
    pickle_writer_free(&names);
    return status == FSDP_OK ? write_options(w, number, of_decaying) : status;
}

/* Nested state dicts have groups, flat ones the options of each parameter; a reader takes those it asks for. */
static fsdp_status write_groups(folder_writer *w)
{
    bool kinds[2] = {false, false};
    for (int i = 0; i < source_count(w->source); i++) {
        const source_tensor *tensor = source_at(w->source, i);
        if (tensor->role != CKPT_MOMENT1)
            continue;
        kinds[decays(tensor)] = true;
        FSDP_TRY(write_options(w, tensor->name, decays(tensor)));
    }
    if (!kinds[0] && !kinds[1])
        return FSDP_OK;
    bool two = kinds[0] && kinds[1] && w->options.weight_decay != 0;
    FSDP_TRY(write_group(w, "0", kinds[1], !two));
    return two ? write_group(w, "1", false, false) : FSDP_OK;
}

/* ---- A folder ---- */

static fsdp_status write_all(folder_writer *w)
{
    for (int i = 0; i < source_count(w->source); i++)
        FSDP_TRY(write_tensor(w, source_at(w->source, i)));
    return write_groups(w);
}

static fsdp_status fill_folder(folder_writer *w, const char *folder)
{
    FSDP_TRY(file_make_directories(folder));
    FSDP_TRY(owner_take(folder, &w->owner));
    FSDP_TRY(dcp_writer_create(folder, w->n_files, &w->out));
    fsdp_status status = write_all(w);
    if (status == FSDP_OK)
        return dcp_writer_commit(w->out);
    dcp_writer_abort(w->out);
    return status;
}

fsdp_status pytorch_write_folder(const ckpt_source *source, fsdp_dtype dtype, int n_files, const char *folder)
{
    folder_writer w = {.source = source, .dtype = dtype, .n_files = n_files, .options = read_options(source)};
    char *temporary = NULL;
    bool ours = false;
    export_place_sweep(folder);
    if (file_exists(folder) && rmdir(folder) != 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s: is there already and not an empty folder; choose another path, or move it", folder);
    if (asprintf(&temporary, "%s.tmp-%ld", folder, (long)getpid()) < 0)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
    fsdp_status status = make_pump(folder, &w.pump);
    if (status == FSDP_OK && file_exists(temporary))
        status = error_set(FSDP_ERR_INPUT, "%s: is in the way; remove it", temporary);
    else if (status == FSDP_OK) {
        ours = true;
        status = fill_folder(&w, temporary);
    }
    if (status == FSDP_OK)
        owner_remove(temporary);
    if (status == FSDP_OK && rename(temporary, folder) != 0) {
        bool taken = errno == ENOTEMPTY || errno == EEXIST;
        status = taken ? error_set(FSDP_ERR_INPUT, "%s: somebody else has put something there meanwhile", folder)
                       : error_set_errno(FSDP_ERR_IO, "%s: cannot be renamed to %s", temporary, folder);
    }
    if (status == FSDP_OK)
        status = file_sync_parent(folder);
    else if (ours)
        (void)file_remove_tree(temporary);
    owner_release(w.owner);
    free(w.pump);
    free(temporary);
    return status;
}
