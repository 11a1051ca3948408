/* `fsdp eval`: how well models predict a data set, several side by side. The work is <fsdp/measure.h>'s. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/measure.h>

#include "commands.h"
#include "flag_rows.h"
#include "json_line.h"
#include "terminal.h"

typedef struct eval_options {
    fsdp_settings settings; /* of `fsdp train`: the rows that are taken over fill its fields */
    fsdp_flag_state state;
    fsdp_text_list model;
    bool json;
} eval_options;

#define OPTIONS eval_options

static const fsdp_flag own_rows[] = {
    {ROW(model, FSDP_FLAG_LIST, "models to evaluate, like MODEL on the command line"), .unit = "PATH,..."},
    {SWITCH(json, NULL, "print one line of JSON per model")},
};

/* Flags of `fsdp train` that mean the same here. Their rows come from its table. */
static const char *const shared[] = {"dataset",
                                     "dataset_config_name",
                                     "download",
                                     "tokenizer",
                                     "max_context_width",
                                     "max_target_width",
                                     "source_field",
                                     "target_field",
                                     "source_prefix",
                                     "chat",
                                     "chat_template",
                                     "strict_data",
                                     "val_batch_size",
                                     "validation_batches",
                                     "param_dtype",
                                     "device",
                                     "products",
                                     "threads",
                                     "deterministic",
                                     "comm_backend",
                                     "comm_timeout",
                                     "base",
                                     "packing"};

enum { N_OWN = sizeof own_rows / sizeof *own_rows, N_SHARED = sizeof shared / sizeof *shared };

/* What differs from training in words. */
static const struct {
    const char *name, *help, *unit; /* NULL: as it was */
} reworded[] = {
    {"dataset", "data to evaluate on: files, folders or a hub name (of a folder: its validation or test files, if any)",
     "PATH,..."},
    {"max_context_width", "tokens per sample (default: the checkpoint's, otherwise 2048 or the model's maximum)", NULL},
    {"val_batch_size", "samples per batch on each rank (default: the checkpoint's, otherwise 4)", NULL},
    {"base", "LoRA checkpoints: the base model (default: where training had it)", NULL},
    {"packing", "how documents fill samples, as in training (default: the checkpoint's, otherwise row)", NULL},
    {"param_dtype", "precision of the computation (default: the checkpoint's, otherwise fp32)", NULL},
};

static const fsdp_flag *eval_flags(void)
{
    static fsdp_flag table[N_OWN + N_SHARED + 1]; /* the last ends it */
    if (table[0].name)
        return table;
    for (int i = 0; i < N_SHARED; i++) {
        fsdp_flag *row = &table[N_OWN + i];
        *row = *fsdp_flags_find(fsdp_settings_flags(), shared[i]);
        row->group = NULL;
        for (size_t k = 0; k < sizeof reworded / sizeof *reworded; k++) {
            if (strcmp(row->name, reworded[k].name) != 0)
                continue;
            row->help = reworded[k].help;
            row->default_value = NULL;
            row->unit = reworded[k].unit ? reworded[k].unit : row->unit;
        }
    }
    memcpy(table, own_rows, sizeof own_rows);
    return table;
}

/* What was given, in settings of their own: they know what was given and what not. */
static fsdp_status settings_from(const eval_options *o, fsdp_settings *out)
{
    const fsdp_flag *table = eval_flags();
    FSDP_TRY(fsdp_settings_init(out));
    for (int i = 0; i < N_SHARED; i++) {
        const fsdp_flag *row = &table[N_OWN + i];
        char *value = fsdp_flags_given(table, &o->state, row->name) ? fsdp_flags_value(row, o) : NULL;
        const char *name = strcmp(row->name, "dataset") == 0 ? "validation_dataset" : row->name;
        fsdp_status status = value ? fsdp_settings_set(out, name, value) : FSDP_OK;
        free(value);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static double per_second(const fsdp_measurement *r)
{
    return (double)r->predictions / (r->seconds > 0 ? r->seconds : 1e-9);
}

static void print_json(const char *name, const fsdp_measurement *r)
{
    fputs("{\"model\": ", stdout);
    json_line_print(stdout, name, strlen(name));
    fputs(", \"path\": ", stdout);
    json_line_print(stdout, r->path, strlen(r->path));
    if (r->step >= 0)
        printf(", \"step\": %lld", (long long)r->step);
    printf(", \"parameters\": %lld, \"samples\": %lld, \"%s\": %lld, \"loss\": %.17g, \"perplexity\": %.17g, "
           "\"accuracy\": %.17g, \"seconds\": %.6g, \"%s_per_second\": %.6g, \"average\": %s, \"world_size\": %d}\n",
           (long long)r->parameters, (long long)r->samples, r->images ? "images" : "tokens", (long long)r->predictions,
           r->loss, exp(r->loss), r->accuracy, r->seconds, r->images ? "images" : "tokens", per_second(r),
           r->average ? "true" : "false", r->world_size);
}

/* The best of each column is marked, where there are several. */
static void print_table(char **names, const fsdp_measurement *results, int n)
{
    int width = 5, best = 0;
    for (int i = 0; i < n; i++) {
        width = (int)strlen(names[i]) > width ? (int)strlen(names[i]) : width;
        best = results[i].loss < results[best].loss ? i : best;
    }
    printf("%-*s  %8s  %10s  %11s  %9s  %12s  %10s\n", width, "model", "step", "loss", "perplexity", "accuracy",
           results[0].images ? "images" : "tokens", results[0].images ? "images/s" : "tokens/s");
    for (int i = 0; i < n; i++) {
        const fsdp_measurement *r = &results[i];
        char step[24] = "-";
        if (r->step >= 0)
            snprintf(step, sizeof step, "%lld", (long long)r->step);
        printf("%-*s  %8s  %10.6f  %11.4f  %8.3f%%  %12lld  %10.1f%s\n", width, names[i], step, r->loss, exp(r->loss),
               100 * r->accuracy, (long long)r->predictions, per_second(r), n > 1 && i == best ? "  *" : "");
    }
    if (n > 1)
        puts("* lowest loss. Losses of models with different tokenizers are not comparable.");
}

static void show_line(void *context, fsdp_line kind, const char *text)
{
    (void)context;
    if (kind == FSDP_LINE_WARNING)
        fprintf(stderr, "fsdp eval: warning: %s\n", text);
}

static int measure(const eval_options *o, const char *const *models, int n)
{
    fsdp_settings settings;
    fsdp_train_callbacks callbacks = FSDP_TRAIN_CALLBACKS_INIT;
    fsdp_measurement *results = calloc((size_t)n, sizeof *results);
    callbacks.line = show_line;
    for (int i = 0; results && i < n; i++)
        results[i].size = sizeof *results;
    command_show_warnings("eval");
    fsdp_status status = results ? settings_from(o, &settings) : FSDP_ERR_MEMORY;
    if (status == FSDP_OK)
        status = fsdp_measure(&settings, models, n, &callbacks, results);
    int code = status == FSDP_OK ? 0 : command_failed("eval", status);
    if (results)
        fsdp_settings_free(&settings);
    for (int i = 0; i < n && code == 0 && o->json && results[0].rank == 0; i++)
        print_json(models[i], &results[i]);
    if (code == 0 && !o->json && results[0].rank == 0)
        print_table((char **)models, results, n);
    free(results);
    return code;
}

static int start(const eval_options *o, const char **words, int n_words)
{
    int n = n_words + o->model.n;
    const char **models = calloc((size_t)n + 1, sizeof *models);
    if (!models)
        return command_misused("eval", "out of memory");
    for (int i = 0; i < n; i++)
        models[i] = i < n_words ? words[i] : o->model.items[i - n_words];
    int code = n == 0 ? command_misused("eval", "no model: name a model folder, a run or a checkpoint")
               : o->settings.dataset.n == 0
                   ? command_misused("eval", "no data: name files, folders or a data set with --dataset")
                   : measure(o, models, n);
    free(models);
    return code;
}

static int run_eval(int argc, char **argv)
{
    eval_options options;
    int n_words = 0;
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    memset(&options, 0, sizeof options);
    fsdp_status status =
        words ? command_options(eval_flags(), &options, &options.state, "eval", argc, argv, words, &n_words)
              : FSDP_ERR_MEMORY;
    int code = status == FSDP_OK ? start(&options, words, n_words) : command_failed("eval", status);
    fsdp_flags_free(&options.state);
    free(words);
    return code;
}

const command command_eval = {
    .name = "eval",
    .summary = "Measure how well models predict a data set: loss, perplexity, accuracy, speed",
    .usage = "MODEL... --dataset PATH [FLAGS...]",
    .details =
        "  fsdp eval fsdp_run --dataset held_back.txt\n"
        "  fsdp eval base_model run/checkpoints/step-00001000 run/checkpoints/step-00002000 --dataset test.jsonl\n"
        "  fsdp run --standalone --nproc-per-node 2 fsdp eval model --dataset test.txt\n\n"
        "MODEL is a Hugging Face folder, a run, a checkpoint, a folder of checkpoints (its newest) or a hub name.\n"
        "A checkpoint is evaluated as its run validated: same widths, batch and precision, and the average of\n"
        "the weights where it has one (--ema). Layers that trained in 8 bits (--fp8) compute in --param_dtype.\n"
        "Every token or image counts once, at any number of ranks.",
    .flags = eval_flags,
    .run = run_eval,
};
