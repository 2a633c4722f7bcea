/* A number travels through memory, memcpy, a pipe to another process, and a structure. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct message {
    long kind;
    long number;
};

static struct message received;
static long copy;
static volatile long seed = 40;

int main(void) {
    int ends[2];
    if (pipe(ends) != 0)
        return 3;
    if (fork() == 0) {
        struct message sent = {.kind = 1};
        sent.number = seed; /* STORED */
        if (write(ends[1], &sent, sizeof sent) != sizeof sent) /* SENT */
            _exit(3);
        _exit(0);
    }
    char bytes[sizeof received];
    if (read(ends[0], bytes, sizeof bytes) != sizeof bytes) /* RECEIVED */
        return 3;
    memcpy(&received, bytes, sizeof received); /* UNPACKED */
    copy = received.number; /* COPIED */
    wait(NULL);
    abort();
}
