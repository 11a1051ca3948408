/* Short forms for the rows of a command's flag table. OPTIONS is defined as the struct that the rows fill, whose
 * members are called like the flags; more members follow in braces: {SWITCH(echo, NULL, "print the prompt in front")}.
 */
#ifndef CLI_FLAG_ROWS_H
#define CLI_FLAG_ROWS_H

#include <fsdp/flags.h>

#define ROW(name_, type_, help_) .name = #name_, .type = type_, .offset = offsetof(OPTIONS, name_), .help = help_
#define TEXT(name_, unit_, help_) ROW(name_, FSDP_FLAG_TEXT, help_), .unit = unit_
#define INT(name_, default_, min_, max_, unit_, help_)                                                                 \
    ROW(name_, FSDP_FLAG_INT, help_), .default_value = default_, .min = min_, .max = max_, .unit = unit_
#define FLOAT(name_, default_, min_, max_, unit_, help_)                                                               \
    ROW(name_, FSDP_FLAG_FLOAT, help_), .default_value = default_, .min = min_, .max = max_, .unit = unit_
#define SWITCH(name_, default_, help_) ROW(name_, FSDP_FLAG_SWITCH, help_), .default_value = default_
#define CHOICE(name_, choices_, help_) ROW(name_, FSDP_FLAG_CHOICE, help_), .choices = choices_

#endif
