/* A ring of jobs: the calling thread fills the next one with documents, workers tokenize whichever is full, and the
 * calling thread empties the oldest into the sink. With one thread the same jobs are done in place. */
#include "data/token_build.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/condition.h"
#include "base/error.h"
#include "base/log.h"
#include "data/document.h"
#include "tokenizer/text/text_buffer.h"
#include "tokenizer/tokenizer_internal.h"

enum { JOB_BYTES = 256 << 10, MAX_THREADS = 64, ERROR_BYTES = 512 };

typedef enum job_state { JOB_EMPTY, JOB_FULL, JOB_RUNNING, JOB_DONE } job_state;

typedef struct job {
    job_state state;
    text_buffer text;
    span_vector parts;      /* of documents: start, end, PART_* bits */
    document_place *places; /* of each part */
    size_t places_capacity;
    id_vector ids;
    span_vector pieces; /* of ids, one for each part: start, end, whether a document ends */
    fsdp_status status;
    char error[ERROR_BYTES];
} job;

enum { PART_STARTS = 1, PART_ENDS = 2 };

typedef struct build {
    const token_build_options *options;
    const token_sink *sink;
    fsdp_tokenize_result result;
    document_reader *reader;
    fsdp_tokenizer *own; /* of the calling thread */
    job *jobs;
    size_t n_jobs, n_threads, n_started;
    size_t next_to_fill, next_to_run, next_to_empty; /* counts; modulo n_jobs they are places in the ring */
    bool at_document_start, stopping;
    bool enough; /* options->max_tokens is reached */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t threads[MAX_THREADS];
    fsdp_tokenizer *tokenizers[MAX_THREADS];
} build;

static void wait_for_change(build *b)
{
    condition_wait_a_second(&b->changed, &b->lock);
}

/* --- tokenizing one job ------------------------------------------------------------------------------------------ */

/* What begins a text stands only at the start of a document, what ends one only at its end, however many parts it has.
 * The end token ends every document, once. */
static fsdp_status tokenize_part(fsdp_tokenizer *t, const char *text, const text_span *span, job *j)
{
    const int32_t *ids;
    size_t n, start = j->ids.n;
    int32_t eos = fsdp_tokenizer_eos(t);
    bool starts = span->matched & PART_STARTS, ends = span->matched & PART_ENDS;
    int part = (starts ? TOKENIZER_FRONT : TOKENIZER_CONTINUES) | (ends ? TOKENIZER_BACK : 0);
    FSDP_TRY(tokenizer_encode_part(t, text, span->end - span->start, part, &ids, &n));
    if (ends && n > 0 && eos >= 0 && ids[n - 1] == eos)
        n--;
    FSDP_TRY(id_append_all(&j->ids, ids, n));
    if (ends && eos >= 0)
        FSDP_TRY(id_append(&j->ids, eos));
    return span_append(&j->pieces, start, j->ids.n, ends);
}

static void run_job(fsdp_tokenizer *t, job *j)
{
    j->ids.n = j->pieces.n = 0;
    j->status = FSDP_OK;
    for (size_t i = 0; i < j->parts.n && j->status == FSDP_OK; i++)
        j->status = tokenize_part(t, j->text.data + j->parts.data[i].start, &j->parts.data[i], j);
    if (j->status != FSDP_OK)
        snprintf(j->error, sizeof j->error, "%s", fsdp_last_error());
}

typedef struct worker_start {
    build *build;
    size_t index;
} worker_start;

static void *work(void *argument)
{
    build *b = ((worker_start *)argument)->build;
    fsdp_tokenizer *t = b->tokenizers[((worker_start *)argument)->index];
    free(argument);
    pthread_mutex_lock(&b->lock);
    while (!b->stopping) {
        if (b->next_to_run == b->next_to_fill) {
            wait_for_change(b);
            continue;
        }
        job *j = &b->jobs[b->next_to_run++ % b->n_jobs];
        j->state = JOB_RUNNING;
        pthread_mutex_unlock(&b->lock);
        run_job(t, j);
        pthread_mutex_lock(&b->lock);
        j->state = JOB_DONE;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* --- filling and emptying, on the calling thread ----------------------------------------------------------------- */

static fsdp_status fill_job(build *b, job *j, bool *more)
{
    document d;
    j->text.bytes = j->parts.n = 0;
    while (j->text.bytes < JOB_BYTES) {
        FSDP_TRY(document_reader_next(b->reader, &d, more));
        if (!*more)
            break;
        bool nothing = d.bytes == 0 && b->at_document_start;
        if (!nothing) {
            size_t start = j->text.bytes;
            FSDP_TRY(text_append(&j->text, d.text, d.bytes));
            if (j->parts.n == j->places_capacity)
                FSDP_TRY(array_grow((void **)&j->places, &j->places_capacity, j->parts.n + 1, sizeof *j->places));
            j->places[j->parts.n] = d.place;
            FSDP_TRY(span_append(&j->parts, start, j->text.bytes,
                                 (b->at_document_start ? PART_STARTS : 0) | (d.ends ? PART_ENDS : 0)));
            b->at_document_start = d.ends;
        }
        b->result.n_bytes += (int64_t)d.bytes;
    }
    return FSDP_OK;
}

static fsdp_status empty_job(build *b, job *j)
{
    if (j->status != FSDP_OK)
        return error_set(j->status, "%s", j->error);
    for (size_t i = 0; i < j->pieces.n; i++) {
        text_span s = j->pieces.data[i];
        int64_t n = (int64_t)(s.end - s.start), most = b->options->max_tokens;
        if (most > 0 && n > most - b->result.n_tokens)
            n = most - b->result.n_tokens;
        if (b->sink->begin != NULL)
            FSDP_TRY(b->sink->begin(b->sink->context, &j->places[i]));
        FSDP_TRY(b->sink->append(b->sink->context, j->ids.data + s.start, (size_t)n));
        b->result.n_tokens += n;
        b->enough = most > 0 && b->result.n_tokens >= most;
        if (!s.matched && !b->enough)
            continue;
        FSDP_TRY(b->sink->end_document(b->sink->context));
        b->result.n_documents++;
        if (b->enough)
            break;
    }
    if (b->options->progress != NULL)
        b->options->progress(b->options->context, b->result.n_bytes, b->result.n_tokens,
                             document_reader_part(b->reader));
    return FSDP_OK;
}

/* Empties the oldest job, waiting for it where workers run. */
static fsdp_status empty_oldest(build *b)
{
    job *j = &b->jobs[b->next_to_empty % b->n_jobs];
    if (b->n_threads <= 1) {
        run_job(b->own, j);
    } else {
        pthread_mutex_lock(&b->lock);
        while (j->state != JOB_DONE)
            wait_for_change(b);
        pthread_mutex_unlock(&b->lock);
    }
    b->next_to_empty++;
    j->state = JOB_EMPTY;
    return empty_job(b, j);
}

static void submit(build *b, job *j)
{
    pthread_mutex_lock(&b->lock);
    j->state = JOB_FULL;
    b->next_to_fill++;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static fsdp_status run(build *b)
{
    bool more = true;
    while (more && !b->enough) {
        if (b->options->stop_requested != NULL && b->options->stop_requested(b->options->context) != 0)
            return error_set(FSDP_ERR_STATE, "interrupted while text was made into tokens; nothing of it is kept");
        job *j = &b->jobs[b->next_to_fill % b->n_jobs];
        if (b->next_to_fill - b->next_to_empty == b->n_jobs) {
            FSDP_TRY(empty_oldest(b));
            continue;
        }
        FSDP_TRY(fill_job(b, j, &more));
        submit(b, j);
    }
    while (b->next_to_empty < b->next_to_fill && !b->enough)
        FSDP_TRY(empty_oldest(b));
    return FSDP_OK;
}

/* --- setting up and taking down ---------------------------------------------------------------------------------- */

static fsdp_status start_workers(build *b, const fsdp_tokenizer *tokenizer)
{
    for (size_t i = 0; i < b->n_threads && b->n_threads > 1; i++) {
        FSDP_TRY(fsdp_tokenizer_share(tokenizer, &b->tokenizers[i]));
        worker_start *start = malloc(sizeof *start);
        if (start == NULL)
            return error_set(FSDP_ERR_MEMORY, "out of memory");
        *start = (worker_start){b, i};
        int rc = pthread_create(&b->threads[i], NULL, work, start);
        if (rc != 0) {
            free(start);
            errno = rc;
            return error_set_errno(FSDP_ERR_MEMORY, "a thread for tokenizing cannot start");
        }
        b->n_started++;
    }
    return FSDP_OK;
}

static void take_down(build *b)
{
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    for (size_t i = 0; i < b->n_started; i++)
        pthread_join(b->threads[i], NULL);
    for (size_t i = 0; i < MAX_THREADS; i++)
        fsdp_tokenizer_free(b->tokenizers[i]);
    for (size_t i = 0; b->jobs != NULL && i < b->n_jobs; i++) {
        text_free(&b->jobs[i].text);
        span_free(&b->jobs[i].parts);
        free(b->jobs[i].places);
        span_free(&b->jobs[i].pieces);
        id_free(&b->jobs[i].ids);
    }
    free(b->jobs);
    document_reader_close(b->reader);
    fsdp_tokenizer_free(b->own);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
}

fsdp_status token_build(const source_list *files, const fsdp_tokenizer *tokenizer, const token_build_options *options,
                        const token_sink *sink, fsdp_tokenize_result *result)
{
    fsdp_status status;
    int threads = options->n_threads < 1 ? 1 : options->n_threads > MAX_THREADS ? MAX_THREADS : options->n_threads;
    build *b = calloc(1, sizeof *b);
    if (b == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    *b = (build){.options = options, .sink = sink, .n_threads = (size_t)threads, .at_document_start = true};
    b->n_jobs = threads == 1 ? 1 : 2 * (size_t)threads;
    pthread_mutex_init(&b->lock, NULL);
    condition_init(&b->changed);
    b->jobs = calloc(b->n_jobs, sizeof *b->jobs);
    if (b->jobs == NULL)
        TRY_OR(done, error_set(FSDP_ERR_MEMORY, "out of memory"));
    if (fsdp_tokenizer_eos(tokenizer) < 0)
        log_write(FSDP_LOG_WARNING, "the tokenizer has no end token: documents follow each other without a mark");
    TRY_OR(done, fsdp_tokenizer_share(tokenizer, &b->own));
    TRY_OR(done, document_reader_open(files, options->field, NULL, options->strict, b->own, &b->reader));
    if (options->start.file > 0 || options->start.offset > 0 || options->start.record > 0)
        TRY_OR(done, document_reader_seek(b->reader, &options->start));
    b->at_document_start = !options->start.continues;
    TRY_OR(done, start_workers(b, tokenizer));
    TRY_OR(done, run(b));
    b->result.n_skipped = document_reader_skipped(b->reader);
    if (result != NULL)
        *result = b->result;
done:
    take_down(b);
    free(b);
    return status;
}
