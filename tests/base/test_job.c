/* Who a process is, by the variables of each launcher. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/host/job.h"

static const char *const known[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "FSDP_JOB_TOKEN",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NNODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
};

/* Clears all, then sets pairs of name and value up to a NULL. */
static void environment(const char *name, ...)
{
    va_list arguments;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        unsetenv(known[i]);
    va_start(arguments, name);
    for (; name; name = va_arg(arguments, const char *))
        setenv(name, va_arg(arguments, const char *), 1);
    va_end(arguments);
}

static job read_job(void)
{
    job j;
    assert_int_equal(job_from_environment(&j), FSDP_OK);
    return j;
}

static void without_variables_a_job_has_one_rank(void **state)
{
    (void)state;
    environment(NULL);
    job j = read_job();
    assert_int_equal(j.rank, 0);
    assert_int_equal(j.world_size, 1);
    assert_int_equal(j.local_world_size, 1);
    assert_int_equal(j.n_nodes, 1);
    assert_string_equal(j.launcher, "none");
    assert_string_equal(j.master_address, "127.0.0.1");
    assert_int_equal(j.master_port, 29500);
}

static void torchrun_is_understood(void **state)
{
    (void)state;
    environment("RANK", "5", "WORLD_SIZE", "8", "LOCAL_RANK", "1", "LOCAL_WORLD_SIZE", "4", "MASTER_ADDR", "head",
                "MASTER_PORT", "1234", "FSDP_JOB_TOKEN", "secret", NULL);
    job j = read_job();
    assert_int_equal(j.rank, 5);
    assert_int_equal(j.local_rank, 1);
    assert_int_equal(j.local_world_size, 4);
    assert_int_equal(j.node, 1);
    assert_int_equal(j.n_nodes, 2);
    assert_string_equal(j.master_address, "head");
    assert_int_equal(j.master_port, 1234);
    assert_string_equal(j.token, "secret");
}

static void a_kubernetes_job_of_single_process_pods_is_understood(void **state)
{
    (void)state;
    environment("RANK", "2", "WORLD_SIZE", "3", "MASTER_ADDR", "job-master-0", "MASTER_PORT", "23456", NULL);
    job j = read_job();
    assert_int_equal(j.rank, 2);
    assert_int_equal(j.local_rank, 0);
    assert_int_equal(j.local_world_size, 1);
    assert_int_equal(j.node, 2);
    assert_int_equal(j.n_nodes, 3);
}

static void open_mpi_is_understood_also_inside_slurm(void **state)
{
    (void)state;
    environment("OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_RANK", "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE", "2", "PMIX_NAMESPACE", "ns7", "SLURM_PROCID", "0", "SLURM_STEP_ID", "0",
                "SLURM_NTASKS", "2", NULL);
    job j = read_job();
    assert_string_equal(j.launcher, "openmpi");
    assert_int_equal(j.rank, 3);
    assert_int_equal(j.world_size, 4);
    assert_int_equal(j.node, 1);
    assert_string_equal(j.token, "openmpi-ns7");
}

static void mpich_is_understood_also_inside_slurm(void **state)
{
    (void)state;
    environment("PMI_RANK", "3", "PMI_SIZE", "4", "MPI_LOCALRANKID", "1", "MPI_LOCALNRANKS", "2", "SLURM_PROCID", "0",
                "SLURM_STEP_ID", "0", "SLURM_NTASKS", "2", NULL);
    job j = read_job();
    assert_string_equal(j.launcher, "mpich");
    assert_int_equal(j.rank, 3);
    assert_int_equal(j.world_size, 4);
    assert_int_equal(j.local_rank, 1);
    assert_int_equal(j.local_world_size, 2);
    assert_int_equal(j.node, 1);
    assert_int_equal(j.n_nodes, 2);
}

static void a_slurm_step_is_understood(void **state)
{
    (void)state;
    environment("SLURM_PROCID", "4", "SLURM_STEP_ID", "1", "SLURM_STEP_NUM_TASKS", "5", "SLURM_LOCALID", "0",
                "SLURM_NODEID", "2", "SLURM_NNODES", "3", "SLURM_TASKS_PER_NODE", "2(x2),1", "SLURM_JOB_ID", "10042",
                "SLURM_JOB_NODELIST", "gpu[07-09]", NULL);
    job j = read_job();
    assert_string_equal(j.launcher, "slurm");
    assert_int_equal(j.rank, 4);
    assert_int_equal(j.world_size, 5);
    assert_int_equal(j.local_world_size, 1);
    assert_int_equal(j.node, 2);
    assert_int_equal(j.n_nodes, 3);
    assert_string_equal(j.master_address, "gpu07");
    assert_int_equal(j.master_port, 20042);
    assert_string_equal(j.token, "slurm-10042.1");

    setenv("SLURM_NODEID", "1", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_LOCALID", "1", 1);
    setenv("SLURM_JOB_NODELIST", "login,gpu[07-09]", 1);
    j = read_job();
    assert_int_equal(j.local_world_size, 2);
    assert_string_equal(j.master_address, "login");
}

static void a_slurm_batch_script_is_not_a_step(void **state)
{
    (void)state;
    environment("SLURM_PROCID", "0", "SLURM_NTASKS", "16", "SLURM_JOB_ID", "1", NULL);
    assert_int_equal(read_job().world_size, 1);
}

static void refuse(const char *wanted)
{
    job j;
    assert_int_equal(job_from_environment(&j), FSDP_ERR_INPUT);
    if (!strstr(fsdp_last_error(), wanted))
        fail_msg("'%s' lacks '%s'", fsdp_last_error(), wanted);
}

static void contradictions_are_refused_with_the_variable_named(void **state)
{
    (void)state;
    environment("RANK", "0", NULL);
    refuse("WORLD_SIZE");
    environment("WORLD_SIZE", "2", NULL);
    refuse("RANK");
    environment("RANK", "2", "WORLD_SIZE", "2", NULL);
    refuse("rank 2 of 2");
    environment("RANK", "zero", "WORLD_SIZE", "2", NULL);
    refuse("RANK is 'zero'");
    environment("RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "3", "LOCAL_WORLD_SIZE", "2", NULL);
    refuse("local rank 3 of 2");
    environment("RANK", "0", "WORLD_SIZE", "2", "LOCAL_WORLD_SIZE", "4", NULL);
    refuse("4");
    environment("MASTER_PORT", "99999", NULL);
    refuse("MASTER_PORT");
    environment("OMPI_COMM_WORLD_RANK", "0", NULL);
    refuse("OMPI_COMM_WORLD_SIZE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_variables_a_job_has_one_rank),
        cmocka_unit_test(torchrun_is_understood),
        cmocka_unit_test(a_kubernetes_job_of_single_process_pods_is_understood),
        cmocka_unit_test(open_mpi_is_understood_also_inside_slurm),
        cmocka_unit_test(mpich_is_understood_also_inside_slurm),
        cmocka_unit_test(a_slurm_step_is_understood),
        cmocka_unit_test(a_slurm_batch_script_is_not_a_step),
        cmocka_unit_test(contradictions_are_refused_with_the_variable_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
