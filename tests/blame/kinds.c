// Bit-fields, arrays of a length known late, what the kernel fills in pieces, a file mapped by two views, moved memory.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct flags {
    unsigned low : 3, high : 5;
    int sign : 4;
};
static struct flags flags, copied;
static char received[64];
static char part_a[4], part_b[8];
static int *grown;
static char *shared, *moved;
static long double extended;
static __float128 quad;

__attribute__((noinline)) static void deep(int depth, int *target, int n) {
    int vla[n];
    for (int i = 0; i < n; i++) vla[i] = i * depth + 1; /* VLA */
    if (depth == 0) {
        *target = vla[n - 1] + 8; /* TARGET */
        abort();
    }
    deep(depth - 1, target, n);
    vla[0] = 4;
}

int main(void) {
    int in_main = 1, pair[2], ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(ends)) return 1;
    if (write(pair[1], "hello from the other end", 25) != 25 || write(ends[1], "abcdefghij", 10) != 10) return 2;
    if (recv(pair[0], received, sizeof received, 0) != 25) return 3; /* RECEIVED */
    struct iovec parts[2] = {{part_a, 4}, {part_b, 6}};
    if (readv(ends[0], parts, 2) != 10) return 4; /* PARTS */
    flags.low = 5; /* LOW */
    flags.high = 17;
    flags.sign = -3; /* SIGN */
    memcpy(&copied, &flags, sizeof flags); /* COPIED */
    grown = malloc(4 * sizeof *grown);
    grown[2] = 222;
    grown = realloc(grown, 100000 * sizeof *grown); /* MOVED */
    int fd = open("/tmp/shared", O_RDWR | O_CREAT, 0600);
    if (ftruncate(fd, 8192)) return 5;
    shared = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shared[5000] = 'S'; /* MAPPED */
    if (pwrite(fd, "W", 1, 5001) != 1) return 6; /* WRITTEN */
    moved = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    moved[100] = 'M'; /* BEFORE */
    moved = mremap(moved, 4096, 1 << 20, MREMAP_MAYMOVE);
    extended = 1.5L; /* EXTENDED */
    quad = 1; /* QUAD */
    deep(3, &in_main, 6);
    return in_main;
}
