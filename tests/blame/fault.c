/* What a program does after it last left the kernel counts at its crash. SPDX-License-Identifier: MIT */
static int before = 1;

int main(void) {
    int local = 2;
    before = 3;
    local = 40;
    before = 5; /* BEFORE */
    *(volatile int *)8 = local;
}
