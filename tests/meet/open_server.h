/* A server on this host that a test's clients find, and the secret that lets them in. */
#ifndef TESTS_MEET_OPEN_SERVER_H
#define TESTS_MEET_OPEN_SERVER_H

#include "meet/client.h"
#include "meet/rounds.h"
#include "meet/server.h"

static const secret key = {.bytes = "a secret", .n = 8};

static server *open_server(const rounds_policy *policy)
{
    server_config config = {.at = {.host = "127.0.0.1"}, .key = &key, .job = "job", .policy = policy};
    server *s;
    if (!secret_can_prove())
        skip(); /* nobody is let in over the network then */
    assert_int_equal(server_open(&config, &s), FSDP_OK);
    return s;
}

#endif
