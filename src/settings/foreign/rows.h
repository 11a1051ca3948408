/* Short forms of the rows in the tables of other tools' keys. */
#ifndef SETTINGS_FOREIGN_ROWS_H
#define SETTINGS_FOREIGN_ROWS_H

#include "settings/foreign/foreign.h"

#define READ(key_)                                                                                                     \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_READ                                                                              \
    }
#define FLAG(key_, flag_)                                                                                              \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_FLAG, .flag = flag_                                                               \
    }
#define WORD(key_, flag_, values_, why_)                                                                               \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_FLAG, .flag = flag_, .values = values_, .why = why_                               \
    }
#define NOTE(key_, why_)                                                                                               \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_NOTE, .why = why_                                                                 \
    }
#define NOTE_UNLESS(key_, values_, why_)                                                                               \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_NOTE, .values = values_, .why = why_                                              \
    }
#define MUST(key_, values_, why_)                                                                                      \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_MUST, .values = values_, .why = why_                                              \
    }
#define OFF(key_, why_)                                                                                                \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_OFF, .why = why_                                                                  \
    }
#define SECTION(key_, rows_)                                                                                           \
    {                                                                                                                  \
        .key = key_, .kind = FOREIGN_SECTION, .rows = rows_                                                            \
    }
#define END                                                                                                            \
    {                                                                                                                  \
        .key = NULL                                                                                                    \
    }

#endif
