/* The program of `make bench`: the figures of docs/benchmarks.md that `fsdp bench` does not give, since they compare
 * with other libraries or with what the machine does without us.
 *
 *     bench                  what there is
 *     bench all              every case as it is
 *     bench CASE [OPTIONS] */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

static const bench_case *const cases[] = {&case_gemm,    &case_kernels,   &case_comm,
                                          &case_overlap, &case_tokenizer, &case_checkpoint};
enum { N_CASES = sizeof cases / sizeof *cases };

static int list_cases(FILE *out)
{
    fprintf(out, "usage: bench all | CASE [--json] [--best] [OPTIONS]\n");
    for (int i = 0; i < N_CASES; i++)
        fprintf(out, "  %-11s %s\n              %s\n", cases[i]->name, cases[i]->summary, cases[i]->usage);
    return out == stderr ? 2 : 0;
}

/* A process for each: some cases fork, which threads of an earlier case would not survive. */
static int run_all(void)
{
    int code = 0;
    for (int i = 0; i < N_CASES; i++) {
        int status = 0;
        printf("== %s: %s\n", cases[i]->name, cases[i]->summary);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "bench", cases[i]->name, (char *)NULL);
            _exit(127);
        }
        if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "bench: %s failed\n", cases[i]->name);
            code = 1;
        }
    }
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return list_cases(argc < 2 ? stderr : stdout);
    if (strcmp(argv[1], "all") == 0)
        return run_all();
    for (int i = 0; i < N_CASES; i++)
        if (strcmp(argv[1], cases[i]->name) == 0)
            return cases[i]->run(argc - 2, argv + 2);
    fprintf(stderr, "bench: there is no case %s\n", argv[1]);
    return list_cases(stderr);
}
