/* Puts a page together. Data becomes ASCII JSON without the characters that end or open markup. */
#include "page/page.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

static const char *asset(const char *stem, const char *ending)
{
    for (const embedded_file *a = page_assets; a->name; a++) {
        size_t n = strlen(stem);
        if (strncmp(a->name, stem, n) == 0 && strcmp(a->name + n, ending) == 0)
            return a->text;
    }
    return NULL;
}

const char *page_style(void)
{
    return asset("page", ".css");
}

/* In JSON these occur within strings only, and there \u00XX means the same. */
static void print_json(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(out, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, out);
    }
}

static void print_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else
            fputc(*text, out);
    }
}

static void print_page(FILE *out, const page *p, const char *data)
{
    hash_stream hash;
    hash_stream_start(&hash);
    hash_stream_add(&hash, p->title, strlen(p->title));
    hash_stream_add(&hash, data, strlen(data));
    uint64_t nonce = hash_stream_end(&hash); /* of the content: the same plan gives the same file */
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"%s\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-%016" PRIx64
            "'; style-src 'nonce-%016" PRIx64 "'; %sbase-uri 'none'; form-action 'none'\">\n<title>",
            p->language, nonce, nonce, p->asks ? "connect-src 'self'; " : "");
    print_escaped(out, p->title);
    fprintf(out, "</title>\n<style nonce=\"%016" PRIx64 "\">\n%s</style>\n</head>\n<body>\n<main>\n<h1>", nonce,
            page_style());
    print_escaped(out, p->title);
    fputs("</h1>\n<noscript><p>This page draws its pictures with a script of its own.</p></noscript>\n</main>\n"
          "<script type=\"application/json\" id=\"data\">",
          out);
    print_json(out, data);
    fputs("</script>\n", out);
    const char *scripts[] = {"page", p->kit, p->view};
    for (int i = 0; i < 3; i++)
        if (scripts[i])
            fprintf(out, "<script nonce=\"%016" PRIx64 "\">\n%s</script>\n", nonce, asset(scripts[i], ".js"));
    fputs("</body>\n</html>\n", out);
}

fsdp_status page_text(const page *p, char **text, size_t *bytes)
{
    *text = NULL;
    if (!asset(p->view, ".js") || (p->kit && !asset(p->kit, ".js")))
        return error_set(FSDP_ERR_STATE, "there is no page called %s", p->view);
    char *data = json_dumps(p->data, JSON_ENSURE_ASCII | JSON_COMPACT | JSON_REAL_PRECISION(9));
    FILE *out = data ? open_memstream(text, bytes) : NULL;
    if (out)
        print_page(out, p, data);
    bool whole = out && !ferror(out);
    whole = out && fclose(out) == 0 && whole;
    free(data);
    if (whole)
        return FSDP_OK;
    free(*text);
    *text = NULL;
    return error_set(FSDP_ERR_MEMORY, "writing a page: out of host memory");
}

fsdp_status page_write(const page *p, const char *path)
{
    char *text;
    size_t bytes;
    FSDP_TRY(page_text(p, &text, &bytes));
    fsdp_status status = file_write_atomic(path, text, bytes);
    free(text);
    return status;
}
