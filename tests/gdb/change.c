/* Takes one way or another. SPDX-License-Identifier: MIT */
static int way = 1;
static int taken;

static void left(void) { taken = 1; }
static void right(void) { taken = 2; }

int main(void) {
    if (way == 1)
        left();
    else
        right();
    return 0;
}
