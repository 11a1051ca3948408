/* Tables of rotary positions. Scalings are those of transformers' modeling_rope_utils, in fp64. */
#include "models/rope.h"

#include <math.h>
#include <stdio.h>

#include "base/checked.h"
#include "base/error.h"
#include "nn/module.h"

/* Where the turns of the training length are `rotations`, as an index among the pairs. */
static double pair_of_rotations(const fsdp_decoder_config *c, double rotations)
{
    double width = (double)c->head_dim;
    return width * log(c->rope_original_positions / (rotations * 2 * M_PI)) / (2 * log(c->rope_base));
}

/* YaRN: pairs that turn often keep their pace, slow ones are stretched, and between two bounds it goes over. */
static double yarn_frequency(const fsdp_decoder_config *c, double plain, int64_t i)
{
    double low = pair_of_rotations(c, c->rope_beta_fast > 0 ? c->rope_beta_fast : 32);
    double high = pair_of_rotations(c, c->rope_beta_slow > 0 ? c->rope_beta_slow : 1);
    if (!c->rope_exact) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)c->head_dim - 1);
    if (low == high)
        high += 0.001;
    double stretched = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return plain / c->rope_factor * stretched + plain * (1 - stretched);
}

static double llama3_frequency(const fsdp_decoder_config *c, double plain)
{
    double wavelength = 2 * M_PI / plain;
    if (wavelength > c->rope_original_positions / c->rope_low_factor)
        return plain / c->rope_factor;
    if (wavelength < c->rope_original_positions / c->rope_high_factor)
        return plain;
    double smooth =
        (c->rope_original_positions / wavelength - c->rope_low_factor) / (c->rope_high_factor - c->rope_low_factor);
    return (1 - smooth) * plain / c->rope_factor + smooth * plain;
}

/* Dynamic scaling: texts longer than those of training raise the base. */
static double dynamic_base(const fsdp_decoder_config *c)
{
    double width = (double)c->head_dim, length = fmax((double)c->positions, c->rope_original_positions);
    double stretch = c->rope_factor * length / c->rope_original_positions - (c->rope_factor - 1);
    return c->rope_base * pow(stretch, width / (width - 2));
}

/* Rotation per position of pair i. */
static double frequency(const fsdp_decoder_config *c, bool local, int64_t i)
{
    bool other = local && c->rope_local_base > 0;
    fsdp_rope_scaling scaling = other ? FSDP_ROPE_PLAIN : c->rope_scaling;
    double base = other ? c->rope_local_base : scaling == FSDP_ROPE_DYNAMIC ? dynamic_base(c) : c->rope_base;
    double plain = pow(base, -2.0 * (double)i / (double)c->head_dim);
    switch (scaling) {
    case FSDP_ROPE_LINEAR:
        return plain / c->rope_factor;
    case FSDP_ROPE_LLAMA3:
        return llama3_frequency(c, plain);
    case FSDP_ROPE_YARN:
        return yarn_frequency(c, plain, i);
    case FSDP_ROPE_PLAIN:
    case FSDP_ROPE_DYNAMIC:
        break;
    }
    return plain;
}

/* YaRN multiplies queries and keys by this. */
static double amplitude(const fsdp_decoder_config *c, bool local)
{
    if (c->rope_scaling != FSDP_ROPE_YARN || (local && c->rope_local_base > 0))
        return 1;
    if (c->rope_attention_factor > 0)
        return c->rope_attention_factor;
    return c->rope_factor > 1 ? 0.1 * log(c->rope_factor) + 1 : 1;
}

enum { TURNS = 256 }; /* columns worked on at a time */

void rope_tables_add(fsdp_module *module, const char *name, const fsdp_decoder_config *c, bool local,
                     fsdp_buffer **cosine, fsdp_buffer **sine)
{
    int64_t half = c->head_dim / 2, shape[] = {c->positions, half};
    char full[64];
    snprintf(full, sizeof full, "%s.cosine", name);
    *cosine = fsdp_module_buffer(module, full, 2, shape, NULL, false);
    snprintf(full, sizeof full, "%s.sine", name);
    *sine = fsdp_module_buffer(module, full, 2, shape, NULL, false);
    if (!*cosine || !*sine)
        return;
    double scale = amplitude(c, local), turns[TURNS];
    for (int64_t first = 0, n; first < half; first += n) { /* along rows, as they lie in memory */
        n = min_i64(TURNS, half - first);
        for (int64_t i = 0; i < n; i++)
            turns[i] = frequency(c, local, first + i);
        for (int64_t p = 0; p < c->positions; p++) {
            float *to_cosine = (*cosine)->initial + p * half + first, *to_sine = (*sine)->initial + p * half + first;
            for (int64_t i = 0; i < n; i++) {
                to_cosine[i] = (float)(scale * cos((double)p * turns[i]));
                to_sine[i] = (float)(scale * sin((double)p * turns[i]));
            }
        }
    }
}

fsdp_status rope_check(const fsdp_decoder_config *c)
{
    if (c->head_dim % 2 != 0)
        return error_set(FSDP_ERR_INPUT, "head_dim is %lld; rotary positions need an even number",
                         (long long)c->head_dim);
    if (!(c->rope_base > 0) || !(c->rope_local_base >= 0))
        return error_set(FSDP_ERR_INPUT, "rope_theta (%g) must be positive%s", c->rope_base,
                         c->rope_base > 0 ? ", also that of layers with a window" : "");
    if (c->rope_scaling == FSDP_ROPE_PLAIN)
        return FSDP_OK;
    if (!(c->rope_factor > 0))
        return error_set(FSDP_ERR_INPUT, "factor of the rope scaling is %g; it must be positive", c->rope_factor);
    if (c->rope_scaling == FSDP_ROPE_LLAMA3 &&
        !(c->rope_high_factor > c->rope_low_factor && c->rope_low_factor > 0 && c->rope_original_positions > 0))
        return error_set(
            FSDP_ERR_INPUT,
            "llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings");
    bool measured = c->rope_scaling == FSDP_ROPE_YARN || c->rope_scaling == FSDP_ROPE_DYNAMIC;
    if (measured && !(c->rope_original_positions > 0))
        return error_set(FSDP_ERR_INPUT, "this rope scaling needs original_max_position_embeddings");
    if (c->rope_scaling == FSDP_ROPE_DYNAMIC && c->head_dim < 4)
        return error_set(FSDP_ERR_INPUT, "head_dim is %lld; dynamic rope scaling needs at least 4",
                         (long long)c->head_dim);
    if (c->rope_scaling == FSDP_ROPE_YARN && (!(c->rope_beta_fast >= 0) || !(c->rope_beta_slow >= 0) ||
                                              !(c->rope_attention_factor >= 0) || c->rope_base == 1))
        return error_set(FSDP_ERR_INPUT,
                         "yarn rope scaling: beta_fast %g, beta_slow %g and attention_factor %g may "
                         "not be negative, nor rope_theta 1",
                         c->rope_beta_fast, c->rope_beta_slow, c->rope_attention_factor);
    return FSDP_OK;
}
