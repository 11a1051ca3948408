/* --fp8_check: every so many steps a shadow step in --param_dtype on the batch to come says what 8 bits cost each
 * layer. A line tells the mean and the worst, fp8_check.jsonl in the run's folder has every layer, and each layer that
 * leaves its bounds is named. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "observe/metrics.h"
#include "train/record.h"
#include "train/run.h"

enum { MAX_NAME = 128 };

/* Mean and largest of one figure over the layers. */
typedef struct spread {
    double sum, most;
    char worst[MAX_NAME];
} spread;

typedef struct checking {
    train_run *run;
    int n, unknown; /* layers, and those whose products are not finite in --param_dtype either */
    spread output, gradient;
    double flushed[3], saturated;
    json_t *layers; /* rank 0; NULL: out of memory, or another rank */
} checking;

static void add(spread *s, double value, const char *name)
{
    s->sum += value;
    if (!(value <= s->most)) {
        s->most = value;
        snprintf(s->worst, sizeof s->worst, "%s", name);
    }
}

/* JSON has no other numbers. */
static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *triple(const double x[3])
{
    return json_pack("[o, o, o]", number(x[0]), number(x[1]), number(x[2]));
}

static void add_figures(checking *c, const fsdp_fp8_layer *l)
{
    add(&c->output, l->output_error, l->name);
    add(&c->gradient, l->gradient_error, l->name);
    for (int i = 0; i < 3; i++) {
        c->flushed[i] += l->flushed[i];
        c->saturated = fmax(c->saturated, l->saturated[i]);
    }
}

enum { PERCENT_BYTES = 24 };

static const char *percent(double x, char out[PERCENT_BYTES])
{
    if (isfinite(x))
        snprintf(out, PERCENT_BYTES, "%.2g %%", 100 * x);
    else
        snprintf(out, PERCENT_BYTES, "not finite");
    return out;
}

static void take_layer(void *context, const fsdp_fp8_layer *l)
{
    checking *c = context;
    bool unknown = !l->falls_back && !isfinite(l->output_error + l->gradient_error);
    c->n++;
    c->unknown += unknown;
    if (!unknown)
        add_figures(c, l);
    if (c->layers)
        json_array_append_new(c->layers, json_pack("{s:s, s:o, s:o, s:o, s:o, s:b}", "name", l->name, "output_error",
                                                   number(l->output_error), "gradient_error", number(l->gradient_error),
                                                   "flushed", triple(l->flushed), "saturated", triple(l->saturated),
                                                   "falls_back", l->falls_back));
    if (!l->falls_back)
        return;
    char output[PERCENT_BYTES], gradient[PERCENT_BYTES];
    if (c->run->rank == 0) /* the others would say the same */
        run_say(c->run, FSDP_LINE_WARNING,
                "%s leaves 8 bits: error of its output %s, of its weight gradient %s; --fp8_max_error allows %.2g %%",
                l->name, percent(l->output_error, output), percent(l->gradient_error, gradient),
                100 * c->run->settings->fp8_max_error);
}

static void say(const checking *c)
{
    if (c->n == 0) {
        run_say(c->run, FSDP_LINE_INFO, "step %lld: every layer has left 8 bits", (long long)c->run->step);
        return;
    }
    if (c->unknown > 0) {
        run_say(
            c->run, FSDP_LINE_INFO,
            "step %lld: products of %d of %d layers are not finite in --param_dtype either: this batch says nothing "
            "of them in 8 bits",
            (long long)c->run->step, c->unknown, c->n);
    }
    int known = c->n - c->unknown;
    if (known == 0)
        return;
    run_say(
        c->run, FSDP_LINE_INFO,
        "step %lld: 8 bits in %d layers: outputs are off by %.2g %% (worst: %s, %.2g %%), weight gradients by %.2g %% "
        "(worst: %s, %.2g %%); became 0: %.2g %% of inputs, %.2g %% of weights, %.2g %% of gradients; saturated: at "
        "most %.2g %%",
        (long long)c->run->step, known, 100 * c->output.sum / known, c->output.worst, 100 * c->output.most,
        100 * c->gradient.sum / known, c->gradient.worst, 100 * c->gradient.most, 100 * c->flushed[0] / known,
        100 * c->flushed[1] / known, 100 * c->flushed[2] / known, 100 * c->saturated);
}

/* One line, by one call. What an earlier session wrote of this step and later ones is made again. */
static fsdp_status write_line(const checking *c, const char *path)
{
    json_t *line = json_pack("{s:I, s:O}", "step", (json_int_t)c->run->step, "layers", c->layers);
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(line);
    if (!text)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    fsdp_status status = metrics_cut(path, c->run->step - 1);
    FILE *out = status == FSDP_OK ? fopen(path, "a") : NULL;
    if (status == FSDP_OK && !out)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot be opened", path);
    bool written = out && fprintf(out, "%s\n", text) > 0;
    if (out && (fclose(out) != 0 || !written))
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot be written", path);
    free(text);
    return status;
}

static fsdp_status keep(const checking *c)
{
    if (!c->layers || !c->run->settings->output_dir)
        return FSDP_OK;
    char *path = file_join(c->run->settings->output_dir, "fp8_check.jsonl");
    if (!path)
        return error_set(FSDP_ERR_MEMORY, "fp8_check.jsonl: out of memory");
    fsdp_status status = write_line(c, path);
    free(path);
    return status;
}

fsdp_status run_fp8_check(train_run *run, const fsdp_batch *batch)
{
    const fsdp_settings *s = run->settings;
    if (s->fp8_check == 0 || run->step % s->fp8_check != 0)
        return FSDP_OK;
    checking c = {.run = run, .output.most = -1, .gradient.most = -1};
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT;
    bounds.error = s->fp8_max_error;
    c.layers = run->rank == 0 ? json_array() : NULL;
    fsdp_tape *t = fsdp_begin_shadow(run->model);
    fsdp_status status = fsdp_fp8_check(t, record_loss(run, t, batch), &bounds, take_layer, &c);
    if (status == FSDP_OK)
        say(&c);
    if (status == FSDP_OK)
        status = keep(&c);
    json_decref(c.layers);
    return status;
}
