/* The kernel writes into a buffer for the program. SPDX-License-Identifier: MIT */
#include <string.h>
#include <unistd.h>

static char buffer[16];

int main(void) {
    int ends[2];
    pipe(ends);
    write(ends[1], "hello", 6);
    read(ends[0], buffer, sizeof buffer);
    return strcmp(buffer, "hello");
}
