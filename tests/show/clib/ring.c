#include "small.h"
int ring_put(struct ring *ring, int value)
{
    if (ring->count == 8)
        return 0;
    ring->slots[(ring->first + ring->count++) % 8] = value;
    return 1;
}
int ring_get(struct ring *ring, int *value)
{
    if (ring->count == 0)
        return 0;
    *value = ring->slots[ring->first];
    ring->first = (ring->first + 1) % 8;
    ring->count--;
    return 1;
}
