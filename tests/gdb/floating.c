/* SSE and x87 values. SPDX-License-Identifier: MIT */
static volatile double half = 0.5;
static volatile long double third = 1.0L / 3;

static double scale(double by) {
    return by * half;
}

static long double wide(long double by) {
    return by * third;
}

int main(void) {
    double a = scale(5);
    long double b = wide(6);
    return a == 2.5 && b > 1.9L && b < 2.1L ? 0 : 1;
}
