/* Stores of every kind into one buffer: SSE, REP, unaligned, across a page; each variable is written once.
 * SPDX-License-Identifier: MIT */
#include <emmintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(4096) unsigned char pages[3 * 4096];
static _Alignas(16) unsigned char vector[32];
static unsigned char repeated[300];
struct packed {
    char before;
    uint64_t number;
} __attribute__((packed)) packed;
uint64_t *crossing;

int main(void) {
    memset(pages, 1, sizeof pages);
    crossing = (uint64_t *)(pages + 4093);
    _mm_store_si128((__m128i *)vector, _mm_set1_epi8(7)); /* SSE */
    void *to = repeated;
    size_t n = sizeof repeated;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(9) : "memory"); /* REP */
    packed.number = 0x1122334455667788; /* UNALIGNED */
    *crossing = 0xaabbccddeeff0011; /* CROSSING */
    abort();
}
