/* Hosting, joining and hearing. */
#include "launch/team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "launch/job_report.h"
#include "meet/server.h"

enum { DEFAULT_PORT = 29400 };

/* After this long without a store, the user is told what was found instead. */
static const double patience_seconds = 10;

/* Others of this job that are still to hear of its end get so long, or so long where this launcher was asked to end. */
static double linger_seconds(const team *t)
{
    const double asked = 5, patience = rounds_patience(t->config->join_timeout_seconds);
    return t->give_up && t->give_up(t->context) && asked < patience ? asked : patience;
}

static bool is_alone(const fsdp_launch_config *c)
{
    return !c->endpoint;
}

static fsdp_status read_secret(team *t)
{
    const fsdp_launch_config *c = t->config;
    const char *given = environment_text("FSDP_RDZV_SECRET");
    if (c->secret_file) {
        FSDP_TRY(secret_read(&t->key, c->secret_file));
    } else if (given) {
        secret_from_text(&t->key, given);
    } else if (is_alone(c)) {
        char drawn[SECRET_TEXT_BYTES];
        FSDP_TRY(secret_draw_text(drawn));
        secret_from_text(&t->key, drawn);
    } else if (!endpoint_is_loopback(&t->at)) {
        log_write(FSDP_LOG_WARNING, "anybody who reaches the rendezvous can join this job: give all launchers the same "
                                    "--rdzv_secret_file or FSDP_RDZV_SECRET");
    }
    memcpy(t->key_text, t->key.bytes, t->key.n);
    if (memchr(t->key.bytes, 0, t->key.n) || memchr(t->key.bytes, '\n', t->key.n))
        return error_set(FSDP_ERR_INPUT, "the job's secret must be one line of text");
    return FSDP_OK;
}

/* Alone: on the loopback, at a port that is free; without libcrypto at a Unix socket. */
static fsdp_status choose_endpoint(team *t)
{
    const fsdp_launch_config *c = t->config;
    if (!is_alone(c)) {
        if (!secret_can_prove())
            return error_set(FSDP_ERR_UNSUPPORTED,
                             "this build joins no launchers: configure it where libcrypto is installed (apt install "
                             "libssl-dev); one launcher by itself (--standalone) works");
        return endpoint_parse(c->endpoint, DEFAULT_PORT, &t->at);
    }
    if (secret_can_prove())
        return endpoint_parse("127.0.0.1", 0, &t->at);
    char drawn[SECRET_TEXT_BYTES];
    FSDP_TRY(secret_draw_text(drawn));
    snprintf(t->at.host, sizeof t->at.host, "fsdp-run-%.32s", drawn);
    t->at.port = -1;
    return FSDP_OK;
}

fsdp_status team_prepare(team *t, const fsdp_launch_config *config)
{
    *t = (team){.config = config, .last_round = -1};
    FSDP_TRY(choose_endpoint(t));
    FSDP_TRY(read_secret(t));
    FSDP_TRY(secret_draw_bytes(&t->id, sizeof t->id));
    if (config->job_id) {
        snprintf(t->job, sizeof t->job, "%s", config->job_id);
    } else if (is_alone(config)) {
        char drawn[SECRET_TEXT_BYTES];
        FSDP_TRY(secret_draw_text(drawn));
        snprintf(t->job, sizeof t->job, "%.32s", drawn);
    } else {
        snprintf(t->job, sizeof t->job, "none");
    }
    gethostname(t->host, sizeof t->host - 1);
    if (config->node >= 0)
        snprintf(t->who, sizeof t->who, "node %d (%.64s)", config->node, t->host);
    else
        snprintf(t->who, sizeof t->who, "the launcher of %.64s (process %d)", t->host, (int)getpid());
    t->policy = (rounds_policy){.min_nodes = config->min_nodes,
                                .max_nodes = config->max_nodes,
                                .last_call_seconds = config->last_call_seconds,
                                .join_timeout_seconds = config->join_timeout_seconds,
                                .max_restarts = config->max_restarts,
                                .restart_window_seconds = config->restart_window_seconds,
                                .watchdog_seconds = config->watchdog_seconds};
    return job_report_open(config, &t->report);
}

/* ---- the store ---- */

/* The endpoint's host opens the store: whoever can listen at its address. Where that is an address of no host (that of
 * a router, say), node 0 does. FSDP_ERR_STATE, FSDP_ERR_INPUT: it is another's task. */
static fsdp_status open_store(team *t)
{
    server_config config = {.at = t->at, .key = &t->key, .job = t->job, .policy = &t->policy};
    config.anywhere = !is_alone(t->config) && endpoint_is_misleading(&t->at);
    t->policy.report = t->report ? job_report_write : NULL;
    t->policy.context = t->report;
    fsdp_status status = server_open(&config, &t->server);
    if (status == FSDP_ERR_INPUT && !config.anywhere && t->config->node == 0) {
        config.anywhere = true;
        status = server_open(&config, &t->server);
    }
    return status;
}

static fsdp_status connect_once(team *t, double seconds)
{
    client_config config = {.candidates = &t->at,
                            .n_candidates = 1,
                            .key = &t->key,
                            .job = t->job,
                            .timeout_seconds = seconds,
                            .welcome_seconds = rounds_patience(t->config->join_timeout_seconds),
                            .give_up = t->give_up,
                            .context = t->context};
    snprintf(config.who.who, sizeof config.who.who, "%s", t->who);
    return client_open(&config, &t->client);
}

/* Who holds the address may be another program, or the store of a launcher that is just ending: tried in turns. */
static fsdp_status find_store(team *t, bool may_open, double seconds)
{
    double begun = clock_seconds(), deadline = begun + seconds;
    bool said = false;
    for (;;) {
        fsdp_status opened = may_open && !t->server ? open_store(t) : FSDP_ERR_STATE;
        if (opened == FSDP_OK)
            t->at = *server_endpoint(t->server);
        else if (opened != FSDP_ERR_STATE && opened != FSDP_ERR_INPUT)
            return opened;
        double left = deadline - clock_seconds();
        fsdp_status status = connect_once(t, left < 0 ? 0 : left < 1 ? left : 1);
        if (status != FSDP_ERR_TIMEOUT || (t->give_up && t->give_up(t->context)))
            return status;
        if (!said && clock_seconds() - begun > patience_seconds) {
            log_write(FSDP_LOG_WARNING, "still looking: %s", fsdp_last_error());
            said = true;
        }
        if (left <= 0) {
            char at[ENDPOINT_TEXT_BYTES], last[300];
            snprintf(last, sizeof last, "%s", fsdp_last_error());
            return error_set(FSDP_ERR_TIMEOUT,
                             "no rendezvous answered at %s within %g s: is the launcher of that host started? (%s)",
                             endpoint_text(&t->at, at), seconds, last);
        }
    }
}

/* ---- words ---- */

static fsdp_status free_port(int *out)
{
    endpoint any = {.host = "127.0.0.1"};
    int s;
    FSDP_TRY(endpoint_listen(&any, true, &s));
    close(s);
    *out = any.port;
    return FSDP_OK;
}

void team_address(const team *t, char *text, size_t bytes)
{
    const fsdp_launch_config *c = t->config;
    if (c->local_address || c->master_address)
        snprintf(text, bytes, "%.127s", c->local_address ? c->local_address : c->master_address);
    else if (t->server && !is_alone(c))
        snprintf(text, bytes, "%.127s", t->at.host);
    else
        endpoint_own_address(client_socket(t->client), text, bytes);
}

static fsdp_status describe(team *t, round_join *j)
{
    const fsdp_launch_config *c = t->config;
    *j = (round_join){.node_rank = c->node,
                      .n_ranks = c->n_ranks,
                      .min_nodes = c->min_nodes,
                      .max_nodes = c->max_nodes,
                      .last_round = t->last_round,
                      .n_restarts = t->n_restarts,
                      .first_world_size = t->first_world_size,
                      .master_port = c->master_port,
                      .launcher = t->id};
    if (!j->master_port)
        FSDP_TRY(free_port(&j->master_port));
    snprintf(j->host, sizeof j->host, "%s", t->host);
    team_address(t, j->address, sizeof j->address);
    return FSDP_OK;
}

fsdp_status team_join(team *t, bool is_done)
{
    const double timeout = t->config->join_timeout_seconds;
    round_join join;
    wire_body body = {0};
    if (!t->client)
        FSDP_TRY(find_store(t, !is_done, is_done ? rounds_patience(timeout) : timeout));
    FSDP_TRY(describe(t, &join));
    round_join_put(&body, &join);
    client_send(t->client, WIRE_JOIN, body.data, body.bytes);
    wire_free(&body);
    t->waits = true;
    return FSDP_OK;
}

int team_socket(const team *t)
{
    return t->client ? client_socket(t->client) : -1;
}

static team_word lose(team *t)
{
    client_close(t->client);
    t->client = NULL;
    t->unanswered_since = 0;
    return TEAM_LOST;
}

/* A connection may outlive what was at its other end. Ranks that run are not ended for that: it may come back. */
static bool is_store_silent(const team *t)
{
    return t->waits && t->unanswered_since != 0 &&
           clock_seconds() - t->unanswered_since > rounds_patience(t->config->join_timeout_seconds);
}

team_word team_hear(team *t, team_news *news)
{
    const void *body;
    uint32_t kind;
    size_t bytes;
    line_state state;
    if (!t->client)
        return TEAM_NOTHING;
    client_flush(t->client, 0);
    while ((state = client_receive(t->client, &kind, &body, &bytes)) == LINE_MESSAGE && kind == WIRE_BEAT)
        t->unanswered_since = 0;
    if (state == LINE_NOTHING)
        return is_store_silent(t) ? lose(t) : TEAM_NOTHING;
    wire_reader r = wire_read(body, state == LINE_MESSAGE ? bytes : 0);
    t->waits = t->waits && state == LINE_MESSAGE && kind == WIRE_EXAMINE;
    if (state == LINE_MESSAGE && kind == WIRE_FINISHED)
        return TEAM_FINISHED;
    if (state == LINE_MESSAGE && kind == WIRE_ROUND && round_place_get(&r, &news->place)) {
        t->last_round = news->place.round;
        t->n_restarts = news->place.n_restarts;
        t->first_world_size = news->place.first_world_size;
        return TEAM_ROUND;
    }
    if (state == LINE_MESSAGE && kind == WIRE_STOP && round_stop_get(&r, &news->stop))
        return TEAM_STOP;
    if (state == LINE_MESSAGE && kind == WIRE_EXAMINE) {
        news->examined = wire_get_i32(&r);
        wire_get_text(&r, news->stop.reason, sizeof news->stop.reason);
        if (wire_done(&r))
            return TEAM_EXAMINE;
    }
    return lose(t); /* a store that makes no sense is none */
}

void team_fail(team *t, int round, const char *reason, int exit_code, round_final is_final)
{
    round_failure failure = {.round = round, .exit_code = exit_code, .is_final = is_final};
    wire_body body = {0};
    if (!t->client)
        return;
    snprintf(failure.reason, sizeof failure.reason, "%s", reason);
    round_failure_put(&body, &failure);
    client_send(t->client, WIRE_FAIL, body.data, body.bytes);
    wire_free(&body);
    t->waits = true;
}

void team_done(team *t, int round)
{
    int32_t number = round;
    if (t->client)
        client_send(t->client, WIRE_DONE, &number, sizeof number);
    t->waits = true;
}

void team_beat(team *t, const wire_body *beats)
{
    if (!t->client || beats->failed)
        return;
    client_send(t->client, WIRE_BEAT, beats->data, beats->bytes);
    t->unanswered_since = t->unanswered_since ? t->unanswered_since : clock_seconds();
}

void team_leave(team *t)
{
    double begun = clock_seconds();
    client_close(t->client);
    while (t->server && server_count(t->server).clients > 0 && clock_seconds() - begun < linger_seconds(t))
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    server_close(t->server, 0);
    job_report_close(t->report);
    t->client = NULL;
    t->server = NULL;
    t->report = NULL;
}
