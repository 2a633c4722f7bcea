/* Executes instructions outside x86-64-v2: steps over two VADDPS and one RDRAND in its signal handler, says where the
   first was, and is killed by the next. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>

static void *first;

static void on_illegal(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	if (!first)
		first = info->si_addr;
	/* All of them are four bytes long. */
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 4;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO };

	sigaction(SIGILL, &action, NULL);
	for (int i = 0; i < 2; i++)
		__asm__ volatile(".byte 0xc5, 0xf4, 0x58, 0xc2"); /* vaddps ymm0, ymm1, ymm2 */
	__asm__ volatile(".byte 0x48, 0x0f, 0xc7, 0xf0" ::: "rax"); /* rdrand rax */
	printf("first at %p\n", first);
	fflush(stdout);
	signal(SIGILL, SIG_DFL);
	__asm__ volatile(".byte 0xc5, 0xf4, 0x58, 0xc2");
	return 0;
}
