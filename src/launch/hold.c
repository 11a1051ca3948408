/* The folder, and the server over it. */
#include "launch/hold.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/host/job.h"
#include "base/log.h"
#include "meet/server.h"
#include "meet/vault.h"

fsdp_status hold_name(hold *h)
{
    char drawn[SECRET_TEXT_BYTES];
    FSDP_TRY(secret_draw_text(drawn));
    snprintf(h->path, sizeof h->path, "/dev/shm/fsdp-snapshots-%d-%.16s", (int)getpid(), drawn);
    return FSDP_OK;
}

static fsdp_status open_vault(hold *h, const team *t)
{
    char text[ENDPOINT_TEXT_BYTES], path[HOLD_PATH_BYTES + sizeof JOB_VAULT_NAME];
    endpoint at = {.port = 0};
    team_address(t, at.host, sizeof at.host);
    server_config config = {.at = at, .key = &t->key, .job = t->job, .serve = vault_serve, .context = h->path};
    fsdp_status status = server_open(&config, &h->server);
    if (status == FSDP_ERR_INPUT) { /* an address that others see, but not one of this host's */
        config.anywhere = true;
        status = server_open(&config, &h->server);
    }
    FSDP_TRY(status);
    at.port = server_endpoint(h->server)->port;
    endpoint_text(&at, text);
    snprintf(path, sizeof path, "%s/%s", h->path, JOB_VAULT_NAME);
    return file_write_atomic(path, text, strlen(text));
}

void hold_attend(hold *h, const team *t)
{
    if (h->server || h->failed || !t->client || t->config->max_nodes == 1 || access(h->path, F_OK) < 0)
        return;
    h->failed = open_vault(h, t) != FSDP_OK;
    if (h->failed)
        log_write(FSDP_LOG_WARNING, "no copies of snapshots can be taken here: %s", fsdp_last_error());
}

void hold_close(hold *h)
{
    server_close(h->server, 0);
    if (h->path[0] && file_remove_tree(h->path) != FSDP_OK)
        log_write(FSDP_LOG_WARNING, "snapshots are left in memory: %s", fsdp_last_error());
    *h = (hold){.server = NULL};
}
