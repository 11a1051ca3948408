/* What a rank says it is doing: compared between ranks at every collective, and shown in messages. Plain data, so that
 * it can lie in shared memory or travel in a message. */
#ifndef COMM_SIGNATURE_H
#define COMM_SIGNATURE_H

#include "comm/comm.h"

typedef struct signature {
    uint64_t hash; /* of everything that must agree, counts per rank included */
    int64_t step, elements;
    int32_t kind, n_spans, reduction, from, to; /* dtypes of the first span */
    char unit[COMM_NAME_BYTES], label[COMM_NAME_BYTES];
} signature;

void signature_make(const comm_request *r, signature *out);

/* "all_gather of unit layers.7". Returns text. */
const char *signature_text(const signature *s, char *text, size_t bytes);

/* Where a rank was, for messages: "last reached layers.6 (step 120)", "has not reached any collective". */
const char *signature_place(const signature *s, char *text, size_t bytes);

/* Sets the error that names both ranks (of the world) and what each of them called. */
fsdp_status signature_mismatch(const signature *a, int rank_a, const signature *b, int rank_b);

#endif
