/* Keeps the message of each thread's last failure, and who this process is. Formatting happens on the stack and in
 * thread-local storage, so a failure can be reported when memory has run out. */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text/printable.h"

enum { MESSAGE_BYTES = 8192 }; /* room for a list of names */

/* `body` is where the text after "rank N: " begins: context goes in between. */
typedef struct message {
    char text[MESSAGE_BYTES];
    size_t body;
    fsdp_status status;
    unsigned count; /* of messages before and with this one */
} message;

static _Thread_local message last;

/* Written once at start, before any thread that reads it: the process's identity, not state. */
static int process_rank = 0;
static int process_world_size = 1;

static const char *const status_names[] = {
    [FSDP_OK] = "ok",
    [FSDP_ERR_INPUT] = "input",
    [FSDP_ERR_IO] = "io",
    [FSDP_ERR_MEMORY] = "memory",
    [FSDP_ERR_UNSUPPORTED] = "unsupported",
    [FSDP_ERR_TIMEOUT] = "timeout",
    [FSDP_ERR_PEER] = "peer",
    [FSDP_ERR_STATE] = "state",
    [FSDP_ERR_NUMERIC] = "numeric",
    [FSDP_ERR_DEVICE] = "device",
};

const char *fsdp_last_error(void)
{
    return last.text;
}

fsdp_status error_last(void)
{
    return last.status;
}

unsigned error_count(void)
{
    return last.count;
}

const char *fsdp_status_name(fsdp_status status)
{
    size_t index = (size_t)status;
    return index < sizeof status_names / sizeof *status_names ? status_names[index] : "unknown";
}

int fsdp_exit_code(fsdp_status status)
{
    if (status == FSDP_OK)
        return 0;
    return status == FSDP_ERR_INPUT || status == FSDP_ERR_UNSUPPORTED ? 2 : 1;
}

void error_set_rank(int rank, int world_size)
{
    process_rank = rank;
    process_world_size = world_size;
}

int error_rank(void)
{
    return process_rank;
}

int error_world_size(void)
{
    return process_world_size;
}

/* Puts `front` and `rest` after the rank, fit for a terminal: names in them come from files. A message that is too
 * long ends in "...". Both are copies, since callers may pass the present message on: its rank is not put there twice.
 */
static void message_store(const char *front, const char *rest)
{
    last.body = 0;
    last.count++;
    if (process_world_size > 1) {
        last.body = (size_t)snprintf(last.text, sizeof last.text, "rank %d: ", process_rank);
        if (strncmp(front, last.text, last.body) == 0)
            front += last.body;
    }
    size_t room = sizeof last.text - last.body;
    size_t used = printable(front, false, last.text + last.body, room);
    if (used < room)
        used += printable(rest, false, last.text + last.body + used, room - used);
    if (used >= room) {
        size_t length = strnlen(last.text, sizeof last.text - 4);
        while (length > 0 && ((unsigned char)last.text[length] & 0xc0) == 0x80)
            length--; /* not within a character */
        memcpy(last.text + length, "...", 4);
    }
}

static fsdp_status set_message(fsdp_status status, const char *format, va_list arguments)
{
    char text[MESSAGE_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    message_store(text, "");
    return last.status = status;
}

fsdp_status error_set(fsdp_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = set_message(status, format, arguments);
    va_end(arguments);
    return status;
}

fsdp_status fsdp_fail(fsdp_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status = set_message(status, format, arguments);
    va_end(arguments);
    return status;
}

fsdp_status error_set_errno(fsdp_status status, const char *format, ...)
{
    int number = errno;
    char text[MESSAGE_BYTES], reason[128], buffer[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(reason, sizeof reason, ": %s", strerror_r(number, buffer, sizeof buffer));
    message_store(text, reason);
    errno = number;
    return last.status = status;
}

fsdp_status error_prefix(fsdp_status status, const char *format, ...)
{
    char front[MESSAGE_BYTES], rest[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(front, sizeof front, format, arguments);
    va_end(arguments);
    memcpy(rest, last.text + last.body, sizeof rest - last.body);
    message_store(front, rest);
    return last.status = status;
}
