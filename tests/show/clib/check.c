#include <assert.h>
#include <stdio.h>
#include "small.h"
int main(void)
{
    struct ring ring = {0};
    int value;
    for (int i = 0; i < 20; i++) {
        assert(ring_put(&ring, i));
        assert(ring_get(&ring, &value) && value == i);
    }
    puts("ring: ok");
    assert(text_words("  two words ") == 2);
    puts("text: ok");
    assert(sum((int[]){1, 2, 3}, 3) == 6);
    puts("sum: ok");
    return 0;
}
