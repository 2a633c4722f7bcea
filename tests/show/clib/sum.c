#include "small.h"
long sum(const int *values, size_t count)
{
    long total = 0;
    while (count--)
        total += *values++;
    return total;
}
