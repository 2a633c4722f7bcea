/* A parent and a child go through the same function. SPDX-License-Identifier: MIT */
#include <sys/wait.h>
#include <unistd.h>

static int value;

static void change(int to) {
    value = to;
}

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        change(1);
        change(2);
        _exit(0);
    }
    waitpid(child, 0, 0);
    change(10);
    return 0;
}
