// The shortest job: what is left is the machine's boot.
#include <stdio.h>

int main(void)
{
    puts("booted");
    return 0;
}
