/* Calls itself. SPDX-License-Identifier: MIT */
static int factorial(int n) {
    if (n <= 1)
        return 1;
    int below = factorial(n - 1);
    return n * below;
}

int main(void) {
    int result = factorial(5);
    return result == 120 ? 0 : 1;
}
