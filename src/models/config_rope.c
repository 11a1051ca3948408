/* The forms of rotary positions, as transformers reads them: "rope_scaling" where it says anything, else
 * "rope_parameters"; Gemma has a set of values for each type of layer. */
#include "models/config_rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "models/config_fields.h"

static const char *const kinds[] = {[FSDP_ROPE_PLAIN] = "default",
                                    [FSDP_ROPE_LINEAR] = "linear",
                                    [FSDP_ROPE_LLAMA3] = "llama3",
                                    [FSDP_ROPE_DYNAMIC] = "dynamic",
                                    [FSDP_ROPE_YARN] = "yarn"};

static bool says_something(const json_t *value)
{
    return value && !json_is_null(value) && !(json_is_object(value) && json_object_size(value) == 0);
}

/* ---- Reading ---- */

/* The length of training: among the values or beside them, else as long as positions go. */
static fsdp_status parse_original(const char *name, const json_t *o, const json_t *rope, fsdp_decoder_config *c)
{
    double inside = 0, outside = 0;
    FSDP_TRY(json_opt_number(name, rope, "original_max_position_embeddings", &inside));
    FSDP_TRY(json_opt_number(name, o, "original_max_position_embeddings", &outside));
    if (inside != 0 && outside != 0 && inside != outside)
        return error_set(FSDP_ERR_INPUT,
                         "%s: original_max_position_embeddings is %g, and %g among the rope parameters; one is wrong",
                         name, outside, inside);
    c->rope_original_positions = inside != 0 ? inside : outside != 0 ? outside : (double)c->positions;
    return FSDP_OK;
}

static double yarn_scale(double factor, double by)
{
    return factor > 1 ? 0.1 * by * log(factor) + 1 : 1;
}

static fsdp_status parse_yarn(const char *name, const json_t *rope, fsdp_decoder_config *c)
{
    double mscale = 0, all = 0;
    bool truncate = true;
    FSDP_TRY(json_opt_number(name, rope, "attention_factor", &c->rope_attention_factor));
    FSDP_TRY(json_opt_number(name, rope, "beta_fast", &c->rope_beta_fast));
    FSDP_TRY(json_opt_number(name, rope, "beta_slow", &c->rope_beta_slow));
    FSDP_TRY(json_opt_number(name, rope, "mscale", &mscale));
    FSDP_TRY(json_opt_number(name, rope, "mscale_all_dim", &all));
    FSDP_TRY(json_opt_bool(name, rope, "truncate", &truncate));
    if (c->rope_attention_factor == 0 && mscale != 0 && all != 0)
        c->rope_attention_factor = yarn_scale(c->rope_factor, mscale) / yarn_scale(c->rope_factor, all);
    c->rope_exact = !truncate;
    return FSDP_OK;
}

static fsdp_status parse_kind(const char *name, const json_t *rope, fsdp_rope_scaling *out)
{
    const char *kind = kinds[FSDP_ROPE_PLAIN];
    char shown[FIELD_TEXT];
    FSDP_TRY(json_opt_string(name, rope, "type", &kind));
    FSDP_TRY(json_opt_string(name, rope, "rope_type", &kind));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            *out = (fsdp_rope_scaling)i;
            return FSDP_OK;
        }
    }
    const json_t *type = json_object_get(rope, "rope_type");
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: rope_type %s; default, linear, llama3, dynamic and yarn are known",
                     name, field_text(type ? type : json_object_get(rope, "type"), shown));
}

/* One set of values; `which` is where it stands. */
static fsdp_status parse_values(const char *name, const json_t *o, const char *which, const json_t *rope, bool warns,
                                fsdp_decoder_config *c)
{
    static const config_field *const tables[] = {rope_fields, NULL};
    char inside[64];
    if (!json_is_object(rope))
        return error_set(FSDP_ERR_INPUT, "%s: %s must be an object", name, which);
    FSDP_TRY(json_opt_number(name, rope, "rope_theta", &c->rope_base));
    snprintf(inside, sizeof inside, "%s.", which);
    FSDP_TRY(fields_check(name, inside, rope, tables, warns));
    FSDP_TRY(parse_kind(name, rope, &c->rope_scaling));
    if (c->rope_scaling == FSDP_ROPE_PLAIN)
        return FSDP_OK;
    if (c->family == FSDP_FAMILY_PHI3) /* there even "yarn" means longrope */
        return error_set(FSDP_ERR_UNSUPPORTED, "%s: %s scales the positions of a phi3, which is not implemented", name,
                         which);
    FSDP_TRY(parse_original(name, o, rope, c));
    const json_t *factor = json_object_get(rope, "factor");
    if (c->rope_scaling == FSDP_ROPE_YARN && json_is_null(factor))
        c->rope_factor = (double)c->positions / c->rope_original_positions;
    else
        FSDP_TRY(json_get_number(name, rope, "factor", &c->rope_factor));
    if (c->rope_scaling == FSDP_ROPE_DYNAMIC)
        c->rope_original_positions = (double)c->positions;
    if (c->rope_scaling == FSDP_ROPE_YARN)
        return parse_yarn(name, rope, c);
    if (c->rope_scaling == FSDP_ROPE_LLAMA3) {
        FSDP_TRY(json_get_number(name, rope, "low_freq_factor", &c->rope_low_factor));
        FSDP_TRY(json_get_number(name, rope, "high_freq_factor", &c->rope_high_factor));
    }
    return FSDP_OK;
}

/* Gemma: rope_parameters has values for layers with a window and for those without; older files have rope_theta and
 * rope_local_base_freq, and their rope_scaling is of layers without a window. */
static fsdp_status parse_two(const char *name, const json_t *o, bool warns, fsdp_decoder_config *c)
{
    const json_t *newer = json_object_get(o, "rope_parameters"), *older = json_object_get(o, "rope_scaling");
    const json_t *full = json_object_get(newer, "full_attention"), *local = json_object_get(newer, "sliding_attention");
    fsdp_decoder_config windowed = *c;
    FSDP_TRY(json_opt_number(name, o, "rope_local_base_freq", &c->rope_local_base));
    if (says_something(newer) && !full && !local)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: rope_parameters has neither full_attention nor sliding_attention, as this family's has",
                         name);
    if (says_something(local)) {
        windowed.rope_base = c->rope_local_base;
        FSDP_TRY(parse_values(name, o, "rope_parameters.sliding_attention", local, warns, &windowed));
        if (windowed.rope_scaling != FSDP_ROPE_PLAIN)
            return error_set(FSDP_ERR_UNSUPPORTED,
                             "%s: rope_parameters.sliding_attention scales its positions, which is not implemented",
                             name);
        c->rope_local_base = windowed.rope_base;
    }
    if (says_something(full))
        FSDP_TRY(parse_values(name, o, "rope_parameters.full_attention", full, warns, c));
    return says_something(older) ? parse_values(name, o, "rope_scaling", older, warns, c) : FSDP_OK;
}

fsdp_status config_rope_parse(const char *name, const json_t *o, bool warns, fsdp_decoder_config *c)
{
    const json_t *older = json_object_get(o, "rope_scaling"), *newer = json_object_get(o, "rope_parameters");
    FSDP_TRY(json_opt_number(name, o, "rope_theta", &c->rope_base));
    if (c->family == FSDP_FAMILY_GEMMA3)
        return parse_two(name, o, warns, c);
    if (says_something(older))
        return parse_values(name, o, "rope_scaling", older, warns, c);
    return newer && !json_is_null(newer) ? parse_values(name, o, "rope_parameters", newer, warns, c) : FSDP_OK;
}

/* ---- Writing ---- */

/* Whole numbers as others write them. */
static json_t *number_json(double value)
{
    bool whole = fabs(value) < 1e15 && value == (double)(json_int_t)value;
    return whole ? json_integer((json_int_t)value) : json_real(value);
}

static bool set_real(json_t *o, const char *key, double value)
{
    return json_object_set_new(o, key, json_real(value)) == 0;
}

/* The rotation as both forms have it but for theta, which the older form keeps outside. */
static json_t *values_json(const fsdp_decoder_config *c)
{
    json_t *o = json_pack("{s:s}", "rope_type", kinds[c->rope_scaling]);
    bool done = o != NULL;
    if (done && c->rope_scaling != FSDP_ROPE_PLAIN)
        done = set_real(o, "factor", c->rope_factor);
    if (done && c->rope_scaling == FSDP_ROPE_LLAMA3)
        done =
            set_real(o, "low_freq_factor", c->rope_low_factor) && set_real(o, "high_freq_factor", c->rope_high_factor);
    if (done && c->rope_scaling == FSDP_ROPE_YARN) {
        done = c->rope_attention_factor == 0 || set_real(o, "attention_factor", c->rope_attention_factor);
        done = done && (c->rope_beta_fast == 0 || set_real(o, "beta_fast", c->rope_beta_fast));
        done = done && (c->rope_beta_slow == 0 || set_real(o, "beta_slow", c->rope_beta_slow));
        done = done && (!c->rope_exact || json_object_set_new(o, "truncate", json_false()) == 0);
    }
    if (done && (c->rope_scaling == FSDP_ROPE_LLAMA3 || c->rope_scaling == FSDP_ROPE_YARN))
        done = json_object_set_new(o, "original_max_position_embeddings", number_json(c->rope_original_positions)) == 0;
    if (done)
        return o;
    json_decref(o);
    return NULL;
}

/* So that every version of transformers finds a form that it reads. */
bool config_rope_write(json_t *o, const fsdp_decoder_config *c)
{
    json_t *older = values_json(c), *newer = json_pack("{s:f}", "rope_theta", c->rope_base);
    bool plain = c->rope_scaling == FSDP_ROPE_PLAIN, two = c->family == FSDP_FAMILY_GEMMA3;
    bool done = older && newer && json_object_update(newer, older) == 0 &&
                json_object_set_new(o, "rope_theta", json_real(c->rope_base)) == 0 &&
                json_object_set_new(o, "rope_scaling", plain ? json_null() : json_incref(older)) == 0;
    if (done && two) {
        json_t *both = json_pack("{s:O, s:{s:s, s:f}}", "full_attention", newer, "sliding_attention", "rope_type",
                                 "default", "rope_theta", c->rope_local_base);
        done = json_object_set_new(o, "rope_parameters", both) == 0 &&
               json_object_set_new(o, "rope_local_base_freq", json_real(c->rope_local_base)) == 0;
    } else if (done) {
        done = json_object_set(o, "rope_parameters", newer) == 0;
    }
    json_decref(older);
    json_decref(newer);
    return done;
}
