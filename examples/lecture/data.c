/* Digits drawn when they are asked for, and the folder of IDX files. */
#include "data.h"

#include <fsdp/fsdp.h>

#include "../cnn/draw_digit.h"
#include "net.h"

/* Neighbouring numbers become starts of random sequences that have nothing in common. */
static uint64_t scatter(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A data set of one's own is a count and a function that reads one sample. This one draws it: the same picture whenever
 * the same number is asked for, so nothing needs to be kept. */
static fsdp_status read_digit(void *context, int64_t index, void *const *fields)
{
    bool validation = context != NULL;
    float *pixels = fields[0];
    int32_t *label = fields[1];
    uint64_t state = scatter((uint64_t)index * 2 + validation + 1);
    uint8_t image[DIGIT_PIXELS];
    *label = draw_digit(&state, image);
    for (int i = 0; i < DIGIT_PIXELS; i++)
        pixels[i] = image[i] / 255.0f;
    return FSDP_OK;
}

static fsdp_status make_digits(bool validation, int64_t count, fsdp_dataset **out)
{
    static int marked; /* any address but NULL */
    const fsdp_field fields[] = {
        {.name = "pixels", .dtype = FSDP_F32, .n_dims = 3, .shape = {1, SIDE, SIDE}},
        {.name = "classes", .dtype = FSDP_I32, .padding = FSDP_IGNORE},
    };
    fsdp_dataset_source source = FSDP_DATASET_SOURCE_INIT;
    source.name = validation ? "digits to test on" : "digits";
    source.count = count;
    source.n_fields = 2;
    source.fields = fields;
    source.read = read_digit;
    source.context = validation ? &marked : NULL;
    return fsdp_dataset_from(&source, out);
}

fsdp_status data_open(const char *folder, bool validation, int64_t count, fsdp_dataset **out)
{
    if (!folder)
        return make_digits(validation, count, out);
    fsdp_dataset_config config = FSDP_DATASET_CONFIG_INIT;
    config.names = &folder;
    config.n_names = 1;
    config.part = validation ? FSDP_PART_NAMED_VALIDATION : FSDP_PART_TRAINING;
    FSDP_TRY(fsdp_dataset_open(&config, out));
    if (!*out)
        return fsdp_fail(FSDP_ERR_INPUT, "%s: no pictures to test on: t10k-images-idx3-ubyte is missing", folder);
    return FSDP_OK;
}
