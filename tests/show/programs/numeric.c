// Integer, floating-point, string and sorting work of the C library, printed to the last bit.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    static double values[5000];
    uint64_t state = 88172645463325252u, mixed = 0;
    for (int i = 0; i < 5000; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        values[i] = (double)(int64_t)state / 1e12;
        mixed = mixed * 6364136223846793005u + (state >> 11) / ((state & 1023) + 1);
    }
    qsort(values, 5000, sizeof values[0], by_value);
    printf("%a %a %a %016llx\n", values[0], values[2500], values[4999], (unsigned long long)mixed);
    long double product = 1;
    for (int i = 1; i <= 30; i++) product *= 1 + 1 / (long double)i / i;
    printf("%La %.18Lg\n", product, product);
    for (double x = 0.1; x < 3; x += 0.7)
        printf("%a %a %a %a %a %a\n", sin(x), exp(x), log(x), pow(x, 1.7), atan2(x, 2), sqrt(x));
    printf("%La %La %La\n", sinl(0.7L), expl(1.5L), logl(7.0L));
    float f = 1;
    for (int i = 0; i < 100; i++) f = f * 1.1f - 0.3f / f;
    printf("%a %d %d\n", f, (int)lrint(2.5), (int)llround(-2.5));
    char text[200];
    snprintf(text, sizeof text, "%.17g %g %.3e %lld", 0.1, 1e100, 123456.789, -9007199254740993ll);
    printf("%s %.17g %zu %s\n", text, strtod("0.30000000000000004", NULL), strcspn(text, "e"), strstr(text, "e+"));
    return 0;
}
