/* Two files with a static of one name. SPDX-License-Identifier: MIT */
#include <stdlib.h>

void other(void);
static int twin;

int main(void) {
    int mapped_only[4096];
    mapped_only[0] = 1;
    twin = 1;
    other();
    (void)mapped_only;
    abort();
}
