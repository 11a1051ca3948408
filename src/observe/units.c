/* Formats quantities for lines, tables and JSON. */
#include "observe/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

char *units_bytes(char *text, int64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;
    while (fabs(value) >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(text, UNITS_TEXT, unit ? "%.2f %s" : "%.0f %s", value, names[unit]);
    return text;
}

char *units_count(char *text, double count)
{
    static const char *const names[] = {"", "k", "M", "B", "T"};
    int unit = 0;
    while (fabs(count) >= 1000 && unit < 4) {
        count /= 1000;
        unit++;
    }
    int digits = unit == 0 ? 0 : fabs(count) < 10 ? 2 : fabs(count) < 100 ? 1 : 0;
    snprintf(text, UNITS_TEXT, "%.*f%s", digits, count, names[unit]);
    return text;
}

char *units_duration(char *text, double seconds)
{
    if (!isfinite(seconds) || seconds > 1e12)
        snprintf(text, UNITS_TEXT, "?");
    else if (seconds < 59.5)
        snprintf(text, UNITS_TEXT, seconds < 10 ? "%.2f s" : "%.0f s", seconds);
    else {
        long long whole = llround(seconds), days = whole / 86400, hours = whole / 3600 % 24;
        int minutes = (int)(whole / 60 % 60), rest = (int)(whole % 60);
        if (days)
            snprintf(text, UNITS_TEXT, "%lld d %lld:%02d:%02d", days, hours, minutes, rest);
        else if (hours)
            snprintf(text, UNITS_TEXT, "%lld:%02d:%02d", hours, minutes, rest);
        else
            snprintf(text, UNITS_TEXT, "%d:%02d", minutes, rest);
    }
    return text;
}

char *units_json(char *text, double value)
{
    if (!isfinite(value)) {
        snprintf(text, UNITS_TEXT, "null");
        return text;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, UNITS_TEXT, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return text;
}
