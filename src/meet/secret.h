/* The secret that the launchers and ranks of a job share, and the keyed hash (HMAC-SHA-256, of libcrypto) by which each
 * side shows that it knows it without saying it. */
#ifndef MEET_SECRET_H
#define MEET_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

enum { SECRET_MAX = 256, SECRET_PROOF_BYTES = 32, SECRET_NONCE_BYTES = 16, SECRET_TEXT_BYTES = 65 };

typedef struct secret {
    uint8_t bytes[SECRET_MAX];
    size_t n;
} secret;

/* Whether this build has libcrypto. Without it nothing can be proved: jobs then meet on one host only, over a Unix
 * socket whose other end must belong to the same user (endpoint.h). */
bool secret_can_prove(void);

void secret_from_text(secret *s, const char *text);         /* cut at SECRET_MAX */
fsdp_status secret_read(secret *s, const char *path);       /* of a file; white space at its end does not count */
fsdp_status secret_draw_bytes(void *out, size_t n);         /* random */
fsdp_status secret_draw_text(char text[SECRET_TEXT_BYTES]); /* 64 hexadecimal digits */

/* What one side ("client" or "store") shows: the keyed hash of its name, of the number that the other side has drawn
 * and of all that it claims. Zeros in a build that cannot prove. */
void secret_prove(const secret *s, const char *side, const uint8_t nonce[SECRET_NONCE_BYTES], const void *claimed,
                  size_t bytes, uint8_t proof[SECRET_PROOF_BYTES]);
/* Takes the same time wherever the two differ. */
bool secret_same(const uint8_t a[SECRET_PROOF_BYTES], const uint8_t b[SECRET_PROOF_BYTES]);

#endif
