/* Character properties in regular expressions as the tokenizers library knows them, whichever Oniguruma is installed.
 */
#ifndef TOKENIZER_PATTERN_CLASSES_H
#define TOKENIZER_PATTERN_CLASSES_H

#include "tokenizer/text/text_buffer.h"

/* Appends `text` with every \p{category}, \p{script}, \w and \d written out as a set of code points. Other properties
 * stay, for Oniguruma to know. */
fsdp_status pattern_classes_expand(const char *text, size_t bytes, text_buffer *out);

#endif
