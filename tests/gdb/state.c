/* Something of everything: arithmetic, memory, system calls, page faults. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double mean(const double *values, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum / count;
}

int main(void) {
    double values[4] = { 1, 2, 3, 4 };
    char *fresh = malloc(1 << 20);
    getppid();
    fresh[4096 * 3] = 1;
    double average = mean(values, 4);
    getppid();
    memset(fresh + 4096 * 5, 1, 6);
    free(fresh);
    return average > 2 ? 0 : 1;
}
