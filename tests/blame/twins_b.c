/* See twins_a.c. SPDX-License-Identifier: MIT */
static int twin;

void other(void) {
    twin = 2;
}
