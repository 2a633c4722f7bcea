/* Two processes make one directory: stat, then mkdir if it is not there.
 *
 * If the other one makes it in between, mkdir fails. SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIRECTORY "/tmp/mkdir-race"

static int make_directory(int me) {
    struct stat info;
    if (stat(DIRECTORY, &info) == 0)
        return 0;
    if (mkdir(DIRECTORY, 0777) != 0) {
#ifdef FIXED
        if (errno == EEXIST && stat(DIRECTORY, &info) == 0 && S_ISDIR(info.st_mode))
            return 0;
#endif
        dprintf(2, "%d: mkdir: %s\n", me, strerror(errno));
        return 1;
    }
    return 0;
}

int main(void) {
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child < 0)
            return 3;
        if (child == 0)
            _exit(make_directory(i));
    }
    for (int i = 0; i < 2; i++) {
        int status;
        if (wait(&status) < 0 || status != 0)
            failed = 1;
    }
    return failed;
}
