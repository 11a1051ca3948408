/* Who this process is within its job, read from the environment that the launcher left: torchrun's variables (also
 * those of `fsdp run` and Kubernetes PyTorchJobs), else Open MPI's, else MPICH's, else those of a Slurm step, else a
 * job of one rank. (mpirun inside a Slurm allocation leaves both; Slurm's then describe mpirun's helpers, not the
 * ranks.) */
#ifndef BASE_HOST_JOB_H
#define BASE_HOST_JOB_H

#include <stdbool.h>

#include <fsdp/status.h>

typedef struct job {
    int rank, world_size;
    int local_rank, local_world_size; /* among the ranks of this host */
    int node, n_nodes;                /* hosts, numbered from 0 */
    char master_address[256];         /* "127.0.0.1" when nothing is set */
    int master_port;                  /* 29500 when nothing is set */
    char token[128]; /* tells this job from others at the same address: FSDP_JOB_TOKEN, else the launcher's job id, else
                        "" */
    char rendezvous[272];    /* where the launcher's store is (FSDP_RDZV_ENDPOINT); "": rank 0 opens one at the master's
                                address */
    char rendezvous_id[128]; /* the job's name there (FSDP_RDZV_ID) */
    char secret[257];        /* what proves that a process belongs to the job (FSDP_RDZV_SECRET); "": the token does */
    int first_world_size;    /* of the job's first round (FSDP_FIRST_WORLD_SIZE); 0: nobody said */
    int round;               /* how many rounds of this job were before (FSDP_RDZV_ROUND) */
    char snapshots[128];     /* a folder in memory that the launcher holds for snapshots (FSDP_SNAPSHOTS); "": none */
    bool master_port_taken;  /* the launcher itself listens at the master's port: torchrun with a store of its own */
    const char *launcher;    /* "torchrun", "openmpi", "mpich", "slurm", "none": nobody said anything */
} job;

/* The file in `snapshots` in which a launcher of several says where other nodes put their copies. */
#define JOB_VAULT_NAME "vault"

/* A job of one rank. */
job job_single(void);

/* FSDP_ERR_INPUT, with the variable named, when the variables are incomplete or contradict each other. */
fsdp_status job_from_environment(job *out);

#endif
