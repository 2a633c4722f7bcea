/* No loader, no libraries. SPDX-License-Identifier: MIT */
static int state;
static __thread int own = 9;

static int step(int n) {
    state = n;
    return state + own;
}

int main(void) {
    return step(33) == 42 ? 0 : 1;
}
