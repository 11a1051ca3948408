/* fsdp_launch with small shell programs as ranks. The launcher runs in a process of its own, so that signals can be
 * sent to it and nothing of it stays in the test. */
#ifndef TESTS_LAUNCH_SUPPORT_LAUNCHED_H
#define TESTS_LAUNCH_SUPPORT_LAUNCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <fsdp/launch.h>

enum { OUTPUT_BYTES = 1 << 20 };

typedef struct launched {
    pid_t pid;
    int output; /* read end: both streams of the launcher */
    char text[OUTPUT_BYTES];
    size_t bytes;
    int exit_code;
} launched;

extern launched current; /* what `run` used last; others may use it, too */

/* Starts a launcher of `script` for each rank; its process prints the message of a failure behind the ranks' output and
 * exits as `fsdp run` would. */
void launch(launched *l, fsdp_launch_config config, const char *script);
/* Reads its output until `text` is in it, or to the end. */
void read_until(launched *l, const char *text);
/* Reads the rest, waits for the process and notes how it ended. */
void join(launched *l);
/* All of it with `current`. */
launched *run(fsdp_launch_config config, const char *script);

fsdp_launch_config ranks(int n); /* of one node, with 5 s of grace */

void pause_seconds(double seconds);
bool is_alive(pid_t pid);
bool dies_within(pid_t pid, double seconds);
/* Whether the signal is in this set of the process, as /proc/PID/status has it: "ShdPnd", say. */
bool is_in_set(pid_t pid, const char *set, int signal_number);

void assert_has(const launched *l, const char *text);
int number_after(const launched *l, const char *text);

#endif
