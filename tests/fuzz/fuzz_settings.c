/* Any bytes as a file of settings: what is refused says why; what is accepted and not contradictory can be written as
 * JSON and read again, and is the same then. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/settings.h>

#include "settings/flags_value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition)
{
    if (!condition)
        abort();
}

static fsdp_status read_settings(fsdp_settings *s, const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    require(copy != NULL);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    require(fsdp_settings_init(s) == FSDP_OK);
    fsdp_status status = flags_read_text(fsdp_settings_flags(), s, &s->state, "train", "fuzz", copy, bytes);
    if (status == FSDP_OK)
        status = fsdp_settings_check(s);
    free(copy);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fsdp_settings s, again;
    char *text = NULL, *text_again = NULL;
    if (read_settings(&s, (const char *)data, bytes) != FSDP_OK) {
        require(strlen(fsdp_last_error()) > 0);
        fsdp_settings_free(&s);
        return 0;
    }
    require(fsdp_settings_json(&s, &text) == FSDP_OK);
    require(read_settings(&again, text, strlen(text)) == FSDP_OK);
    require(fsdp_settings_json(&again, &text_again) == FSDP_OK);
    require(strcmp(text, text_again) == 0);
    free(text_again);
    free(text);
    fsdp_settings_free(&again);
    fsdp_settings_free(&s);
    return 0;
}
