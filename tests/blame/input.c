/* A buffer filled by read from a file, and a mapped file. SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static char buffer[64];
static char *mapped;

int main(void) {
    int file = open("/data/words.txt", O_RDONLY);
    ssize_t n = read(file, buffer, sizeof buffer); /* READ */
    mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    volatile char first = mapped[0];
    (void)first;
    (void)n;
    abort();
}
