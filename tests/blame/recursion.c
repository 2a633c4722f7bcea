/* One local in several frames of one function. SPDX-License-Identifier: MIT */
#include <stdlib.h>

static int down(int depth) {
    volatile int mine = depth * 10; /* LOCAL */
    if (depth == 0)
        abort();
    return down(depth - 1) + mine;
}

int main(void) {
    return down(3);
}
