/* Everything the seed decides: getrandom, AT_RANDOM, where stack, heap and mappings lie. */
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

int main(void)
{
	unsigned char bytes[16], *start = (unsigned char *)getauxval(AT_RANDOM);
	void *mapping = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		return 1;
	for (int i = 0; i < 16; i++)
		printf("%02x", bytes[i]);
	printf(" ");
	for (int i = 0; i < 16; i++)
		printf("%02x", start[i]);
	printf(" %p %p %p\n", mapping, (void *)bytes, sbrk(0));
	return 0;
}
