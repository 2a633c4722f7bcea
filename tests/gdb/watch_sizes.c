/* Variables of every size, written and read once each. SPDX-License-Identifier: MIT */
struct wide { long a, b, c; };
static volatile char one;
static volatile short two;
static volatile int four;
static volatile long eight;
static struct wide wide;
static char big[300];
static volatile long sum;

int main(void) {
    one = 1;
    two = 2;
    four = 4;
    eight = 8;
    wide.b = 24;
    big[260] = 7;
    sum = eight;
    four = 4;
    four = 5;
    return 0;
}
