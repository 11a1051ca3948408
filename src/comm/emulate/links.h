/* The links of a world that is not there: how many ranks a host has, how fast they are joined, and how long a
 * collective takes over them. */
#ifndef COMM_EMULATE_LINKS_H
#define COMM_EMULATE_LINKS_H

#include "comm/comm.h"

typedef struct links {
    int per_host, n_hosts;
    double within, between; /* bytes a second, of each rank, in each direction */
    int ctas;               /* the most blocks of a collective; 0: what the rate within a host asks for (ctas.h) */
    fsdp_comm_memory memory;
} links;

/* "8@450GBs", "8@450GBs,2@50GBs": ranks of a host and the rate within it; hosts and the rate of each rank between them.
 * FSDP_ERR_INPUT with an example otherwise. ctas and memory are the caller's to fill in. */
fsdp_status links_parse(const char *text, links *out);

/* Multiprocessors that a collective among these ranks keeps busy; 0: copy engines carry it. */
int links_blocks(const links *l, const int *members, int n, comm_kind kind);

/* Whether a switch multiplies and sums what such a collective carries, instead of the ranks' blocks. */
bool links_switched(const links *l, const int *members, int n);

/* Seconds of a collective among these ranks, of which each receives `bytes`. */
double links_seconds(const links *l, const int *members, int n, comm_kind kind, double bytes);

/* The same where every rank sends to every other (direct.h), which no switch does for them. */
int links_direct_blocks(const links *l);
double links_direct_seconds(const links *l, const int *members, int n, double bytes);

#endif
