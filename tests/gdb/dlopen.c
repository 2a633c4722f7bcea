/* A library loaded later. SPDX-License-Identifier: MIT */
#include <dlfcn.h>

int main(void) {
    void *library = dlopen("./libdlopen.so", RTLD_NOW);
    int (*scale)(int) = (int (*)(int))dlsym(library, "scale");
    return scale(5) == 5 ? 0 : 1;
}
