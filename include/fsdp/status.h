/* Results of fallible calls. Every function of the library that can fail returns an fsdp_status; the message that
 * goes with it (what failed, where, what to do about it) stays with the calling thread until its next failure. */
#ifndef FSDP_STATUS_H
#define FSDP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_API __attribute__((visibility("default")))

typedef enum fsdp_status {
    FSDP_OK = 0,
    FSDP_ERR_INPUT,       /* what the user gave is wrong: a flag, a file, a configuration, an argument */
    FSDP_ERR_IO,          /* the system refused a read, a write, a mapping */
    FSDP_ERR_MEMORY,      /* host or device memory ran out */
    FSDP_ERR_UNSUPPORTED, /* well formed, but this build or machine cannot do it */
    FSDP_ERR_TIMEOUT,     /* a peer or a device did not answer in time */
    FSDP_ERR_PEER,        /* another rank failed, left, or disagrees */
    FSDP_ERR_STATE,       /* calls in an order that makes no sense */
    FSDP_ERR_NUMERIC,     /* a value that must be finite is not */
    FSDP_ERR_DEVICE,      /* the accelerator or one of its libraries failed */
} fsdp_status;

/* The message of this thread's last failure, "" before the first. Valid until the thread's next failing call. */
FSDP_API const char *fsdp_last_error(void);

/* Sets this thread's message and returns the status: how a callback of yours (a read of a sample, an operation) says
 * what failed. */
FSDP_API fsdp_status fsdp_fail(fsdp_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* A word for the code ("input", "timeout"), for logs and JSON. */
FSDP_API const char *fsdp_status_name(fsdp_status status);

/* Exit code of a command that ends with this status: 0 for success, 2 for input that is wrong or not supported here, 1
 * for a failure. */
FSDP_API int fsdp_exit_code(fsdp_status status);

/* Passes a failure on to the caller. */
#define FSDP_TRY(call)                                                                                                 \
    do {                                                                                                               \
        fsdp_status fsdp_try_status_ = (call);                                                                         \
        if (fsdp_try_status_ != FSDP_OK)                                                                               \
            return fsdp_try_status_;                                                                                   \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
