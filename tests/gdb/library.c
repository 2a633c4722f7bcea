/* A program with a library of its own. SPDX-License-Identifier: MIT */
int scale(int);
extern int factor;

int main(void) {
    factor = 3;
    return scale(14) == 42 ? 0 : 1;
}
