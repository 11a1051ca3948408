/* Prints manifests, a line per file and per tensor so that people can read and compare them, and puts the commit marker
 * after them. The same manifest gives the same bytes. */
#include "ckpt/format/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

static bool print_json(FILE *out, const json_t *value)
{
    return json_dumpf(value, out, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) == 0;
}

static bool print_text(FILE *out, const char *text)
{
    json_t *value = json_string(text);
    bool done = value && print_json(out, value);
    json_decref(value);
    return done;
}

static bool print_field(FILE *out, const char *key, const char *text)
{
    fprintf(out, "  \"%s\": ", key);
    bool done = print_text(out, text);
    fputs(",\n", out);
    return done;
}

/* Bytes as hexadecimal digits: half of base64's thrift, none of its rules, and covered by the marker's checksum. */
static void print_autotune(FILE *out, const manifest *m)
{
    if (m->autotune_bytes == 0)
        return;
    fputs(",\n  \"choices\": \"", out);
    for (size_t i = 0; i < m->autotune_bytes; i++)
        fprintf(out, "%02x", m->autotune[i]);
    fputc('"', out);
}

static bool print_tensor(FILE *out, const manifest_tensor *tensor)
{
    fputs("    {\"name\": ", out);
    bool done = print_text(out, tensor->name);
    fprintf(out, ", \"role\": \"%s\", \"shape\": [", ckpt_role_name(tensor->role));
    for (int i = 0; i < tensor->n_dims; i++)
        fprintf(out, i ? ", %" PRId64 : "%" PRId64, tensor->shape[i]);
    fputs("], \"pieces\": [", out);
    for (int i = 0; i < tensor->n_pieces; i++) {
        const manifest_piece *piece = &tensor->pieces[i];
        fprintf(out, "%s[%d, %" PRId64 ", %" PRId64 ", \"%016" PRIx64 "\"]", i ? ", " : "", piece->file, piece->first,
                piece->count, piece->checksum);
    }
    fputs("]}", out);
    return done;
}

static bool print_manifest(FILE *out, const manifest *m)
{
    bool done = true;
    fprintf(out, "{\n  \"format\": \"fsdp-checkpoint\",\n  \"version\": %d,\n  \"kind\": \"%s\",\n", MANIFEST_VERSION,
            ckpt_kind_name(m->kind));
    fprintf(out, "  \"step\": %" PRId64 ",\n  \"world_size\": %d,\n", m->step, m->world_size);
    if (m->save)
        fprintf(out, "  \"save\": \"%016" PRIx64 "\",\n", m->save);
    if (m->commit)
        fprintf(out, "  \"commit\": %" PRId64 ",\n", m->commit);
    if (m->run && *m->run)
        done &= print_field(out, "run", m->run);
    if (m->kind == FSDP_CKPT_LOCAL)
        fprintf(out, "  \"rank\": %d,\n", m->rank);
    done &= print_field(out, "strategy", m->strategy);
    done &= print_field(out, "created", m->created);
    done &= print_field(out, "tokenizer", m->tokenizer);
    fputs("  \"files\": [", out);
    for (int i = 0; i < m->n_files; i++) {
        fprintf(out, "%s\n    {\"name\": ", i ? "," : "");
        done &= print_text(out, m->files[i].name);
        fprintf(out, ", \"bytes\": %" PRId64 "}", m->files[i].bytes);
    }
    if (m->n_beside >= 0) {
        fputs("\n  ],\n  \"beside\": [", out);
        for (int i = 0; i < m->n_beside; i++) {
            fprintf(out, "%s\n    {\"name\": ", i ? "," : "");
            done &= print_text(out, m->beside[i].name);
            fprintf(out, ", \"bytes\": %" PRId64 ", \"checksum\": \"%016" PRIx64 "\"}", m->beside[i].bytes,
                    m->beside[i].checksum);
        }
    }
    fputs("\n  ],\n  \"tensors\": [", out);
    for (int i = 0; i < m->n_tensors; i++) {
        fputs(i ? ",\n" : "\n", out);
        done &= print_tensor(out, &m->tensors[i]);
    }
    fputs("\n  ],\n  \"extra\": ", out);
    done &= print_json(out, m->extra);
    print_autotune(out, m);
    fputs("\n}\n", out);
    return done;
}

fsdp_status manifest_print(const manifest *m, char **text, size_t *bytes)
{
    *text = NULL;
    FILE *out = open_memstream(text, bytes);
    bool done = out && print_manifest(out, m);
    bool failed = out && ferror(out);
    if (out && fclose(out) != 0)
        failed = true;
    if (done && !failed)
        return FSDP_OK;
    free(*text);
    *text = NULL;
    return error_set(FSDP_ERR_STATE, "checkpoint of step %" PRId64 ": out of memory, or a name that is not valid UTF-8",
                     m->step);
}

static fsdp_status write_in(const char *folder, const char *name, const void *data, size_t bytes)
{
    char *path = file_join(folder, name);
    if (!path)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a path", folder);
    fsdp_status status = file_write_atomic(path, data, bytes);
    free(path);
    return status;
}

fsdp_status manifest_write(const char *folder, const manifest *m)
{
    char *text, marker[64];
    size_t bytes;
    hash_stream hash;
    FSDP_TRY(manifest_print(m, &text, &bytes));
    hash_stream_start(&hash);
    hash_stream_add(&hash, text, bytes);
    fsdp_status status = write_in(folder, MANIFEST_NAME, text, bytes);
    free(text);
    FSDP_TRY(status);
    int length = snprintf(marker, sizeof marker, "fsdp-checkpoint %d %016" PRIx64 "\n", MANIFEST_VERSION,
                          hash_stream_end(&hash));
    return write_in(folder, MARKER_NAME, marker, (size_t)length);
}
