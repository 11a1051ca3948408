/* Rows of flags and fields, and the two loops over them. */
#include "settings/shape.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "settings/settings_table.h"

typedef enum shape_kind {
    SHAPE_SIZE,   /* int64_t */
    SHAPE_FLOAT,  /* float; the flag is a double */
    SHAPE_DOUBLE, /* double; so is the flag, or it is an int64_t */
    SHAPE_SWITCH, /* bool */
    SHAPE_ENUM,   /* an enumeration of the flag's values */
    SHAPE_GATED   /* bool; the flag is an fsdp_activation */
} shape_kind;

typedef struct shape_field {
    const char *flag;
    shape_kind kind;
    size_t offset;
    unsigned scalings; /* of rope with which it means something, as bits; 0: always */
} shape_field;

#define DECODER(flag, kind, member)                                                                                    \
    {                                                                                                                  \
        flag, kind, offsetof(fsdp_decoder_config, member), 0                                                           \
    }
#define SCALED(flag, member, scalings)                                                                                 \
    {                                                                                                                  \
        flag, SHAPE_DOUBLE, offsetof(fsdp_decoder_config, member), scalings                                            \
    }
#define T5(flag, kind, member)                                                                                         \
    {                                                                                                                  \
        flag, kind, offsetof(fsdp_t5_config, member), 0                                                                \
    }
#define CNN(flag, member)                                                                                              \
    {                                                                                                                  \
        flag, SHAPE_SIZE, offsetof(fsdp_cnn_config, member), 0                                                         \
    }
#define MLP(flag, member)                                                                                              \
    {                                                                                                                  \
        flag, SHAPE_SIZE, offsetof(fsdp_mlp_config, member), 0                                                         \
    }

static const shape_field decoder_shape[] = {
    DECODER("vocab_size", SHAPE_SIZE, vocabulary),
    DECODER("hidden_width", SHAPE_SIZE, hidden),
    DECODER("intermediate_size", SHAPE_SIZE, intermediate),
    DECODER("num_layers", SHAPE_SIZE, layers),
    DECODER("num_heads", SHAPE_SIZE, heads),
    DECODER("num_key_value_heads", SHAPE_SIZE, kv_heads),
    DECODER("head_dim", SHAPE_SIZE, head_dim),
    DECODER("sliding_window", SHAPE_SIZE, window),
    DECODER("rotary_emb_base", SHAPE_DOUBLE, rope_base),
    DECODER("rope_scaling", SHAPE_ENUM, rope_scaling),
    DECODER("rope_factor", SHAPE_DOUBLE, rope_factor),
    SCALED("rope_low_freq_factor", rope_low_factor, 1u << FSDP_ROPE_LLAMA3),
    SCALED("rope_high_freq_factor", rope_high_factor, 1u << FSDP_ROPE_LLAMA3),
    SCALED("rope_original_context", rope_original_positions,
           1u << FSDP_ROPE_LLAMA3 | 1u << FSDP_ROPE_DYNAMIC | 1u << FSDP_ROPE_YARN),
    DECODER("norm_eps", SHAPE_FLOAT, norm_eps),
    DECODER("initializer_range", SHAPE_FLOAT, init_deviation),
    DECODER("tie_word_embeddings", SHAPE_SWITCH, tied),
    DECODER("attention_bias", SHAPE_SWITCH, attention_bias),
    DECODER("mlp_bias", SHAPE_SWITCH, mlp_bias),
    {NULL, SHAPE_SIZE, 0, 0},
};

static const shape_field t5_shape[] = {
    T5("vocab_size", SHAPE_SIZE, vocabulary),
    T5("hidden_width", SHAPE_SIZE, hidden),
    T5("intermediate_size", SHAPE_SIZE, intermediate),
    T5("num_layers", SHAPE_SIZE, layers),
    T5("num_decoder_layers", SHAPE_SIZE, decoder_layers),
    T5("num_heads", SHAPE_SIZE, heads),
    T5("num_key_value_heads", SHAPE_SIZE, heads),
    T5("head_dim", SHAPE_SIZE, head_dim),
    T5("relative_attention_buckets", SHAPE_SIZE, buckets),
    T5("relative_attention_max_distance", SHAPE_SIZE, max_distance),
    T5("norm_eps", SHAPE_FLOAT, norm_eps),
    T5("dropout", SHAPE_FLOAT, dropout),
    T5("initializer_range", SHAPE_FLOAT, init_factor),
    T5("feed_forward", SHAPE_GATED, gated),
    T5("tie_word_embeddings", SHAPE_SWITCH, tied),
    {NULL, SHAPE_SIZE, 0, 0},
};

static const shape_field cnn_shape[] = {
    CNN("image_channels", channels), CNN("image_height", height),  CNN("image_width", width),
    CNN("num_classes", classes),     CNN("conv1_channels", first), CNN("conv2_channels", second),
    CNN("branch_channels", branch),  CNN("hidden_width", hidden),  {NULL, SHAPE_SIZE, 0, 0},
};

static const shape_field mlp_shape[] = {
    MLP("hidden_width", hidden),
    MLP("num_layers", layers),
    MLP("num_classes", outputs),
    {NULL, SHAPE_SIZE, 0, 0},
};

static const shape_field *shape_of(model_config *c, void **fields)
{
    switch (c->type) {
    case MODEL_DECODER:
        *fields = &c->decoder;
        return decoder_shape;
    case MODEL_T5:
        *fields = &c->t5;
        return t5_shape;
    case MODEL_CNN:
        *fields = &c->cnn;
        return cnn_shape;
    case MODEL_MLP:
        break;
    }
    *fields = &c->mlp;
    return mlp_shape;
}

static double get_field(shape_kind kind, const void *field)
{
    switch (kind) {
    case SHAPE_SIZE:
        return (double)*(const int64_t *)field;
    case SHAPE_FLOAT:
        return (double)*(const float *)field;
    case SHAPE_DOUBLE:
        return *(const double *)field;
    case SHAPE_ENUM:
        return *(const int *)field;
    case SHAPE_SWITCH:
        return *(const bool *)field;
    case SHAPE_GATED:
        break;
    }
    return *(const bool *)field ? FSDP_ACTIVATION_GATED_GELU : FSDP_ACTIVATION_RELU;
}

static void set_field(shape_kind kind, void *field, double value)
{
    switch (kind) {
    case SHAPE_SIZE:
        *(int64_t *)field = (int64_t)value;
        break;
    case SHAPE_FLOAT:
        *(float *)field = (float)value;
        break;
    case SHAPE_DOUBLE:
        *(double *)field = value;
        break;
    case SHAPE_ENUM:
        *(int *)field = (int)value;
        break;
    case SHAPE_SWITCH:
        *(bool *)field = value != 0;
        break;
    case SHAPE_GATED:
        *(bool *)field = (int)value == FSDP_ACTIVATION_GATED_GELU;
        break;
    }
}

/* What is kept for a flag; all numbers of shapes are exact in a double. */
static double get_flag(const fsdp_settings *s, const fsdp_flag *flag)
{
    const void *value = (const char *)s + flag->offset;
    switch (flag->type) {
    case FSDP_FLAG_INT:
        return (double)*(const int64_t *)value;
    case FSDP_FLAG_FLOAT:
        return *(const double *)value;
    case FSDP_FLAG_SWITCH:
        return *(const bool *)value;
    default:
        return *(const int *)value;
    }
}

static void set_flag(fsdp_settings *s, const fsdp_flag *flag, double value)
{
    void *field = (char *)s + flag->offset;
    switch (flag->type) {
    case FSDP_FLAG_INT:
        *(int64_t *)field = (int64_t)value;
        break;
    case FSDP_FLAG_FLOAT:
        *(double *)field = value;
        break;
    case FSDP_FLAG_SWITCH:
        *(bool *)field = value != 0;
        break;
    default:
        *(int *)field = (int)value;
    }
    s->state.origin[flag - settings_table] = FSDP_FROM_MODEL;
}

void shape_from_flags(const fsdp_settings *s, model_config *out)
{
    void *fields;
    for (const shape_field *f = shape_of(out, &fields); f->flag; f++)
        set_field(f->kind, (char *)fields + f->offset, get_flag(s, fsdp_flags_find(settings_table, f->flag)));
}

/* "--a=1 contradicts the 2 of the model's config.json" */
static fsdp_status contradiction(const fsdp_settings *s, const fsdp_flag *flag, double value)
{
    fsdp_settings model = *s; /* borrows the texts */
    set_flag(&model, flag, value);
    char *given = fsdp_flags_value(flag, s), *wanted = fsdp_flags_value(flag, &model);
    fsdp_status status = error_set(FSDP_ERR_INPUT, "--%s=%s contradicts the %s of the model's config.json", flag->name,
                                   given ? given : "", wanted ? wanted : "value");
    free(given);
    free(wanted);
    return status;
}

fsdp_status shape_to_flags(fsdp_settings *s, const model_config *model)
{
    model_config copy = *model;
    void *fields;
    for (const shape_field *f = shape_of(&copy, &fields); f->flag; f++) {
        const fsdp_flag *flag = fsdp_flags_find(settings_table, f->flag);
        double given = get_flag(s, flag), value = get_field(f->kind, (char *)fields + f->offset);
        bool unset = given == 0 && (f->kind == SHAPE_SIZE || f->kind == SHAPE_FLOAT || f->kind == SHAPE_DOUBLE);
        if (f->scalings && !(f->scalings >> copy.decoder.rope_scaling & 1))
            continue;
        if ((float)given == (float)value) /* models keep their small numbers in fp32 */
            continue;
        if (s->state.origin[flag - settings_table] >= FSDP_FROM_FILE && !unset)
            return contradiction(s, flag, value);
        set_flag(s, flag, value);
    }
    return FSDP_OK;
}
