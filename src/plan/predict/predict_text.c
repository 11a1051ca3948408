/* A prediction as text and as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/error.h"
#include "observe/units.h"
#include "plan/predict/predict.h"

static double share(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void say(json_t *list, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(json_t *list, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    json_array_append_new(list, json_string(text));
}

static void say_links(json_t *list, const prediction_request *r, int most_ranks)
{
    const profile_links *l = &r->profile->links;
    bool nodes = most_ranks > r->world.ranks_per_node;
    bool measured = false;
    for (int i = 0; i < r->profile->n_collectives; i++)
        measured |= r->profile->collectives[i].ranks == r->world.n_ranks;
    if (measured)
        say(list, "collectives over %d ranks were measured on the profile's host", r->world.n_ranks);
    else
        say(list,
            "collectives are rings (sums of few bytes: trees): %.3g GB/s a rank and %.3g us a hop within a node of %d "
            "ranks, %.3g us to start",
            l->inside / 1e9, l->hop_inside * 1e6, r->world.ranks_per_node, l->start * 1e6);
    if (nodes)
        say(list,
            "between nodes every rank has %.3g GB/s of its own, %.3g us a hop; nothing else uses the network, and no "
            "rank is slower than the others",
            l->outside / 1e9, l->hop_outside * 1e6);
    if (r->profile->streams && r->config->reduce_dtype != FSDP_F32 &&
        r->work->reduce_accumulation == FSDP_ACCUMULATE_FP32)
        say(list, "values of %s gradients go from every rank to every other, where a kernel sums them in fp32",
            fsdp_dtype_name(r->config->reduce_dtype));
    if (r->profile->overlaps)
        say(list, "collectives run beside compute, which is %.0f %% slower while they do", 100 * r->profile->slowdown);
    else
        say(list, "collectives run only while a rank waits for them: it has no core to spare");
}

static void say_host(json_t *list, const prediction_request *r)
{
    const kernel_profile *k = r->profile;
    bool shares = r->config->cpu_offload_split, measured = shares && k->host_shared > 0;
    say(list, "%.3g GB/s between host and device, %.3g GB/s for updates in host memory%s", k->host_copy / 1e9,
        (measured ? k->host_shared : k->host_update) / 1e9, measured ? " that the device shares" : "");
    if (shares && !measured)
        say(list, "how fast the device shares updates in host memory was not measured: they count as the processor's");
    if (r->config->cpu_offload_ahead)
        say(list, "updates that run ahead of the norm stand: no step is clipped or skipped");
}

static json_t *assumptions_of(const prediction_request *r, const prediction *p, int most_ranks)
{
    const kernel_profile *k = r->profile;
    const double *by = p->step.by_source;
    json_t *list = json_array();
    if (!list)
        return NULL;
    say(list, "profile %s: %d kernels, measured on %s with %d rank%s of %d thread%s side by side", k->origin, k->n_rows,
        k->device, k->ranks, k->ranks == 1 ? "" : "s", k->threads, k->threads == 1 ? "" : "s");
    if (k->compute != 1 || k->memory != 1)
        say(list, "products count as %.3g times, memory as %.3g times as fast as where they were measured", k->compute,
            k->memory);
    say(list,
        "of the kernels' time %.0f %% was measured at these shapes, %.0f %% is interpolated between other shapes, %.0f "
        "%% estimated from other kernels",
        share(by[PROFILE_MEASURED], p->step.compute), share(by[PROFILE_INTERPOLATED], p->step.compute),
        share(by[PROFILE_ESTIMATED], p->step.compute));
    if (most_ranks > 1)
        say_links(list, r, most_ranks);
    if (p->step.transfer_wait > 0)
        say_host(list, r);
    say(list, "data is there when a step begins; saving, validation and logging are not counted");
    return list;
}

static int most_ranks(const prediction *p, const prediction *curve, int n_curve)
{
    int most = p->n_ranks;
    for (int i = 0; i < n_curve; i++)
        most = curve[i].n_ranks > most ? curve[i].n_ranks : most;
    return most;
}

static json_t *figures_json(const prediction *p)
{
    const played_step *s = &p->step;
    return json_pack(
        "{s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:{s:f,s:f,s:f},s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I}", "world_size", p->n_ranks,
        "ranks_per_node", p->ranks_per_node, "step_ms", s->seconds * 1e3, "forward_ms", s->forward * 1e3, "backward_ms",
        s->backward * 1e3, "close_ms", s->close * 1e3, "compute_ms", s->compute * 1e3, "exposed_ms", s->exposed * 1e3,
        "exposed_by_ms", "all_gather", s->exposed_by[SCRIPT_ALL_GATHER] * 1e3, "reduce_scatter",
        s->exposed_by[SCRIPT_REDUCE_SCATTER] * 1e3, "all_reduce", s->exposed_by[SCRIPT_ALL_REDUCE] * 1e3,
        "communication_ms", s->communication * 1e3, "transfer_wait_ms", s->transfer_wait * 1e3, "launch_wait_ms",
        s->launch_wait * 1e3, "slowed_ms", s->slowed * 1e3, "tokens_per_second", p->tokens_per_second, "tflops",
        p->tflops, "utilization", p->utilization, "memory_bytes", (json_int_t)p->memory);
}

static fsdp_status print_json(const prediction_request *r, const prediction *p, const prediction *curve, int n_curve,
                              char **text)
{
    json_t *all = figures_json(p), *scaling = json_array();
    for (int i = 0; i < n_curve; i++)
        json_array_append_new(scaling, figures_json(&curve[i]));
    json_object_set_new(all, "profile", json_string(r->profile->origin));
    json_object_set_new(all, "assumptions", assumptions_of(r, p, most_ranks(p, curve, n_curve)));
    json_object_set_new(all, "scaling", scaling);
    *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(8));
    json_decref(all);
    return *text ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "printing a prediction: out of host memory");
}

static void print_figures(FILE *out, const prediction_request *r, const prediction *p)
{
    const played_step *s = &p->step;
    char memory[UNITS_TEXT];
    fprintf(out, "Predicted: %.4g ms a step on %d rank%s", s->seconds * 1e3, p->n_ranks, p->n_ranks == 1 ? "" : "s");
    if (p->tokens_per_second > 0)
        fprintf(out, ", %.0f tokens/s (%.0f a rank), %.4g TFLOP/s a rank", p->tokens_per_second,
                p->tokens_per_second / p->n_ranks, p->tflops);
    else
        fprintf(out, ", %.4g samples/s", p->samples_per_second);
    if (p->utilization > 0)
        fprintf(out, ", utilization %.1f %%", 100 * p->utilization);
    fprintf(out, "; %s a rank, strategy %s\n\n", units_bytes(memory, p->memory),
            fsdp_strategy_name(r->config->strategy));
    fprintf(out, "  forward              %10.2f ms\n", s->forward * 1e3);
    fprintf(out, "  backward             %10.2f ms\n", s->backward * 1e3);
    fprintf(out, "  norm, clip, optimizer%10.2f ms\n", s->close * 1e3);
    fprintf(out, "  kernels at work      %10.2f ms  %5.1f %%\n", (s->compute + s->slowed) * 1e3,
            share(s->compute + s->slowed, s->seconds));
    fprintf(out,
            "  exposed communication%10.2f ms  %5.1f %%  (all_gather %.2f, reduce_scatter %.2f, all_reduce %.2f; %.2f "
            "ms at work)\n",
            s->exposed * 1e3, share(s->exposed, s->seconds), s->exposed_by[SCRIPT_ALL_GATHER] * 1e3,
            s->exposed_by[SCRIPT_REDUCE_SCATTER] * 1e3, s->exposed_by[SCRIPT_ALL_REDUCE] * 1e3, s->communication * 1e3);
    if (s->transfer_wait > 0)
        fprintf(out, "  waits for the host   %10.2f ms  %5.1f %%\n", s->transfer_wait * 1e3,
                share(s->transfer_wait, s->seconds));
    if (s->launch_wait > 0)
        fprintf(out, "  waits for launches   %10.2f ms  %5.1f %%\n", s->launch_wait * 1e3,
                share(s->launch_wait, s->seconds));
}

static void print_curve(FILE *out, const prediction *curve, int n_curve)
{
    const prediction *first = curve;
    if (n_curve == 0)
        return;
    fprintf(out, "\n%8s %12s %14s %14s %10s %12s %12s\n", "ranks", "ms a step", "exposed ms", "tokens/s", "a rank",
            "utilization", "efficiency");
    for (int i = 0; i < n_curve; i++) {
        const prediction *c = &curve[i];
        double each = c->samples_per_second / c->n_ranks, at_first = first->samples_per_second / first->n_ranks;
        fprintf(out, "%8d %12.4g %14.4g %14.0f %10.0f %11.1f%% %11.1f%%\n", c->n_ranks, c->step.seconds * 1e3,
                c->step.exposed * 1e3, c->tokens_per_second, c->tokens_per_second / c->n_ranks, 100 * c->utilization,
                share(each, at_first));
    }
}

fsdp_status prediction_print(const prediction_request *r, const prediction *p, const prediction *curve, int n_curve,
                             bool json, char **text)
{
    size_t bytes;
    *text = NULL;
    if (json)
        return print_json(r, p, curve, n_curve, text);
    FILE *out = open_memstream(text, &bytes);
    json_t *assumptions = assumptions_of(r, p, most_ranks(p, curve, n_curve));
    if (out && assumptions) {
        print_figures(out, r, p);
        print_curve(out, curve, n_curve);
        fprintf(out, "\nAssumptions:");
        for (size_t i = 0; i < json_array_size(assumptions); i++)
            fprintf(out, "\n  - %s", json_string_value(json_array_get(assumptions, i)));
    }
    bool written = out && fclose(out) == 0 && assumptions;
    json_decref(assumptions);
    return written ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "printing a prediction: out of host memory");
}
