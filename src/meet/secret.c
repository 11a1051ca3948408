/* Secrets: where they come from, and what is proved with them. */
#include "meet/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef FSDP_WITH_CRYPTO
#include <openssl/evp.h>
#include <openssl/hmac.h>
#endif

#include "base/error.h"
#include "base/log.h"
#include "meet/wire.h"

bool secret_can_prove(void)
{
#ifdef FSDP_WITH_CRYPTO
    return true;
#else
    return false;
#endif
}

void secret_from_text(secret *s, const char *text)
{
    size_t n = strlen(text);
    s->n = n < SECRET_MAX ? n : SECRET_MAX;
    memcpy(s->bytes, text, s->n);
}

fsdp_status secret_read(secret *s, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (fd < 0)
        return error_set_errno(FSDP_ERR_INPUT, "%s: cannot read the job's secret", path);
    ssize_t n = read(fd, s->bytes, sizeof s->bytes);
    bool open_to_others = fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && (found.st_mode & 077);
    close(fd);
    while (n > 0 && (s->bytes[n - 1] == '\n' || s->bytes[n - 1] == '\r' || s->bytes[n - 1] == ' '))
        n--;
    if (n <= 0)
        return error_set(FSDP_ERR_INPUT, "%s: the job's secret is empty; write some random text into it", path);
    if (open_to_others)
        log_write(FSDP_LOG_WARNING, "%s: other users may read the job's secret; chmod 600 %s", path, path);
    s->n = (size_t)n;
    return FSDP_OK;
}

fsdp_status secret_draw_bytes(void *out, size_t n)
{
    ssize_t got;
    do
        got = getrandom(out, n, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)n)
        return error_set_errno(FSDP_ERR_IO, "cannot draw random bytes");
    return FSDP_OK;
}

fsdp_status secret_draw_text(char text[SECRET_TEXT_BYTES])
{
    uint8_t drawn[(SECRET_TEXT_BYTES - 1) / 2];
    FSDP_TRY(secret_draw_bytes(drawn, sizeof drawn));
    for (size_t i = 0; i < sizeof drawn; i++)
        snprintf(text + 2 * i, 3, "%02x", drawn[i]);
    return FSDP_OK;
}

void secret_prove(const secret *s, const char *side, const uint8_t nonce[SECRET_NONCE_BYTES], const void *claimed,
                  size_t bytes, uint8_t proof[SECRET_PROOF_BYTES])
{
    memset(proof, 0, SECRET_PROOF_BYTES);
#ifdef FSDP_WITH_CRYPTO
    wire_body body = {0};
    unsigned length = SECRET_PROOF_BYTES;
    wire_put_text(&body, side);
    wire_put(&body, nonce, SECRET_NONCE_BYTES);
    wire_put(&body, claimed, bytes);
    HMAC(EVP_sha256(), s->bytes, (int)s->n, (const unsigned char *)body.data, body.bytes, proof, &length);
    wire_free(&body);
#else
    (void)s, (void)side, (void)nonce, (void)claimed, (void)bytes;
#endif
}

bool secret_same(const uint8_t a[SECRET_PROOF_BYTES], const uint8_t b[SECRET_PROOF_BYTES])
{
    unsigned differing = 0;
    for (int i = 0; i < SECRET_PROOF_BYTES; i++)
        differing |= (unsigned)(a[i] ^ b[i]);
    return differing == 0;
}
