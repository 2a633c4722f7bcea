/* Executes itself once more. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <unistd.h>

static int generation;

static int second(void) {
    generation = 2;
    return generation;
}

int main(int argc, char **argv) {
    if (argc > 1)
        return second() == 2 ? 0 : 1;
    generation = 1;
    char *arguments[] = { argv[0], "again", 0 };
    execv("/proc/self/exe", arguments);
    return 1;
}
