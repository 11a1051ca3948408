/* The `fsdp` command: finds the subcommand and hands it the rest. --help and --version are answered here, without
 * touching a device. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/crash.h>
#include <fsdp/version.h>
#include <fsdp/world.h>

#include "commands.h"

static int print_version(void)
{
    char cpu[512];
    printf("fsdp %s\nbuild: %s\n", FSDP_VERSION, fsdp_build_options());
    fsdp_status status = fsdp_describe_cpu("auto", cpu, sizeof cpu);
    if (status != FSDP_OK)
        return command_failed("--version", status);
    printf("cpu: %s\n", cpu);
    return 0;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* --help anywhere among the words of the command itself, not among those of a program that it starts. */
static bool asks_for_help(const command *c, int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (is_help(argv[i]))
            return true;
        if (c->passes_on)
            return false;
    }
    return false;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help_overview(stderr);
        return 2;
    }
    if (is_help(argv[1])) {
        help_overview(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0)
        return print_version();
    const command *c = command_find(argv[1]);
    if (!c)
        return command_unknown(argv[1]);
    if (asks_for_help(c, argc - 2, argv + 2)) {
        help_command(stdout, c);
        return 0;
    }
    return c->run(argc - 2, argv + 2);
}

/* A file that is opened while a standard descriptor is closed gets its number, and then what is meant for the terminal.
 * New descriptors are the lowest that are free, so each of these gets its own number. */
static bool hold_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            return false;
    return true;
}

/* OpenMP's threads wait for each other in a loop, for milliseconds, and on a machine that others use they take the core
 * from the very thread that they wait for. libgomp reads how long when it is loaded, so the command starts itself again
 * with a shorter wait, unless the user has chosen one. */
static void wait_politely(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || setenv("GOMP_SPINCOUNT", "1000", 1) != 0)
        return;
    execv("/proc/self/exe", argv); /* where that fails, it works as it is */
}

static bool computes(int argc, char **argv)
{
    static const char *const words[] = {"train", "bench", "generate"};
    for (size_t i = 0; argc > 1 && i < sizeof words / sizeof *words; i++)
        if (strcmp(argv[1], words[i]) == 0)
            return true;
    return false;
}

/* Output that did not arrive is a failure, wherever in the command it was written: on a full disk, say. */
int main(int argc, char **argv)
{
    if (!hold_standard_descriptors())
        return 1;
    if (computes(argc, argv))
        wait_politely(argv);
    fsdp_report_crashes();
    int code = run(argc, argv);
    bool failed = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) == 0 && !failed)
        return code;
    fprintf(stderr, "fsdp: standard output could not be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "; it lacks a part of what was printed");
    return code ? code : 1;
}
