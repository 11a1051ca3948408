/* Starts ranks, and the keeper that outlives us by a moment. Between fork and exec only calls that are safe there are
 * made; everything that allocates happens before. Watching is left to launch.c. */
#include "launch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/host/environment.h"
#include "base/error.h"
#include "base/file.h"

extern char **environ;

enum { MAX_VARIABLES = 32, VARIABLE_BYTES = 320, REMOVALS = 500 };

typedef struct rank_environment {
    char text[MAX_VARIABLES][VARIABLE_BYTES];
    int n;
    char **list; /* ours and what we inherited, NULL at the end */
} rank_environment;

static void set_variable(rank_environment *e, const char *name, const char *value)
{
    snprintf(e->text[e->n++], VARIABLE_BYTES, "%s=%s", name, value);
}

static void set_number(rank_environment *e, const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set_variable(e, name, text);
}

static bool is_ours(const rank_environment *e, const char *variable)
{
    size_t name = strcspn(variable, "=") + 1;
    for (int i = 0; i < e->n; i++)
        if (strncmp(e->text[i], variable, name) == 0)
            return true;
    return false;
}

/* As torchrun says it; roles are all one, called default. */
static void set_torchrun(const attempt *a, int local_rank, rank_environment *e)
{
    const fsdp_launch_config *c = a->config;
    const round_place *p = &a->place;
    int rank = p->first_rank + local_rank;
    set_number(e, "RANK", rank);
    set_number(e, "LOCAL_RANK", c->virtual_local_rank ? 0 : local_rank);
    set_number(e, "WORLD_SIZE", p->world_size);
    set_number(e, "LOCAL_WORLD_SIZE", c->n_ranks);
    set_number(e, "GROUP_RANK", p->node);
    set_number(e, "GROUP_WORLD_SIZE", p->n_nodes);
    set_number(e, "ROLE_RANK", rank);
    set_number(e, "ROLE_WORLD_SIZE", p->world_size);
    set_variable(e, "ROLE_NAME", "default");
    set_variable(e, "MASTER_ADDR", p->master_address);
    set_number(e, "MASTER_PORT", p->master_port);
    set_number(e, "TORCHELASTIC_RESTART_COUNT", p->n_restarts);
    set_number(e, "TORCHELASTIC_MAX_RESTARTS", c->max_restarts);
    set_variable(e, "TORCHELASTIC_RUN_ID", a->job);
    set_variable(e, "TORCHELASTIC_USE_AGENT_STORE", "False"); /* rank 0 opens the store of PyTorch at MASTER_PORT */
}

/* The GPU that the rank would have taken, and no other: the one at its place among the visible ones. */
static void set_own_gpu(int local_rank, rank_environment *e)
{
    const char *visible = environment_value("CUDA_VISIBLE_DEVICES");
    char own[96];
    for (int i = 0; i < local_rank && visible; i++)
        visible = strchr(visible, ',') ? strchr(visible, ',') + 1 : "";
    if (visible)
        snprintf(own, sizeof own, "%.*s", (int)strcspn(visible, ","), visible);
    else
        snprintf(own, sizeof own, "%d", local_rank);
    set_variable(e, "CUDA_VISIBLE_DEVICES", own);
}

/* What rank 0 writes for our terminal, and nowhere else, may rewrite its last line. */
static bool is_live(const attempt *a, int local_rank, int file)
{
    return a->columns > 0 && a->place.first_rank + local_rank == 0 && a->outputs->ranks[local_rank].shown[0] &&
           file < 0;
}

/* `live`: the pipe of output that may; -1: none. */
static fsdp_status environment_make(const attempt *a, int local_rank, int n_cores, int live, rank_environment *e)
{
    char page[48];
    int inherited = 0, at = 0;
    set_torchrun(a, local_rank, e);
    if (a->config->virtual_local_rank)
        set_own_gpu(local_rank, e);
    set_number(e, "FSDP_RESTART_COUNT", a->place.n_restarts);
    set_number(e, "FSDP_FIRST_WORLD_SIZE", a->place.first_world_size);
    set_variable(e, "FSDP_RDZV_ENDPOINT", a->rendezvous);
    set_variable(e, "FSDP_RDZV_ID", a->job);
    set_variable(e, "FSDP_RDZV_SECRET", a->secret);
    set_number(e, "FSDP_RDZV_ROUND", a->place.round);
    set_variable(e, "FSDP_SNAPSHOTS", a->snapshots);
    snprintf(page, sizeof page, "%d:%d:%d", a->pulses, local_rank, a->config->n_ranks);
    set_variable(e, "FSDP_PULSE", page);
    if (a->bound)
        set_number(e, "FSDP_RANKS_ON_CORES", a->bound[local_rank].n_ranks);
    if (!environment_text("OMP_NUM_THREADS"))
        set_number(e, "OMP_NUM_THREADS", n_cores);
    struct stat file;
    if (live >= 0 && fstat(live, &file) == 0) {
        snprintf(page, sizeof page, "%d:%llu", a->columns, (unsigned long long)file.st_ino);
        set_variable(e, "FSDP_TERMINAL", page);
    }
    if (!environment_text("OMP_WAIT_POLICY") && !environment_text("GOMP_SPINCOUNT"))
        set_variable(e, "GOMP_SPINCOUNT", "1000"); /* as cli/main.c says */
    while (environ[inherited])
        inherited++;
    e->list = calloc((size_t)(inherited + MAX_VARIABLES + 1), sizeof *e->list);
    if (!e->list)
        return error_set(FSDP_ERR_MEMORY, "no memory for the environment of a rank");
    for (int i = 0; i < inherited; i++)
        if (!is_ours(e, environ[i]))
            e->list[at++] = environ[i];
    for (int i = 0; i < e->n; i++)
        e->list[at++] = e->text[i];
    return FSDP_OK;
}

/* ---- the new process, up to its exec ---- */

typedef struct birth {
    char *const *command, *const *environment;
    int in, out, err, failure; /* failure: where errno of exec goes */
    int pulses;                /* stays open across exec */
    pid_t parent;
    cpu_set_t cores;
    bool bind;
    sigset_t mask;
} birth;

static void die(const birth *b, int error)
{
    ssize_t ignored = write(b->failure, &error, sizeof error);
    (void)ignored;
    _exit(127);
}

static void become_rank(const birth *b)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != b->parent) /* it died before it could take us along */
        _exit(127);
    if (dup2(b->in, STDIN_FILENO) < 0 || dup2(b->out, STDOUT_FILENO) < 0 || dup2(b->err, STDERR_FILENO) < 0)
        die(b, errno);
    fcntl(b->pulses, F_SETFD, 0);
    if (b->bind)
        sched_setaffinity(0, sizeof b->cores, &b->cores);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &b->mask, NULL);
    environ = (char **)b->environment;
    execvp(b->command[0], b->command);
    die(b, errno);
}

/* ---- the parent's side ---- */

/* Rank 0 may read what is piped into us; a terminal stays ours, and the others read nothing. */
static int open_input(const attempt *a, int local_rank)
{
    if (a->place.first_rank + local_rank == 0 && !isatty(STDIN_FILENO)) {
        int copy = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        if (copy >= 0)
            return copy;
    }
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void close_if_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* errno of the new process's exec; 0 when that worked (the pipe closed without a word). */
static int read_failure(int fd)
{
    int error = 0;
    ssize_t got;
    do
        got = read(fd, &error, sizeof error);
    while (got < 0 && errno == EINTR);
    return got == sizeof error ? error : 0;
}

/* Takes `from` and `file`. */
static void open_lines(const attempt *a, int local_rank, int stream, line_pipe *lines, int from, int file)
{
    int rank = a->place.first_rank + local_rank;
    lines->from = from;
    lines->to = !a->outputs->ranks[local_rank].shown[stream] ? -1 : stream == 0 ? STDOUT_FILENO : STDERR_FILENO;
    lines->file = file;
    lines->bytes = 0;
    lines->live = a->live;
    lines->rewrites = stream == 0 && is_live(a, local_rank, file);
    lines->prefix[0] = 0;
    if (!a->config->plain_first || rank != 0)
        outputs_prefix(a->config->line_prefix, rank, local_rank, lines->prefix);
    fcntl(from, F_SETFL, fcntl(from, F_GETFL) | O_NONBLOCK);
}

static void choose_cores(const attempt *a, int local_rank, birth *b, int *n_cores)
{
    int first, count;
    if (a->bound) {
        *n_cores = a->bound[local_rank].n_threads;
        b->bind = true;
        b->cores = a->bound[local_rank].set;
        return;
    }
    core_list_share(a->cores, local_rank, a->config->n_ranks, &first, &count);
    bool own = a->config->n_ranks <= a->cores->n;
    *n_cores = own ? count : 1;
    b->bind = own && !a->config->share_cores;
    CPU_ZERO(&b->cores);
    for (int i = 0; i < count; i++)
        CPU_SET(a->cores->cores[first + i], &b->cores);
}

fsdp_status process_start(const attempt *a, int local_rank, process *p, int *error)
{
    const fsdp_launch_config *config = a->config;
    int out[2] = {-1, -1}, err[2] = {-1, -1}, failure[2] = {-1, -1}, n_cores = 1;
    int files[2] = {-1, -1};
    rank_environment environment = {.n = 0};
    birth b = {
        .command = (char *const *)config->command, .parent = getpid(), .mask = a->mask, .in = -1, .pulses = a->pulses};
    fsdp_status status = FSDP_OK;
    *error = 0;
    p->rank = a->place.first_rank + local_rank;
    choose_cores(a, local_rank, &b, &n_cores);
    for (int k = 0; k < 2; k++)
        TRY_OR(done, outputs_open(a->outputs, local_rank, a->place.n_restarts, p->rank, k, &files[k]));
    b.in = open_input(a, local_rank);
    if (b.in < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || pipe2(failure, O_CLOEXEC) < 0) {
        status = error_set_errno(FSDP_ERR_IO, "cannot make pipes for rank %d", p->rank);
        goto done;
    }
    bool live = is_live(a, local_rank, files[0]);
    TRY_OR(done, environment_make(a, local_rank, n_cores, live ? out[0] : -1, &environment));
    b.environment = environment.list;
    b.out = out[1], b.err = err[1], b.failure = failure[1];
    pid_t pid = fork();
    if (pid == 0)
        become_rank(&b);
    if (pid < 0) {
        status = error_set_errno(FSDP_ERR_IO, "cannot start rank %d", p->rank);
        goto done;
    }
    setpgid(pid, pid); /* both sides do: whoever comes first */
    p->pid = pid;
    close(failure[1]);
    failure[1] = -1;
    *error = read_failure(failure[0]);
    if (*error) {
        waitpid(pid, NULL, 0);
        p->pid = 0;
        errno = *error;
        status = error_set_errno(FSDP_ERR_INPUT, "cannot run '%s'", config->command[0]);
        goto done;
    }
    p->running = true;
    open_lines(a, local_rank, 0, &p->out, out[0], files[0]);
    open_lines(a, local_rank, 1, &p->err, err[0], files[1]);
    out[0] = err[0] = files[0] = files[1] = -1;
done:
    close_if_open(b.in);
    for (int i = 0; i < 2; i++) {
        close_if_open(out[i]);
        close_if_open(err[i]);
        close_if_open(failure[i]);
        close_if_open(files[i]);
    }
    free(environment.list);
    return status;
}

void process_signal(const process *p, int signal_number, bool with_children)
{
    if (p->pid > 0)
        kill(with_children ? -p->pid : p->pid, signal_number);
}

/* ---- the keeper ---- */

static void keep(const keeper *k, int read_end)
{
    char word;
    ssize_t got;
    setsid(); /* away from our terminal and its signals */
    do
        got = read(read_end, &word, 1);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        for (int i = 0; i < k->n; i++)
            if (k->groups[i] > 0)
                kill(-k->groups[i], SIGKILL);
    /* A rank that is not gone yet may still write: again, until nothing is left. */
    for (int i = 0; got <= 0 && i < REMOVALS && file_exists(k->snapshots); i++) {
        (void)file_remove_tree(k->snapshots);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    _exit(0);
}

fsdp_status keeper_start(int n, const char *snapshots, keeper *k)
{
    int ends[2];
    *k = (keeper){.n = n, .pipe = -1, .snapshots = snapshots};
    k->groups = mmap(NULL, (size_t)n * sizeof *k->groups, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (k->groups == MAP_FAILED || pipe2(ends, O_CLOEXEC) < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot prepare to start %d ranks", n);
    k->pid = fork();
    if (k->pid == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        close(ends[1]);
        close(STDOUT_FILENO); /* whoever reads our output must not wait for the keeper */
        close(STDERR_FILENO);
        keep(k, ends[0]);
    }
    close(ends[0]);
    k->pipe = ends[1];
    if (k->pid < 0)
        return error_set_errno(FSDP_ERR_IO, "cannot prepare to start %d ranks", n);
    return FSDP_OK;
}

void keeper_stop(keeper *k)
{
    if (k->pid > 0) {
        ssize_t ignored = write(k->pipe, "", 1);
        (void)ignored;
        waitpid(k->pid, NULL, 0);
    }
    if (k->pipe > 0)
        close(k->pipe);
    if (k->groups && k->groups != MAP_FAILED)
        munmap(k->groups, (size_t)k->n * sizeof *k->groups);
    *k = (keeper){0};
}
