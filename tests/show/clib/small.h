#include <stddef.h>
struct ring { int slots[8]; size_t first, count; };
int ring_put(struct ring *ring, int value);
int ring_get(struct ring *ring, int *value);
size_t text_words(const char *text);
long sum(const int *values, size_t count);
