/* Preloaded into a program of TCP: its sockets are those of SMC, which end as TCP where a peer has no SMC. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
    static int (*next)(int, int, int);
    int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (!next)
        next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    if ((domain == AF_INET || domain == AF_INET6) && kind == SOCK_STREAM) {
        protocol = domain == AF_INET6; /* SMCPROTO_SMC, SMCPROTO_SMC6 */
        domain = AF_SMC;
    }
    return next(domain, type, protocol);
}
