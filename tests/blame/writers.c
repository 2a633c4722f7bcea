/* A file written by two processes, line by line. SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *text) {
    int file = open("/tmp/log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (write(file, text, strlen(text)) < 0) /* WRITE */
        _exit(3);
    close(file);
}

int main(void) {
    say("one: parent\n");
    if (fork() == 0) {
        say("two: child\n"); /* CHILD */
        _exit(0);
    }
    wait(NULL);
    say("three: parent\n");
    abort();
}
