/* Any bytes to the reader of config.json: what is accepted stays within bounds that memory can hold, is what is written
 * and read again, and builds. Built with clang -fsanitize=fuzzer it searches; otherwise it replays
 * tests/fuzz/corpus/config. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

/* Messages go to terminals: one line, and nothing that moves the cursor. */
static void check_message(void)
{
    const char *text = fsdp_last_error();
    require(strlen(text) > 0);
    for (; *text; text++)
        require((unsigned char)*text >= ' ' && *text != 0x7f);
}

static int64_t layers_of(const model_config *c)
{
    return c->type == MODEL_DECODER ? c->decoder.layers
           : c->type == MODEL_T5    ? c->t5.layers + c->t5.decoder_layers
           : c->type == MODEL_MLP   ? c->mlp.layers
                                    : 1;
}

static void check_round_trip(const json_t *source, const model_config *first)
{
    model_config again;
    json_t *ours = model_config_json(first), *updated = model_config_update(source, first);
    require(ours && updated);
    require(model_config_parse("ours", ours, &again) == FSDP_OK && again.type == first->type);
    require(again.decoder.head_dim == first->decoder.head_dim &&
            again.decoder.rope_scaling == first->decoder.rope_scaling);
    require(again.t5.gated == first->t5.gated && again.t5.decoder_start_id == first->t5.decoder_start_id);
    require(model_config_parse("updated", updated, &again) == FSDP_OK && again.type == first->type);
    require(again.decoder.window == first->decoder.window && again.decoder.positions == first->decoder.positions);
    require(again.decoder.rope_scaling == first->decoder.rope_scaling && again.t5.tied == first->t5.tied);
    require(again.t5.scale_decoder_outputs == first->t5.scale_decoder_outputs);
    json_decref(ours);
    json_decref(updated);
}

/* Building takes host memory by layers and positions only. */
static void check_building(model_config *c)
{
    fsdp_module *m = NULL;
    if (layers_of(c) > 64)
        return;
    if (c->type == MODEL_DECODER)
        c->decoder.positions = 1;
    require(model_create(c, &m) == FSDP_OK);
    fsdp_module_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    model_config c;
    json_t *object = NULL;
    if (json_parse("fuzz", (const char *)data, bytes, &object) != FSDP_OK)
        return 0;
    if (model_config_parse("fuzz", object, &c) != FSDP_OK) {
        check_message();
    } else {
        check_round_trip(object, &c);
        check_building(&c);
    }
    json_decref(object);
    return 0;
}
