/* The part of YAML that accelerate writes, as JSON: mappings and lists by indentation, texts, numbers, true, false and
 * null. Whatever else YAML has (anchors, tags, texts over several lines, mappings in braces or in lists) is refused
 * with its line: a guess would be a wrong setting. */
#ifndef SETTINGS_FOREIGN_YAML_H
#define SETTINGS_FOREIGN_YAML_H

#include <stddef.h>

#include <jansson.h>

#include <fsdp/status.h>

/* `name` is what errors call the text. `text` has a NUL after its `bytes` and is modified. The caller owns *out, which
 * is an object. */
fsdp_status yaml_parse(const char *name, char *text, size_t bytes, json_t **out);

#endif
