/* Fields of messages. */
#include "meet/wire.h"

#include <stdlib.h>
#include <string.h>

void wire_put(wire_body *b, const void *data, size_t bytes)
{
    if (b->bytes + bytes > b->room) {
        size_t room = b->room ? b->room : 256;
        while (room < b->bytes + bytes)
            room *= 2;
        char *grown = b->failed ? NULL : realloc(b->data, room);
        if (!grown) {
            b->failed = true;
            return;
        }
        b->data = grown;
        b->room = room;
    }
    if (bytes)
        memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
}

void wire_put_u32(wire_body *b, uint32_t value)
{
    wire_put(b, &value, sizeof value);
}

void wire_put_i32(wire_body *b, int32_t value)
{
    wire_put(b, &value, sizeof value);
}

void wire_put_i64(wire_body *b, int64_t value)
{
    wire_put(b, &value, sizeof value);
}

void wire_put_f64(wire_body *b, double value)
{
    wire_put(b, &value, sizeof value);
}

void wire_put_blob(wire_body *b, const void *data, size_t bytes)
{
    wire_put_u32(b, (uint32_t)bytes);
    wire_put(b, data, bytes);
}

void wire_put_text(wire_body *b, const char *text)
{
    wire_put_blob(b, text, strlen(text));
}

void wire_free(wire_body *b)
{
    free(b->data);
    *b = (wire_body){0};
}

wire_reader wire_read(const void *body, size_t bytes)
{
    return (wire_reader){.at = body, .left = bytes};
}

bool wire_get(wire_reader *r, void *out, size_t bytes)
{
    if (r->broken || r->left < bytes) {
        r->broken = true;
        memset(out, 0, bytes);
        return false;
    }
    memcpy(out, r->at, bytes);
    r->at += bytes;
    r->left -= bytes;
    return true;
}

uint32_t wire_get_u32(wire_reader *r)
{
    uint32_t value;
    wire_get(r, &value, sizeof value);
    return value;
}

int32_t wire_get_i32(wire_reader *r)
{
    int32_t value;
    wire_get(r, &value, sizeof value);
    return value;
}

int64_t wire_get_i64(wire_reader *r)
{
    int64_t value;
    wire_get(r, &value, sizeof value);
    return value;
}

double wire_get_f64(wire_reader *r)
{
    double value;
    wire_get(r, &value, sizeof value);
    return value == value ? value : 0;
}

const void *wire_get_blob(wire_reader *r, size_t *bytes, size_t most)
{
    uint32_t n = wire_get_u32(r);
    if (r->broken || n > most || n > r->left) {
        r->broken = true;
        *bytes = 0;
        return "";
    }
    const void *data = r->at;
    r->at += n;
    r->left -= n;
    *bytes = n;
    return data;
}

void wire_get_text(wire_reader *r, char *text, size_t room)
{
    size_t n;
    const char *data = wire_get_blob(r, &n, room - 1);
    if (memchr(data, 0, n)) {
        r->broken = true;
        n = 0;
    }
    memcpy(text, data, n);
    text[n] = 0;
}

bool wire_done(const wire_reader *r)
{
    return !r->broken && r->left == 0;
}
