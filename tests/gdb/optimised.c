/* Optimised, with a function inlined. SPDX-License-Identifier: MIT */
static volatile int sink;

static inline __attribute__((always_inline)) int twice(int n) {
    sink = n;
    return n * 2;
}

static __attribute__((noinline)) int work(int n) {
    int a = twice(n + 1);
    return a + sink;
}

int main(void) {
    int sum = 0;
    for (int i = 0; i < 3; i++)
        sum += work(i);
    return sum == 18 ? 0 : 1;
}
