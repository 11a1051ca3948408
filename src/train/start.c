/* What a run is about to do, in one block before its first step: model, data, tokenizer, steps, sharding and why,
 * memory, folder. And a fingerprint of the data, so that a resumed run notices other data. */
#include "train/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/dataset.h"
#include "observe/units.h"
#include "plan/workload.h"

enum { FINGERPRINT_SAMPLES = 64 };

/* ---- Fingerprint ---- */

static fsdp_status hash_samples(const train_run *run, char *memory, void **fields, uint64_t *hash)
{
    int64_t n = run->info.n_samples, some = min_i64(n, FINGERPRINT_SAMPLES);
    for (int64_t i = 0; i < some; i++) {
        char *at = memory;
        for (int k = 0; k < run->info.n_fields; k++) {
            fields[k] = at;
            at += round_up((int64_t)field_bytes(&run->info.fields[k]), 64);
        }
        memset(memory, 0, (size_t)(at - memory));
        FSDP_TRY(fsdp_dataset_read(run->data, i * n / some, fields));
        *hash = hash_bytes(*hash, memory, (size_t)(at - memory));
    }
    return FSDP_OK;
}

/* Of the number of samples and of some of them, spread over the data. Streams compare their files instead. */
fsdp_status run_fingerprint(train_run *run)
{
    size_t bytes = 64;
    uint64_t hash = hash_u64(HASH_START, (uint64_t)run->info.n_samples);
    run->fingerprint[0] = '\0';
    if (!run->data || run->info.stream || run->info.n_fields == 0)
        return FSDP_OK;
    for (int k = 0; k < run->info.n_fields; k++)
        bytes += (size_t)round_up((int64_t)field_bytes(&run->info.fields[k]), 64);
    char *memory = aligned_alloc(64, (size_t)round_up((int64_t)bytes, 64));
    void **fields = calloc((size_t)run->info.n_fields, sizeof *fields);
    fsdp_status status = memory && fields ? hash_samples(run, memory, fields, &hash)
                                          : error_set(FSDP_ERR_MEMORY, "looking at the data: out of host memory");
    free(fields);
    free(memory);
    snprintf(run->fingerprint, sizeof run->fingerprint, "%016" PRIx64, hash);
    return status;
}

void run_compare_fingerprint(train_run *run, const char *resumed)
{
    const json_t *extra = state_loaded_extra(run->state);
    const char *before = json_string_value(json_object_get(extra, "fingerprint"));
    if (run->rank != 0 || !before || !run->fingerprint[0] || strcmp(before, run->fingerprint) == 0)
        return;
    run_say(run, FSDP_LINE_WARNING,
            "the data is not what the %s was trained on (fingerprint %s, then %s), and the run goes on at sample %lld "
            "of it: give the same --dataset and widths, or begin a new run with --init_from",
            resumed, run->fingerprint, before, (long long)run->position);
}

/* ---- The vocabulary ---- */

void run_warn_vocabulary(train_run *run)
{
    const model_config *m = &run->model_config;
    int64_t rows = m->type == MODEL_DECODER ? m->decoder.vocabulary : m->type == MODEL_T5 ? m->t5.vocabulary : 0;
    int64_t tokens = run->tokenizer && !run->info.tokens ? fsdp_tokenizer_vocab_size(run->tokenizer) : 0;
    if (run->rank != 0 || tokens == 0 || rows <= 2 * tokens)
        return; /* some rows more are usual: they round the size up */
    run_say(run, FSDP_LINE_WARNING,
            "the model has %lld rows of embedding, the tokenizer only %lld tokens%s: is it the model's own? "
            "(--tokenizer)",
            (long long)rows, (long long)tokens, run->settings->tokenizer ? "" : " (none was given: bytes)");
}

/* ---- The block ---- */

static void print_data(FILE *out, const train_run *run)
{
    const fsdp_dataset_info *d = &run->info;
    char count[UNITS_TEXT];
    if (d->stream) {
        fprintf(out, "data             a stream of samples of %lld tokens", (long long)d->width);
    } else {
        fprintf(out, "data             %lld samples", (long long)d->n_samples);
        if (d->kind == FSDP_DATASET_TEXT)
            fprintf(out, " of %lld tokens (%s tokens)", (long long)d->width,
                    units_count(count, (double)d->n_samples * (double)d->width));
    }
    if (d->kind == FSDP_DATASET_PAIRS)
        fprintf(out, " from \"%s\" (%lld tokens) to \"%s\" (%lld)", run->settings->source_field, (long long)d->width,
                run->settings->target_field, (long long)d->target_width);
    if (d->n_truncated > 0)
        fprintf(out, ", %.3g%% of them truncated", 100 * (double)d->n_truncated / (double)max_i64(1, d->n_samples));
    if (d->n_skipped > 0)
        fprintf(out, ", %lld record%s skipped", (long long)d->n_skipped, d->n_skipped == 1 ? "" : "s");
    if (run->builtin_text >= 0)
        fputs(", of the built-in text", out);
    if (run->validation)
        fprintf(out, "; %lld samples to validate with", (long long)run->validation_info.n_samples);
    fputc('\n', out);
}

static void print_steps(FILE *out, const train_run *run)
{
    const fsdp_settings *s = run->settings;
    int64_t batch = run->micro_samples * s->gradient_accumulation_steps;
    if (run->n_steps < INT64_MAX)
        fprintf(out, "steps            %lld", (long long)run->n_steps);
    else
        fputs("steps            without end", out);
    if (run->step > 0)
        fprintf(out, ", from %lld on", (long long)run->step);
    fprintf(out, ", of %lld samples (%s%lld per rank", (long long)batch,
            run->micro_samples % run->n_ranks ? "up to " : "", (long long)s->train_batch_size);
    if (s->gradient_accumulation_steps > 1)
        fprintf(out, ", %lld micro-batches", (long long)s->gradient_accumulation_steps);
    fputs(")\n", out);
}

static void print_sharding(FILE *out, const train_run *run)
{
    const fsdp_text_list *units = &run->settings->unit_strategies;
    fprintf(out, "sharding         %s over %d rank%s", fsdp_strategy_name(run->sharding.config.strategy), run->n_ranks,
            run->n_ranks == 1 ? "" : "s");
    for (int i = 0; i < (int)units->n; i++)
        fprintf(out, ", %s", units->items[i]);
    fprintf(out, "%s%s\n", run->sharding.reason[0] ? "; " : "", run->sharding.reason);
}

static fsdp_status print_block(FILE *out, train_run *run)
{
    char count[UNITS_TEXT], bytes[UNITS_TEXT];
    const char *tokenizer = run->settings->tokenizer;
    plan_world world = run_plan_world(run);
    memory_plan plan;
    FSDP_TRY(workload_plan_rank(&run->work, &run->sharding.config, &world, run->rank, &plan));
    fprintf(out, "model            %s, %s parameters in %d units\n", model_type_name(&run->model_config),
            units_count(count, (double)fsdp_model_parameters(run->model)), fsdp_model_units(run->model));
    print_data(out, run);
    if (run->tokenizer && !run->info.tokens)
        fprintf(out, "tokenizer        %s, %lld tokens\n", tokenizer ? tokenizer : "every byte",
                (long long)fsdp_tokenizer_vocab_size(run->tokenizer));
    print_steps(out, run);
    print_sharding(out, run);
    fprintf(out, "memory           %s planned for rank 0\n",
            units_bytes(bytes, (int64_t)plan.total + (world.dev->own_memory ? 0 : (int64_t)plan.host)));
    fprintf(out, "folder           %s\n", run->folder.path);
    return FSDP_OK;
}

void run_say_notes(train_run *run)
{
    for (int i = 0; run->rank == 0 && i < run->settings->notes.n; i++)
        run_say(run, FSDP_LINE_WARNING, "%s", run->settings->notes.items[i]);
}

fsdp_status run_say_start(train_run *run)
{
    char *text = NULL;
    size_t bytes;
    if (run->rank != 0)
        return FSDP_OK;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return error_set(FSDP_ERR_MEMORY, "describing a run: out of host memory");
    fsdp_status status = print_block(out, run);
    fclose(out);
    if (status == FSDP_OK)
        run_say(run, FSDP_LINE_INFO, "%s", text);
    run_say_notes(run);
    free(text);
    return status;
}
