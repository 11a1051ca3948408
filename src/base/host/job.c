/* Reads the variables of the launchers we know, each into the same few numbers, and checks that they make sense.
 * Meeting the other ranks is left to comm. */
#include "base/host/job.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/host/environment.h"
#include "base/error.h"

enum { DEFAULT_PORT = 29500, FIRST_SLURM_PORT = 20000, SLURM_PORTS = 10000, MAX_RANKS = 1 << 20 };

job job_single(void)
{
    return (job){.world_size = 1,
                 .local_world_size = 1,
                 .n_nodes = 1,
                 .master_address = "127.0.0.1",
                 .master_port = DEFAULT_PORT,
                 .launcher = "none"};
}

/* A variable that must be a number in [low, high] when set. *found says whether it was. */
static fsdp_status read_number(const char *name, int64_t low, int64_t high, int *out, bool *found)
{
    const char *text = environment_text(name);
    *found = text != NULL;
    if (!text)
        return FSDP_OK;
    int64_t value;
    if (!environment_int(name, &value) || value < low || value > high)
        return error_set(FSDP_ERR_INPUT, "environment variable %s is '%s'; it must be a number from %lld to %lld", name,
                         text, (long long)low, (long long)high);
    *out = (int)value;
    return FSDP_OK;
}

static fsdp_status need_number(const char *name, int64_t low, int64_t high, int *out, const char *because)
{
    bool found;
    FSDP_TRY(read_number(name, low, high, out, &found));
    if (!found)
        return error_set(FSDP_ERR_INPUT,
                         "environment variable %s is not set, but %s is: set all of the job's variables "
                         "or none",
                         name, because);
    return FSDP_OK;
}

static void copy_text(char *to, size_t bytes, const char *from)
{
    snprintf(to, bytes, "%s", from);
}

static fsdp_status read_torchrun(job *j)
{
    bool found;
    j->launcher = "torchrun";
    FSDP_TRY(need_number("RANK", 0, MAX_RANKS, &j->rank, "WORLD_SIZE"));
    FSDP_TRY(need_number("WORLD_SIZE", 1, MAX_RANKS, &j->world_size, "RANK"));
    FSDP_TRY(read_number("LOCAL_RANK", 0, MAX_RANKS, &j->local_rank, &found));
    FSDP_TRY(read_number("LOCAL_WORLD_SIZE", 1, MAX_RANKS, &j->local_world_size, &found));
    j->n_nodes = (j->world_size + j->local_world_size - 1) / j->local_world_size;
    j->node = j->rank / j->local_world_size;
    FSDP_TRY(read_number("GROUP_RANK", 0, MAX_RANKS, &j->node, &found));
    const char *id = environment_text("TORCHELASTIC_RUN_ID"), *attempt = environment_text("TORCHELASTIC_RESTART_COUNT");
    if (id)
        snprintf(j->token, sizeof j->token, "torchrun-%.80s-%.16s", id, attempt ? attempt : "0");
    return FSDP_OK;
}

static fsdp_status read_openmpi(job *j)
{
    bool found;
    j->launcher = "openmpi";
    FSDP_TRY(need_number("OMPI_COMM_WORLD_RANK", 0, MAX_RANKS, &j->rank, "OMPI_COMM_WORLD_SIZE"));
    FSDP_TRY(need_number("OMPI_COMM_WORLD_SIZE", 1, MAX_RANKS, &j->world_size, "OMPI_COMM_WORLD_RANK"));
    FSDP_TRY(read_number("OMPI_COMM_WORLD_LOCAL_RANK", 0, MAX_RANKS, &j->local_rank, &found));
    FSDP_TRY(read_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, MAX_RANKS, &j->local_world_size, &found));
    j->n_nodes = (j->world_size + j->local_world_size - 1) / j->local_world_size;
    j->node = j->rank / j->local_world_size;
    const char *space = environment_text("PMIX_NAMESPACE");
    if (space)
        snprintf(j->token, sizeof j->token, "openmpi-%.100s", space);
    return FSDP_OK;
}

/* mpirun of MPICH, MVAPICH and Intel MPI. (srun sets PMI's variables too, but not those of the host.) */
static fsdp_status read_hydra(job *j)
{
    j->launcher = "mpich";
    FSDP_TRY(need_number("PMI_RANK", 0, MAX_RANKS, &j->rank, "MPI_LOCALNRANKS"));
    FSDP_TRY(need_number("PMI_SIZE", 1, MAX_RANKS, &j->world_size, "PMI_RANK"));
    FSDP_TRY(need_number("MPI_LOCALRANKID", 0, MAX_RANKS, &j->local_rank, "MPI_LOCALNRANKS"));
    FSDP_TRY(need_number("MPI_LOCALNRANKS", 1, MAX_RANKS, &j->local_world_size, "PMI_RANK"));
    j->n_nodes = (j->world_size + j->local_world_size - 1) / j->local_world_size;
    j->node = j->rank / j->local_world_size;
    return FSDP_OK;
}

/* Tasks on node `node` out of Slurm's list "2(x3),1": three nodes with two tasks, then one with one. 0: not in it. */
static int slurm_tasks_of_node(const char *list, int node)
{
    while (*list) {
        char *end;
        long tasks = strtol(list, &end, 10), repeats = 1;
        if (end == list || tasks < 1)
            return 0;
        if (strncmp(end, "(x", 2) == 0) {
            repeats = strtol(end + 2, &end, 10);
            if (*end++ != ')')
                return 0;
        }
        if (node < repeats)
            return tasks <= MAX_RANKS ? (int)tasks : 0;
        node -= (int)repeats;
        list = *end == ',' ? end + 1 : end;
        if (*end && *end != ',')
            return 0;
    }
    return 0;
}

/* First host of a list such as "node[03-07,9],other": "node03". */
static void slurm_first_host(const char *list, char *out, size_t bytes)
{
    size_t prefix = strcspn(list, "[,");
    size_t digits = list[prefix] == '[' ? strcspn(list + prefix + 1, "-,]") : 0;
    snprintf(out, bytes, "%.*s%.*s", (int)prefix, list, (int)digits, digits ? list + prefix + 1 : "");
}

static fsdp_status read_slurm(job *j)
{
    bool found;
    int id = 0;
    j->launcher = "slurm";
    FSDP_TRY(need_number("SLURM_PROCID", 0, MAX_RANKS, &j->rank, "SLURM_STEP_ID"));
    FSDP_TRY(read_number("SLURM_STEP_NUM_TASKS", 1, MAX_RANKS, &j->world_size, &found));
    if (!found)
        FSDP_TRY(need_number("SLURM_NTASKS", 1, MAX_RANKS, &j->world_size, "SLURM_PROCID"));
    FSDP_TRY(read_number("SLURM_LOCALID", 0, MAX_RANKS, &j->local_rank, &found));
    FSDP_TRY(read_number("SLURM_NODEID", 0, MAX_RANKS, &j->node, &found));
    FSDP_TRY(read_number("SLURM_STEP_NUM_NODES", 1, MAX_RANKS, &j->n_nodes, &found));
    if (!found)
        FSDP_TRY(read_number("SLURM_NNODES", 1, MAX_RANKS, &j->n_nodes, &found));
    const char *tasks = environment_text("SLURM_STEP_TASKS_PER_NODE");
    if (!tasks)
        tasks = environment_text("SLURM_TASKS_PER_NODE");
    int here = tasks ? slurm_tasks_of_node(tasks, j->node) : 0;
    j->local_world_size = here ? here : (j->world_size + j->n_nodes - 1) / j->n_nodes;

    const char *hosts = environment_text("SLURM_STEP_NODELIST");
    if (!hosts)
        hosts = environment_text("SLURM_JOB_NODELIST");
    if (hosts)
        slurm_first_host(hosts, j->master_address, sizeof j->master_address);
    FSDP_TRY(read_number("SLURM_JOB_ID", 0, INT32_MAX, &id, &found));
    if (found) {
        j->master_port = FIRST_SLURM_PORT + id % SLURM_PORTS;
        snprintf(j->token, sizeof j->token, "slurm-%d.%.32s", id, environment_text("SLURM_STEP_ID"));
    }
    return FSDP_OK;
}

static fsdp_status check(const job *j)
{
    if (j->rank >= j->world_size)
        return error_set(FSDP_ERR_INPUT, "the environment (%s) says rank %d of %d; ranks count from 0", j->launcher,
                         j->rank, j->world_size);
    if (j->local_world_size > j->world_size || j->local_rank >= j->local_world_size)
        return error_set(FSDP_ERR_INPUT,
                         "the environment (%s) says local rank %d of %d on this host in a world of %d; "
                         "local ranks count from 0 and do not exceed the world",
                         j->launcher, j->local_rank, j->local_world_size, j->world_size);
    return FSDP_OK;
}

static void copy_variable(char *to, size_t bytes, const char *name)
{
    const char *text = environment_text(name);
    if (text)
        copy_text(to, bytes, text);
}

/* What `fsdp run` says about its store, and torchrun about its own. */
static fsdp_status read_rendezvous(job *j)
{
    bool found;
    const char *agent = environment_text("TORCHELASTIC_USE_AGENT_STORE");
    copy_variable(j->rendezvous, sizeof j->rendezvous, "FSDP_RDZV_ENDPOINT");
    copy_variable(j->rendezvous_id, sizeof j->rendezvous_id, "FSDP_RDZV_ID");
    copy_variable(j->secret, sizeof j->secret, "FSDP_RDZV_SECRET");
    copy_variable(j->snapshots, sizeof j->snapshots, "FSDP_SNAPSHOTS");
    j->master_port_taken = agent && strcasecmp(agent, "true") == 0;
    FSDP_TRY(read_number("FSDP_FIRST_WORLD_SIZE", 1, MAX_RANKS, &j->first_world_size, &found));
    return read_number("FSDP_RDZV_ROUND", 0, INT32_MAX, &j->round, &found);
}

fsdp_status job_from_environment(job *out)
{
    job j = job_single();
    if (environment_text("RANK") || environment_text("WORLD_SIZE"))
        FSDP_TRY(read_torchrun(&j));
    else if (environment_text("OMPI_COMM_WORLD_RANK"))
        FSDP_TRY(read_openmpi(&j));
    else if (environment_text("PMI_RANK") && environment_text("MPI_LOCALNRANKS"))
        FSDP_TRY(read_hydra(&j));
    else if (environment_text("SLURM_STEP_ID") && environment_text("SLURM_PROCID"))
        FSDP_TRY(read_slurm(&j));
    FSDP_TRY(check(&j));

    bool found;
    copy_variable(j.master_address, sizeof j.master_address, "MASTER_ADDR");
    FSDP_TRY(read_number("MASTER_PORT", 1, 65535, &j.master_port, &found));
    copy_variable(j.token, sizeof j.token, "FSDP_JOB_TOKEN");
    FSDP_TRY(read_rendezvous(&j));
    *out = j;
    return FSDP_OK;
}
