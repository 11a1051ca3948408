/* fsdp_checkpoint_export, _import, _reshard: writes a checkpoint or model folder from another one, in one process that
 * plays all ranks in turn. Streams through the same writer as training does; checksums of the source are checked first.
 */
#include <fsdp/checkpoint.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sized.h"
#include "ckpt/save/folder_files.h"
#include "ckpt/load/base.h"
#include "ckpt/load/pieces.h"
#include "ckpt/commands/merge.h"
#include "ckpt/commands/pytorch.h"
#include "ckpt/commands/report.h"
#include "ckpt/save/save_task.h"
#include "device/int8_block.h"

/* A source as the state of some rank. */
typedef struct converter {
    ckpt_source *source;
    char *path; /* of the source, resolved */
    json_t *model;
    char *tokenizer; /* NULL: none known */
    bool tokenizer_in_checkpoint;
    bool lacks_tokenizer; /* training had one, and its files are not in the checkpoint */
    ckpt_state state;
    ckpt_tensor *tensors;
    const source_tensor **sources; /* (n_tensors) */
    ckpt_slice *slices;
    json_t *extra;
    int64_t step;
    bool has_optimizer; /* imported with the state of one */
    merge adapters;     /* of exports: added to what is read */
} converter;

static fsdp_status out_of_memory(const char *path)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while converting", path);
}

static fsdp_status read_source(void *context, const ckpt_slice *slice, int64_t first, int64_t n, float *out)
{
    const converter *c = context;
    FSDP_TRY(source_read(c->sources[slice->tensor], slice->first + first, n, out));
    return merge_add(&c->adapters, c->sources[slice->tensor], slice->first + first, n, out);
}

static fsdp_status never_written(void *context, const ckpt_slice *slice, int64_t first, int64_t n, const float *in)
{
    (void)context, (void)slice, (void)first, (void)n, (void)in;
    return error_set(FSDP_ERR_STATE, "a source is only read");
}

static fsdp_status verify_source(const ckpt_source *source)
{
    piece_list list = {0};
    fsdp_status status = source_manifest(source) ? piece_list_add_all(&list, source) : FSDP_OK;
    if (status == FSDP_OK)
        status = piece_list_run(&list, &(piece_config){.verify = true});
    piece_list_free(&list);
    return status;
}

/* Where tokenizer files are: where the user says, or in the folder itself. Where training had them is only said: a
 * manifest may be anyone's, and name any file of this machine. */
static fsdp_status choose_tokenizer(converter *c, const char *wanted)
{
    const manifest *m = source_manifest(c->source);
    bool own = !wanted && file_is_directory(c->path) && folder_has_tokenizer(c->path);
    if (wanted && !file_exists(wanted))
        return error_set(FSDP_ERR_INPUT, "%s: no such folder with tokenizer files", wanted);
    c->tokenizer_in_checkpoint = own && m;
    if (!wanted && !own) {
        c->lacks_tokenizer = m && *m->tokenizer;
        return FSDP_OK;
    }
    c->tokenizer = strdup(own ? c->path : wanted);
    return c->tokenizer ? FSDP_OK : out_of_memory(c->path);
}

/* What training goes on with after an import: PyTorch's checkpoints have an optimizer, and no position in the data. */
static json_t *import_extra(converter *c)
{
    double lr;
    c->has_optimizer = source_optimizer(c->source, &c->step, &lr);
    if (!c->has_optimizer)
        return json_pack("{s:s}", "imported_from", c->path);
    return json_pack("{s:s, s:I, s:I, s:I, s:f}", "imported_from", c->path, "step", (json_int_t)c->step,
                     "optimizer_steps", (json_int_t)c->step, "position", (json_int_t)0, "lr", lr);
}

static bool is_float(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16 || dtype == FSDP_F64;
}

/* Counters and indices (num_batches_tracked, position_ids) are nothing that is trained: each is named and left out.
 * Other types may be quantized weights, without which a model is not whole. */
static fsdp_status take_values(converter *c)
{
    for (int i = 0; i < source_count(c->source); i++) {
        const source_tensor *tensor = source_at(c->source, i);
        const safetensors_tensor *stored = tensor->n_pieces > 0 ? tensor->pieces[0].stored : NULL;
        if (merge_hides(&c->adapters, tensor))
            continue;
        if (!stored || is_float(stored->dtype))
            c->sources[c->state.n_tensors++] = tensor;
        else if (stored->dtype == FSDP_I64 || stored->dtype == FSDP_I32)
            log_write(FSDP_LOG_WARNING, "%s: left out: %s holds whole numbers (%s)", c->path, tensor->name,
                      stored->dtype_name);
        else
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: element type %s is not supported", c->path, tensor->name,
                             stored->dtype_name);
    }
    return FSDP_OK;
}

static fsdp_status describe(converter *c)
{
    int n = source_count(c->source);
    c->tensors = calloc((size_t)n + 1, sizeof *c->tensors);
    c->sources = calloc((size_t)n + 1, sizeof *c->sources);
    c->slices = calloc((size_t)n + 1, sizeof *c->slices);
    if (!c->tensors || !c->sources || !c->slices)
        return out_of_memory(c->path);
    c->state = (ckpt_state)CKPT_STATE_INIT;
    FSDP_TRY(take_values(c));
    for (int i = 0; i < c->state.n_tensors; i++) {
        const source_tensor *tensor = c->sources[i];
        c->tensors[i] = (ckpt_tensor){.name = tensor->name, .role = tensor->role, .n_dims = tensor->n_dims};
        memcpy(c->tensors[i].shape, tensor->shape, sizeof c->tensors[i].shape);
    }
    const manifest *m = source_manifest(c->source);
    c->extra = m ? json_incref(m->extra) : import_extra(c);
    c->state.tensors = c->tensors;
    c->state.slices = c->slices;
    c->state.extra = c->extra;
    c->state.read = read_source;
    c->state.write = never_written;
    c->state.context = c;
    c->state.autotune = m ? m->autotune : NULL;
    c->state.autotune_bytes = m ? m->autotune_bytes : 0;
    c->step = m ? m->step : c->step;
    return c->extra ? FSDP_OK : out_of_memory(c->path);
}

/* The even share of `rank` of every tensor, in whole blocks: a frozen weight may be loaded as blocks of 8 bits. */
static void cut(converter *c, int rank, int world_size)
{
    c->state.n_slices = 0;
    for (int i = 0; i < c->state.n_tensors; i++) {
        int64_t numel = c->sources[i]->numel, blocks = ceil_div(numel, INT8_BLOCK);
        int64_t share = ceil_div(blocks, world_size) * INT8_BLOCK;
        int64_t first = min_i64(numel, share * rank), end = min_i64(numel, share * (rank + 1));
        if (first < end)
            c->slices[c->state.n_slices++] =
                (ckpt_slice){.tensor = i, .first = first, .count = end - first, .writes = true};
    }
}

static void converter_close(converter *c)
{
    merge_close(&c->adapters);
    json_decref(c->extra);
    json_decref(c->model);
    free(c->slices);
    free(c->sources);
    free(c->tensors);
    free(c->tokenizer);
    source_close(c->source);
    free(c->path);
}

static bool is_format(const fsdp_checkpoint_export_config *export, const char *format)
{
    return strcmp(export->format ? export->format : "hf", format) == 0;
}

/* For an export, NULL otherwise: the base is joined, the average takes the weights' place, adapters are added to them.
 */
static fsdp_status converter_open(converter *c, const char *path, const fsdp_checkpoint_export_config *export)
{
    *c = (converter){0};
    FSDP_TRY(report_resolve(path, &c->path));
    FSDP_TRY(source_open(c->path, &c->source));
    const manifest *m = source_manifest(c->source);
    if (m && m->kind == FSDP_CKPT_LOCAL)
        return error_set(FSDP_ERR_INPUT,
                         "%s: a local checkpoint is one rank's; load it by that rank and save it sharded", c->path);
    FSDP_TRY(verify_source(c->source));
    FSDP_TRY(folder_check_beside(c->source));
    if (export && !is_format(export, "peft")) {
        FSDP_TRY(base_join(c->source, export->base));
        FSDP_TRY(base_verify(c->source));
    }
    if (export && export->average)
        FSDP_TRY(source_take_average(c->source));
    if (file_is_directory(c->path))
        FSDP_TRY(folder_read_config(c->path, &c->model));
    if (export)
        FSDP_TRY(merge_open(c->source, c->model, export->adapters, &c->adapters));
    FSDP_TRY(describe(c));
    return choose_tokenizer(c, export ? export->tokenizer : NULL);
}

/* ---- Writing ---- */

/* All parts but rank 0's; the directory is rank 0's task's. */
static fsdp_status write_other_parts(converter *c, const ckpt_save_config *config, const char *id, int world_size)
{
    for (int rank = 1; rank < world_size; rank++) {
        save_task *task = NULL;
        cut(c, rank, world_size);
        FSDP_TRY(save_task_create(config, &c->state, false, FSDP_F32, rank, world_size, &task));
        memcpy(task->id, id, sizeof task->id);
        fsdp_status status = save_task_begin(task, NULL);
        if (status == FSDP_OK)
            status = save_task_write_part(task);
        save_task_free(task);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* A checkpoint of that step is replaced only by the same in another form: the same tensors and training state. In the
 * folder of a run it would hide the run's own, which lie further down. */
static fsdp_status check_destination(const converter *c, const char *directory, int64_t step)
{
    char *path = ckpt_directory_path(directory, step, -1), *run = file_join(directory, "run.json"), *text = NULL;
    bool same = true;
    json_t *report = NULL;
    fsdp_status status = path && run ? FSDP_OK : out_of_memory(directory);
    if (status == FSDP_OK && file_exists(run))
        status = error_set(FSDP_ERR_INPUT,
                           "%s: is the folder of a run, whose checkpoints this one would hide; choose another "
                           "directory, or %s/checkpoints",
                           directory, directory);
    if (status == FSDP_OK && file_exists(path)) {
        status = fsdp_checkpoint_diff(c->path, path, 0, true, &same, &text);
        if (status == FSDP_OK)
            status = json_parse(path, text, strlen(text), &report);
        same = status == FSDP_OK && same && !json_is_false(json_object_get(report, "same_state"));
    }
    if (status != FSDP_ERR_MEMORY && !same)
        status =
            error_set(FSDP_ERR_INPUT,
                      "%s: is there already and holds something else; choose another directory, or move it away", path);
    json_decref(report);
    free(text);
    free(run);
    free(path);
    return status;
}

static fsdp_status write_checkpoint(converter *c, const ckpt_save_config *config, int world_size, char *path,
                                    size_t room)
{
    save_task *task = NULL;
    fsdp_status status;
    cut(c, 0, world_size);
    FSDP_TRY(save_task_create(config, &c->state, false, FSDP_F32, 0, world_size, &task));
    TRY_OR(done, save_task_begin(task, NULL));
    TRY_OR(end, save_task_write_part(task));
    TRY_OR(end, write_other_parts(c, config, task->id, world_size));
    status = save_task_commit(task);
end:
    status = save_task_end(task, status, NULL);
    snprintf(path, room, "%s", task->final);
done:
    save_task_free(task);
    return status;
}

/* What was written, at `path`. */
static json_t *done_json(const converter *c, const char *path, const char *kind, unsigned roles)
{
    const manifest *m = source_manifest(c->source);
    int n_tensors = 0;
    for (int i = 0; i < c->state.n_tensors; i++)
        n_tensors += (roles & CKPT_ROLE_BIT(c->state.tensors[i].role)) != 0;
    json_t *report =
        json_pack("{s:s, s:s, s:s, s:i}", "path", path, "kind", kind, "source", c->path, "tensors", n_tensors);
    if (report && c->has_optimizer)
        json_object_set_new(report, "optimizer_steps", json_integer((json_int_t)c->step));
    if (report && c->lacks_tokenizer)
        json_object_set_new(report, "tokenizer_not_copied", json_string(m->tokenizer));
    return report;
}

static void print_done(FILE *out, const json_t *report)
{
    const char *lacks = report_string(report, "tokenizer_not_copied");
    fprintf(out, "%s: %s\n  from %s\n  %" PRId64 " tensors\n", report_string(report, "path"),
            report_string(report, "kind"), report_string(report, "source"), report_int(report, "tensors"));
    if (json_object_get(report, "optimizer_steps"))
        fprintf(out, "  with its optimizer after %" PRId64 " steps; a run that resumes begins with the first sample\n",
                report_int(report, "optimizer_steps"));
    if (*lacks)
        fprintf(out, "  no tokenizer files: training had them in %s; if you trust that, add --tokenizer %s\n", lacks,
                lacks);
}

static fsdp_status convert(const fsdp_checkpoint_convert_config *given, bool import, char **text)
{
    converter c;
    char path[1200];
    ckpt_save_config save = CKPT_SAVE_CONFIG_INIT;
    *text = NULL;
    SIZED_READ(fsdp_checkpoint_convert_config, FSDP_CHECKPOINT_CONVERT_CONFIG_INIT, full, given);
    const fsdp_checkpoint_convert_config *config = &full;
    if (!config->source || !config->destination || config->world_size < 1 || config->world_size > 99999)
        return error_set(FSDP_ERR_INPUT, "a source, a destination and a world size of 1 to 99999 are needed");
    FSDP_TRY(ckpt_kind_parse(config->kind, &save.kind));
    if (save.kind == FSDP_CKPT_LOCAL)
        return error_set(FSDP_ERR_INPUT, "only a training job writes local checkpoints; use sharded or full");
    fsdp_status status = converter_open(&c, config->source, NULL);
    const manifest *m = status == FSDP_OK ? source_manifest(c.source) : NULL;
    if (status == FSDP_OK && import && m)
        status = error_set(FSDP_ERR_INPUT,
                           "%s: is a checkpoint already; import takes Hugging Face folders and what PyTorch wrote, "
                           "reshard takes checkpoints",
                           c.path);
    if (status == FSDP_OK && !import && !m)
        status = error_set(FSDP_ERR_INPUT, "%s: is a model folder, no checkpoint; import takes it", c.path);
    if (status == FSDP_OK && source_count(c.source) == 0)
        status = error_set(FSDP_ERR_INPUT, "%s: holds no tensor of floating-point numbers", c.path);
    if (status == FSDP_OK)
        status = check_destination(&c, config->destination, c.step);
    if (status == FSDP_OK) {
        save.directory = config->destination;
        save.step = c.step;
        save.strategy = m ? m->strategy : "";
        save.model = c.model;
        save.tokenizer = c.tokenizer;
        save.tokenizer_in_checkpoint = c.tokenizer_in_checkpoint;
        save.tokenizer_name = m ? m->tokenizer : NULL;
        status = write_checkpoint(&c, &save, save.kind == FSDP_CKPT_FULL ? 1 : config->world_size, path, sizeof path);
    }
    if (status == FSDP_OK)
        status =
            report_text(done_json(&c, path, ckpt_kind_name(save.kind), CKPT_ROLES_ALL), config->json, print_done, text);
    converter_close(&c);
    return status;
}

fsdp_status fsdp_checkpoint_reshard(const fsdp_checkpoint_convert_config *config, char **text)
{
    return convert(config, false, text);
}

fsdp_status fsdp_checkpoint_import(const fsdp_checkpoint_convert_config *config, char **text)
{
    return convert(config, true, text);
}

static fsdp_status export_adapter(const converter *c, const fsdp_checkpoint_export_config *config, const char **kind)
{
    const adapter *own = merge_own(&c->adapters, c->model);
    *kind = "adapter";
    if (!own)
        return error_set(FSDP_ERR_INPUT, "%s: was not trained with adapters (--lora_rank)", c->path);
    const json_t *flags = json_object_get(c->extra, "flags");
    base_reference reference;
    const char *base =
        base_refers(c->source, &reference) ? reference.name : json_string_value(json_object_get(flags, "init_from"));
    bool encodes = json_is_true(json_object_get(c->model, "is_encoder_decoder"));
    return adapter_write(own, config->destination, encodes ? "SEQ_2_SEQ_LM" : "CAUSAL_LM", base);
}

/* Writes in the format that was asked for; `kind` is what that is, for the report. */
static fsdp_status export_as(converter *c, const fsdp_checkpoint_export_config *config, const char **kind)
{
    ckpt_save_config save = CKPT_SAVE_CONFIG_INIT;
    if (is_format(config, "peft"))
        return export_adapter(c, config, kind);
    if (!is_format(config, "hf") && c->adapters.n > 0)
        return error_set(FSDP_ERR_INPUT,
                         "%s: has adapters; hf writes the model with them merged, peft the adapter alone", c->path);
    if (is_format(config, "pt")) {
        *kind = "PyTorch file";
        return pytorch_write_file(c->source, config->dtype, config->destination);
    }
    if (is_format(config, "dcp")) {
        *kind = "PyTorch checkpoint";
        return pytorch_write_folder(c->source, config->dtype, config->world_size > 0 ? config->world_size : 1,
                                    config->destination);
    }
    if (!is_format(config, "hf"))
        return error_set(FSDP_ERR_INPUT, "\"%s\" is no format of exports: hf, pt, dcp or peft", config->format);
    FSDP_TRY(merge_check_own(&c->adapters, c->source, c->model));
    *kind = "model folder";
    if (c->adapters.n > 0)
        json_object_del(c->model, ADAPTER_KEY);
    cut(c, 0, 1);
    save.directory = config->destination;
    save.model = c->model;
    save.tokenizer = c->tokenizer;
    save.tokenizer_in_checkpoint = c->tokenizer_in_checkpoint;
    save.max_file_bytes = config->max_file_bytes;
    return ckpt_export(&save, &c->state, config->dtype, NULL);
}

fsdp_status fsdp_checkpoint_export(const fsdp_checkpoint_export_config *given, char **text)
{
    converter c;
    const char *kind = NULL;
    *text = NULL;
    SIZED_READ(fsdp_checkpoint_export_config, FSDP_CHECKPOINT_EXPORT_CONFIG_INIT, full, given);
    const fsdp_checkpoint_export_config *config = &full;
    if (!config->source || !config->destination || !*config->destination)
        return error_set(FSDP_ERR_INPUT, "an export needs a source and a destination");
    if (config->max_file_bytes < 1 || config->world_size < 0 || config->world_size > 99999)
        return error_set(FSDP_ERR_INPUT,
                         "an export needs a max_file_size of at least 1 and a world_size of 0 to 99999");
    fsdp_status status = converter_open(&c, config->source, config);
    if (status == FSDP_OK)
        status = export_as(&c, config, &kind);
    if (status == FSDP_OK)
        status =
            report_text(done_json(&c, config->destination, kind, CKPT_ROLES_MODEL), config->json, print_done, text);
    converter_close(&c);
    return status;
}
