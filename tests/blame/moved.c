/* Uses a library's variable through a copy relocation; a static that the optimiser removed; text behind a NUL; a
   bit-field written with its own value. SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern int shared_count;
void library_work(void);

static int table[64];
char name[16];
char plain[16];
volatile struct Bits {
    unsigned low : 3, high : 5;
} *bits;

static int filled(int n) {
    for (int i = 0; i < 64; i++) {
        table[i] = n;
    }
    return n;
}

int main(int argc, char **argv) {
    (void)argv;
    shared_count = 7;
    library_work();
    name[0] = 0;
    memcpy(name + 2, "abc", 3); /* NAME */
    memcpy(plain, "plain", 6);
    /* Many pages: some are made of frames that were zero before. */
    bits = mmap(NULL, 1200 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 1200; i++) {
        bits[i * 1024].low = 0;
        bits[i * 1024].high = 17; /* HIGH */
    }
    if (filled(argc) && shared_count > 0) {
        abort();
    }
}
