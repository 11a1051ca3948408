/* Structs with a size, read and written as far as both sides know them. */
#include "base/sized.h"

#include <string.h>

#include "base/error.h"

/* No struct grows by more than this: a larger size is memory that was never initialised. */
enum { MAX_GROWTH = 64 * 1024 };

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static fsdp_status check_size(size_t size, size_t known, const char *type, const char *init)
{
    if (size == 0)
        return error_set(FSDP_ERR_INPUT, "%s has size 0: start from %s", type, init);
    if (size < sizeof size || size > known + MAX_GROWTH)
        return error_set(FSDP_ERR_INPUT,
                         "%s has size %zu, which cannot be (this library knows %zu bytes): start from %s", type, size,
                         known, init);
    return FSDP_OK;
}

fsdp_status sized_read(void *full, size_t known, const void *given, const char *type, const char *init)
{
    if (!given)
        return error_set(FSDP_ERR_INPUT, "%s is NULL: start from %s", type, init);
    size_t size = size_of(given);
    FSDP_TRY(check_size(size, known, type, init));
    const unsigned char *bytes = given;
    for (size_t i = known; i < size; i++) {
        if (bytes[i])
            return error_set(
                FSDP_ERR_INPUT,
                "%s of %zu bytes sets a field beyond the %zu that this library knows: the program was built "
                "with newer headers (of %s); install a newer library",
                type, size, known, init);
    }
    memcpy(full, given, size < known ? size : known);
    memcpy(full, &known, sizeof known);
    return FSDP_OK;
}

fsdp_status sized_check(const void *given, size_t known, const char *type, const char *init)
{
    return given ? check_size(size_of(given), known, type, init) : FSDP_OK;
}

void sized_write(void *given, const void *full, size_t known)
{
    if (!given)
        return;
    size_t size = size_of(given), both = size < known ? size : known;
    memcpy((char *)given + sizeof size, (const char *)full + sizeof size, both - sizeof size);
    memset((char *)given + both, 0, size - both);
}
