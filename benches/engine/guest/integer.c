// Integer work in one process: a sieve, the lengths of Collatz chains, a table of mixed bits.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT = 3000000, CHAINS = 400000, SLOTS = 1 << 15, ROUNDS = 30000000 };

static unsigned char composite[LIMIT];
static uint32_t table[SLOTS];

static long sieve(void)
{
    long primes = 0;
    for (long i = 2; i < LIMIT; i++) {
        if (composite[i])
            continue;
        primes++;
        for (long j = i * i; j < LIMIT; j += i)
            composite[j] = 1;
    }
    return primes;
}

static uint64_t collatz(void)
{
    uint64_t steps = 0;
    for (uint64_t i = 1; i < CHAINS; i++)
        for (uint64_t n = i; n != 1; steps++)
            n = n & 1 ? 3 * n + 1 : n >> 1;
    return steps;
}

static uint64_t mix(void)
{
    uint64_t x = 88172645463325252u, sum = 0;
    for (long i = 0; i < ROUNDS; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        table[x % SLOTS] += (uint32_t)(x >> 32);
        sum += table[(x >> 20) % SLOTS];
    }
    return sum;
}

int main(void)
{
    printf("sieve %ld\n", sieve());
    printf("collatz %llu\n", (unsigned long long)collatz());
    printf("mix %llu\n", (unsigned long long)mix());
    return 0;
}
