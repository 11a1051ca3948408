/* Jinja's rules for blanks around tags, as transformers sets them: the newline behind a block or comment goes
 * (trim_blocks), and so do blanks in front of one that begins its line (lstrip_blocks); '-' takes all blanks on its
 * side, '+' keeps them. A newline that ends the template goes. */
#include "tokenizer/template/template_lexer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct lexer {
    arena *arena;
    const char *text;
    size_t bytes, at;
    int line;
    bool line_starting; /* nothing but the start of the template or a trimmed newline stands before `at` */
    int n_brackets;     /* open in this tag: "}}" may close two dicts */
    word_list_of_template *out;
} lexer;

static fsdp_status add_word(lexer *l, word_kind kind, value constant)
{
    word_list_of_template *w = l->out;
    if (w->n == w->capacity) {
        size_t capacity = w->capacity * 2 + 64;
        word *larger = arena_alloc(l->arena, capacity * sizeof *larger);
        if (larger == NULL)
            return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
        if (w->n > 0)
            memcpy(larger, w->words, w->n * sizeof *larger);
        w->words = larger;
        w->capacity = capacity;
    }
    w->words[w->n++] = (word){kind, l->line, constant};
    return FSDP_OK;
}

static void move_to(lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->text[l->at] == '\n';
}

static bool looking_at(const lexer *l, const char *text)
{
    size_t n = strlen(text);
    return l->bytes - l->at >= n && memcmp(l->text + l->at, text, n) == 0;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void skip_blanks(lexer *l)
{
    while (l->at < l->bytes && is_blank(l->text[l->at]))
        move_to(l, l->at + 1);
}

/* The text up to the next tag, less the blanks that the tag takes. */
static fsdp_status lex_text(lexer *l)
{
    size_t start = l->at, tag = start;
    while (tag < l->bytes && !(l->text[tag] == '{' && tag + 1 < l->bytes && strchr("{%#", l->text[tag + 1]) != NULL &&
                               l->text[tag + 1] != '\0'))
        tag++;
    size_t end = tag;
    char sign = tag + 2 < l->bytes ? l->text[tag + 2] : '\0';
    if (tag < l->bytes && sign == '-') {
        while (end > start && is_blank(l->text[end - 1]))
            end--;
    } else if (tag < l->bytes && sign != '+' && l->text[tag + 1] != '{') {
        size_t from = tag;
        while (from > start && is_blank(l->text[from - 1]) && l->text[from - 1] != '\n')
            from--;
        if (from > start ? l->text[from - 1] == '\n' : l->line_starting)
            end = from;
    }
    if (end > start)
        FSDP_TRY(add_word(l, WORD_TEXT, value_string(l->text + start, end - start)));
    move_to(l, tag);
    return FSDP_OK;
}

/* Behind the sign and the end of a tag: what '-', '+' and trim_blocks do to the blanks. */
static void leave_tag(lexer *l, char sign, bool trims)
{
    l->line_starting = false;
    if (sign == '-') {
        size_t before = l->at;
        skip_blanks(l);
        l->line_starting = l->at > before && l->text[l->at - 1] == '\n';
    } else if (trims && sign != '+' && l->at < l->bytes && l->text[l->at] == '\n') {
        move_to(l, l->at + 1);
        l->line_starting = true;
    }
}

static fsdp_status lex_comment(lexer *l)
{
    const char *end = memmem(l->text + l->at, l->bytes - l->at, "#}", 2);
    if (end == NULL)
        return error_set(FSDP_ERR_INPUT, "line %d: a comment has no end", l->line);
    char sign = end > l->text + l->at + 2 ? end[-1] : '\0';
    move_to(l, (size_t)(end - l->text) + 2);
    leave_tag(l, sign == '-' || sign == '+' ? sign : '\0', true);
    return FSDP_OK;
}

static fsdp_status lex_string(lexer *l)
{
    char quote = l->text[l->at];
    size_t end = l->at + 1, n = 0;
    while (end < l->bytes && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->bytes)
        return error_set(FSDP_ERR_INPUT, "line %d: a string has no end", l->line);
    char *text = arena_alloc(l->arena, end - l->at);
    if (text == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
    for (size_t i = l->at + 1; i < end; i++) {
        static const char codes[] = "ntrbf\\'\"", values[] = "\n\t\r\b\f\\'\"";
        const char *code = l->text[i] == '\\' && l->text[i + 1] != '\0' ? strchr(codes, l->text[i + 1]) : NULL;
        if (l->text[i] == '\\' && code == NULL && strchr("xuUN01234567a", l->text[i + 1]) != NULL)
            return error_set(FSDP_ERR_UNSUPPORTED, "line %d: the escape \\%c in a string is not supported", l->line,
                             l->text[i + 1]);
        if (code != NULL && ++i)
            text[n++] = values[code - codes];
        else
            text[n++] = l->text[i];
    }
    FSDP_TRY(add_word(l, WORD_STRING, value_string(text, n)));
    move_to(l, end + 1);
    return FSDP_OK;
}

static fsdp_status lex_number(lexer *l)
{
    char digits[64];
    size_t n = 0;
    bool real = false;
    for (size_t i = l->at; i < l->bytes && n + 1 < sizeof digits; i++) {
        char c = l->text[i];
        bool point = c == '.' && !real && i + 1 < l->bytes && isdigit((unsigned char)l->text[i + 1]);
        if (!isdigit((unsigned char)c) && !point)
            break;
        real = real || point;
        digits[n++] = c;
    }
    digits[n] = '\0';
    value v =
        real ? (value){.kind = VALUE_REAL, .real = strtod(digits, NULL)} : value_integer(strtoll(digits, NULL, 10));
    FSDP_TRY(add_word(l, WORD_NUMBER, v));
    move_to(l, l->at + n);
    return FSDP_OK;
}

static bool is_name_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* One word of a tag. */
static fsdp_status lex_word(lexer *l)
{
    static const char *const signs[] = {"**", "//", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",",
                                        ".",  ":",  "|",  "+",  "-",  "*",  "/", "%", "~", "<", ">", "="};
    char c = l->text[l->at];
    if (c == '"' || c == '\'')
        return lex_string(l);
    if (isdigit((unsigned char)c))
        return lex_number(l);
    if (is_name_letter(c)) {
        size_t end = l->at;
        while (end < l->bytes && is_name_letter(l->text[end]))
            end++;
        FSDP_TRY(add_word(l, WORD_NAME, value_string(l->text + l->at, end - l->at)));
        l->at = end;
        return FSDP_OK;
    }
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (!looking_at(l, signs[i]))
            continue;
        if (signs[i][1] == '\0' && strchr("([{", signs[i][0]) != NULL)
            l->n_brackets++;
        if (signs[i][1] == '\0' && strchr(")]}", signs[i][0]) != NULL)
            l->n_brackets--;
        FSDP_TRY(add_word(l, WORD_SIGN, value_literal(signs[i])));
        l->at += strlen(signs[i]);
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT, "line %d: unexpected character '%c'", l->line, c);
}

static fsdp_status lex_tag(lexer *l, bool print)
{
    const char *end = print ? "}}" : "%}";
    l->n_brackets = 0;
    l->at += 2;
    l->at += l->at < l->bytes && (l->text[l->at] == '-' || l->text[l->at] == '+');
    FSDP_TRY(add_word(l, print ? WORD_PRINT_BEGIN : WORD_BLOCK_BEGIN, value_none()));
    for (;;) {
        skip_blanks(l);
        if (l->at >= l->bytes)
            return error_set(FSDP_ERR_INPUT, "line %d: a tag has no end", l->line);
        bool sign = (l->text[l->at] == '-' || l->text[l->at] == '+') && l->bytes - l->at >= 3 &&
                    memcmp(l->text + l->at + 1, end, 2) == 0;
        if (l->n_brackets <= 0 && (sign || looking_at(l, end))) {
            char which = sign ? l->text[l->at] : '\0';
            l->at += sign ? 3 : 2;
            FSDP_TRY(add_word(l, print ? WORD_PRINT_END : WORD_BLOCK_END, value_none()));
            leave_tag(l, which, !print);
            return FSDP_OK;
        }
        FSDP_TRY(lex_word(l));
    }
}

/* Line ends become newlines, and one at the end goes. */
static fsdp_status plain_lines(arena *a, const char *text, size_t bytes, lexer *l)
{
    char *copy = arena_alloc(a, bytes + 1);
    size_t n = 0;
    if (copy == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
    for (size_t i = 0; i < bytes; i++) {
        bool pair = text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n';
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
        i += pair;
    }
    l->text = copy;
    l->bytes = n > 0 && copy[n - 1] == '\n' ? n - 1 : n;
    return FSDP_OK;
}

fsdp_status template_lex(arena *a, const char *text, size_t bytes, word_list_of_template *out)
{
    lexer l = {.arena = a, .line = 1, .line_starting = true, .out = out};
    *out = (word_list_of_template){0};
    FSDP_TRY(plain_lines(a, text, bytes, &l));
    while (l.at < l.bytes) {
        FSDP_TRY(lex_text(&l));
        if (l.at >= l.bytes)
            break;
        if (l.text[l.at + 1] == '#')
            FSDP_TRY(lex_comment(&l));
        else
            FSDP_TRY(lex_tag(&l, l.text[l.at + 1] == '{'));
    }
    return add_word(&l, WORD_END, value_none());
}
