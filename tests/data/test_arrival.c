/* Files that come from the hub while they are read: one that comes slowly is waited for as long as it moves, by this
 * process or by another that waits for it; a loader that is closed does not end the waits of others; and a first file
 * that does not come is an error, whatever it would have held. The hub is a thread of the test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scratch.h"
#include "data/loader.h"

/* ---- the hub ---- */

#define COMMIT "cccccccccccccccccccccccccccccccccccccccc"
enum { PIECES = 24, PIECE_MILLISECONDS = 250 }; /* six seconds a file */

typedef enum manner { DRIPS, WAITS, HURRIES, FAILS } manner;

/* A data set's first file comes at once; what is read with it in hand is the rest. */
static const struct file {
    const char *repository, *name, *blob, *line;
    int lines;
    bool first;
} files[] = {
    {"org/text", "a-train.jsonl", "86bf4945fbb5eb517db4f5e643b965e56abd3700", "{\"text\": \"record %03d\"}\n", 2, true},
    {"org/text", "b-train.jsonl", "c4d07a914a2fa838c5b9e98130707f1220759a28",
     "{\"text\": \"line %03d of some words\"}\n", 64, false},
    {"org/chat", "train.jsonl", "18a66c3a0ebb8c28c5fd646747770c1ec5e68cdd",
     "{\"messages\": [{\"role\": \"user\", \"content\": \"%03d\"}]}\n", 4, false},
};
enum { N_FILES = sizeof files / sizeof *files };

static int listening = -1;
static atomic_int how, asked; /* manner; requests for files that are not the first */

static size_t contents(const struct file *r, char *out)
{
    size_t n = 0;
    for (int i = 0; i < r->lines; i++)
        n += (size_t)sprintf(out + n, r->line, i);
    return n;
}

static void say(int to, const char *text, size_t n)
{
    for (ssize_t got; n > 0 && (got = send(to, text, n, MSG_NOSIGNAL)) > 0; text += got)
        n -= (size_t)got;
}

static void give_file(int to, const struct file *r)
{
    char data[8192], head[128];
    size_t n = contents(r, data), piece = r->first ? n : n / PIECES + 1;
    atomic_fetch_add(&asked, !r->first);
    if (atomic_load(&how) == FAILS) {
        say(to, "HTTP/1.1 404 gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 59);
        return;
    }
    say(to, head,
        (size_t)snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", n));
    while (atomic_load(&how) == WAITS && !r->first)
        usleep(10000);
    for (size_t at = 0; at < n; at += piece) {
        say(to, data + at, n - at < piece ? n - at : piece);
        if (atomic_load(&how) != HURRIES)
            usleep(PIECE_MILLISECONDS * 1000);
    }
}

static void give_list(int to, const char *repository)
{
    char data[8192], body[1024], head[128];
    int n = snprintf(body, sizeof body, "{\"sha\": \"" COMMIT "\", \"siblings\": [");
    for (int i = 0; i < N_FILES; i++) {
        if (strcmp(files[i].repository, repository) == 0)
            n += snprintf(body + n, sizeof body - (size_t)n,
                          "%s{\"rfilename\": \"%s\", \"size\": %zu, \"blobId\": \"%s\"}",
                          body[n - 1] == '[' ? "" : ", ", files[i].name, contents(&files[i], data), files[i].blob);
    }
    n += snprintf(body + n, sizeof body - (size_t)n, "]}");
    say(to, head,
        (size_t)snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", n));
    say(to, body, (size_t)n);
}

static void *answer(void *context)
{
    int to = (int)(intptr_t)context;
    char request[4096] = "";
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof request && !strstr(request, "\r\n\r\n") &&
           (got = recv(to, request + n, sizeof request - 1 - n, 0)) > 0)
        request[n += (size_t)got] = '\0';
    const char *repository = strstr(request, "org/chat") ? "org/chat" : "org/text";
    if (strncmp(request, "GET /api/", 9) == 0)
        give_list(to, repository);
    for (int i = 0; i < N_FILES && strncmp(request, "GET /api/", 9) != 0; i++) {
        if (strcmp(files[i].repository, repository) == 0 && strstr(request, files[i].name))
            give_file(to, &files[i]);
    }
    close(to);
    return NULL;
}

static void *serve(void *context)
{
    (void)context;
    for (int to; (to = accept(listening, NULL, NULL)) >= 0;) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, answer, (void *)(intptr_t)to) == 0)
            pthread_detach(thread);
    }
    return NULL;
}

static int start_hub(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    pthread_t thread;
    char endpoint[64];
    listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, length) != 0 || listen(listening, 16) != 0 ||
        getsockname(listening, (struct sockaddr *)&address, &length) != 0 ||
        pthread_create(&thread, NULL, serve, NULL) != 0)
        return -1;
    pthread_detach(thread);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", ntohs(address.sin_port));
    setenv("HF_ENDPOINT", endpoint, 1);
    setenv("HF_HUB_DOWNLOAD_TIMEOUT", "60", 1);
    unsetenv("HF_HUB_CACHE");
    unsetenv("HUGGINGFACE_HUB_CACHE");
    return 0;
}

/* A cache of its own, which has nothing yet. */
static int setup(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    setenv("HF_HOME", *state, 1);
    setenv("FSDP_CACHE_DIR", *state, 1);
    atomic_store(&how, DRIPS);
    atomic_store(&asked, 0);
    return 0;
}

/* ---- readers ---- */

static fsdp_status open_data(const char *name, fsdp_dataset **out)
{
    const char *names[] = {name};
    fsdp_dataset_config c = FSDP_DATASET_CONFIG_INIT;
    fsdp_tokenizer *tokenizer = NULL;
    assert_int_equal(fsdp_tokenizer_byte(&tokenizer), FSDP_OK);
    c.names = names, c.n_names = 1, c.tokenizer = tokenizer, c.width = 16, c.threads = 1;
    c.stream_from_bytes = 1, c.download = true;
    fsdp_status status = fsdp_dataset_open(&c, out);
    fsdp_tokenizer_free(tokenizer);
    return status;
}

static fsdp_loader *open_loader(fsdp_dataset *d, double timeout)
{
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    fsdp_loader *l = NULL;
    c.batch = 4, c.stop_at_epoch = false, c.timeout = timeout;
    assert_int_equal(loader_create(d, 0, 1, &c, &l), FSDP_OK);
    return l;
}

/* The first batch, by a reader that gives up after so many seconds without one. */
static fsdp_status read_one(double timeout)
{
    fsdp_dataset *d = NULL;
    fsdp_batch *b = NULL;
    fsdp_status status = open_data("org/text", &d);
    if (status != FSDP_OK)
        return status;
    fsdp_loader *l = open_loader(d, timeout);
    status = fsdp_loader_next(l, &b);
    if (status == FSDP_OK && b == NULL)
        status = FSDP_ERR_STATE;
    fsdp_loader_free(l);
    fsdp_dataset_free(d);
    return status;
}

/* Two processes, of which one waits for the other's download. The hub's threads are the parent's. */
static void a_file_that_comes_slowly_is_waited_for(void **state)
{
    (void)state;
    double began = clock_seconds();
    pid_t other = fork();
    if (other == 0)
        _exit(read_one(2.5) == FSDP_OK ? 0 : 1);
    assert_int_equal(read_one(2.5), FSDP_OK);
    int status = -1;
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&asked), 1);
    assert_true(clock_seconds() - began > 5); /* or nothing was tested */
}

static void a_file_that_stands_still_is_not(void **state)
{
    (void)state;
    atomic_store(&how, WAITS);
    assert_int_equal(read_one(0.5), FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(fsdp_last_error(), "no batch of data within 0.5 s"));
}

typedef struct waiting {
    fsdp_loader *loader;
    fsdp_status status;
    bool got;
} waiting;

static void *wait_for_batch(void *context)
{
    waiting *w = context;
    fsdp_batch *b = NULL;
    w->status = fsdp_loader_next(w->loader, &b);
    w->got = b != NULL;
    return NULL;
}

static void a_loader_that_is_closed_leaves_the_waits_of_others_alone(void **state)
{
    (void)state;
    fsdp_dataset *d = NULL;
    fsdp_batch *b = NULL;
    pthread_t thread;
    atomic_store(&how, WAITS);
    assert_int_equal(open_data("org/text", &d), FSDP_OK);
    waiting one = {.loader = open_loader(d, 60)};
    fsdp_loader *other = open_loader(d, 0.5);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_batch, &one), 0);
    while (atomic_load(&asked) == 0)
        usleep(10000);
    assert_int_equal(fsdp_loader_next(other, &b), FSDP_ERR_TIMEOUT);
    fsdp_loader_free(other);
    atomic_store(&how, HURRIES);
    pthread_join(thread, NULL);
    assert_int_equal(one.status, FSDP_OK);
    assert_true(one.got);
    fsdp_loader_free(one.loader);
    fsdp_dataset_free(d);
}

static void conversations_whose_first_file_does_not_come_are_no_text(void **state)
{
    (void)state;
    fsdp_dataset *d = NULL;
    atomic_store(&how, FAILS);
    assert_true(open_data("org/chat", &d) != FSDP_OK);
    assert_null(d);
    assert_non_null(strstr(fsdp_last_error(), "404"));
}

int main(void)
{
#ifndef FSDP_WITH_CURL
    puts("skipped: built without libcurl");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_that_comes_slowly_is_waited_for, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_file_that_stands_still_is_not, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(a_loader_that_is_closed_leaves_the_waits_of_others_alone, setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(conversations_whose_first_file_does_not_come_are_no_text, setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, start_hub, NULL);
}
