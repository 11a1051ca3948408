/* Any bytes as a file of another tool, DeepSpeed's where the first is an even number, else accelerate's: what is
 * refused says why, and what is accepted gives settings that can be written as JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "settings/foreign/foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp_settings s;
    char *text = bytes ? malloc(bytes) : NULL, *json = NULL;
    if (!text || fsdp_settings_init(&s) != FSDP_OK) {
        free(text);
        return 0;
    }
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    /* A path from the input would be opened. */
    bool opens = strstr(text, "deepspeed_config_file") != NULL;
    foreign_reader reader = data[0] % 2 ? accelerate_read : deepspeed_read;
    fsdp_status status = opens ? FSDP_ERR_INPUT : reader(&s, "train", "fuzz", text, bytes - 1);
    if (status == FSDP_OK)
        status = fsdp_settings_check(&s);
    if (!opens && status != FSDP_OK && strlen(fsdp_last_error()) == 0)
        abort();
    if (status == FSDP_OK && fsdp_settings_json(&s, &json) != FSDP_OK)
        abort();
    free(json);
    free(text);
    fsdp_settings_free(&s);
    return 0;
}
