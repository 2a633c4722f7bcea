/* Optimised code: some variables are in registers, some nowhere. SPDX-License-Identifier: MIT */
#include <stdlib.h>

struct total {
    double sum;
    unsigned count;
} total;
int kept;

static __attribute__((noinline)) int work(int n) {
    int gone = n * 3;
    kept = n + 1; /* KEPT */
    total.sum += n / 2.0; /* SUM */
    total.count++;
    return gone;
}

int main(int argc, char **argv) {
    (void)argv;
    int nowhere = argc;
    work(argc);
    total.count += (unsigned)work(argc + 1) & 1;
    nowhere = 0;
    (void)nowhere;
    abort();
}
