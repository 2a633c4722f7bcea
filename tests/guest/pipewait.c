/* Reads a pipe into which nobody will ever write: its only writer is the reader itself. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	int ends[2];
	char byte;

	if (pipe(ends))
		return 1;
	dprintf(1, "reading\n");
	return read(ends[0], &byte, 1) == 1 ? 2 : 3;
}
