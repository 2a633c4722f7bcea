/* Makes code and runs it. SPDX-License-Identifier: MIT */
#include <string.h>
#include <sys/mman.h>

static void *made;

int main(void) {
    /* lea 1(%rdi), %eax; ret */
    static const unsigned char text[] = { 0x8d, 0x47, 0x01, 0xc3 };
    made = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, text, sizeof text);
    return ((int (*)(int))made)(41) == 42 ? 0 : 1;
}
