/* Reads environment variables. What they mean is for the layers that ask. */
#include "base/host/environment.h"

#include <errno.h>
#include <stdlib.h>

const char *environment_text(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

const char *environment_value(const char *name)
{
    return getenv(name);
}

bool environment_int(const char *name, int64_t *out)
{
    const char *text = environment_text(name);
    if (!text)
        return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end)
        return false;
    *out = value;
    return true;
}
