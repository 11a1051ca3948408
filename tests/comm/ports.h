/* A TCP port that nobody uses just now, for ranks that meet on this host. */
#ifndef TESTS_COMM_PORTS_H
#define TESTS_COMM_PORTS_H

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    if (s >= 0 && bind(s, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(s, (struct sockaddr *)&address, &bytes) == 0)
        port = ntohs(address.sin_port);
    if (s >= 0)
        close(s);
    return port;
}

#endif
