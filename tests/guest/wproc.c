/* Processes: vfork, posix_spawn, clone3, timers and signals, ptrace, pseudo-terminals, a bounded fork bomb, limits. */
#include "parts.h"
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <termios.h>
#include <time.h>

extern char **environ;

static void spawning(void)
{
	char *argv[] = { "sh", "-c", "echo spawned $0 $PPID >&1; exit 3", "me", NULL };
	pid_t pid;
	int status, fd = -1;

	fflush(stdout);
	pid = vfork();
	if (!pid) {
		execl("/bin/busybox", "echo", "from vfork", NULL);
		_exit(1);
	}
	waitpid(pid, &status, 0);
	CHECK(!posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ));
	waitpid(pid, &status, 0);
	printf("status %d\n", WEXITSTATUS(status));
	struct clone_args args = { .flags = CLONE_PIDFD, .pidfd = (long)&fd, .exit_signal = SIGCHLD };
	pid = syscall(SYS_clone3, &args, sizeof(args));
	CHECK(pid >= 0);
	if (!pid) {
		usleep(2000);
		_exit(4);
	}
	struct pollfd wait = { fd, POLLIN, 0 };
	printf("pidfd %d before, ", poll(&wait, 1, 0));
	CHECK(!syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
	printf("%d after\n", poll(&wait, 1, 1000));
	waitpid(pid, &status, 0);
	printf("clone3 child: status %x\n", status);
}

static volatile sig_atomic_t alarms, queued, profs;
static timer_t timer;

static void on_alarm(int n) { n == SIGALRM ? alarms++ : profs++; }

static void on_queued(int n, siginfo_t *info, void *context)
{
	(void)n, (void)context;
	queued += info->si_value.sival_int + timer_getoverrun(timer);
}

static void timing(void)
{
	struct itimerval every = { { 0, 1500 }, { 0, 700 } };
	struct sigaction action = { .sa_sigaction = on_queued, .sa_flags = SA_SIGINFO };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 100 };
	struct itimerspec spec = { { 0, 2000000 }, { 0, 1000000 } };
	long loops = 0;

	signal(SIGALRM, on_alarm);
	signal(SIGPROF, on_alarm);
	sigaction(SIGRTMIN, &action, NULL);
	CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &spec, NULL));
	CHECK(!setitimer(ITIMER_REAL, &every, NULL) && !setitimer(ITIMER_PROF, &every, NULL));
	while (alarms < 10) {
		getppid();
		loops++;
	}
	CHECK(!timer_delete(timer));
	setitimer(ITIMER_REAL, NULL, NULL);
	printf("%d alarms, %d profiling, %d queued in %ld loops\n", alarms, profs > 0, queued, loops);
	sigset_t set;
	siginfo_t info;
	struct timespec limit = { 0, 5000000 };
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN + 1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; i < 3; i++)
		CHECK(!sigqueue(getpid(), SIGRTMIN + 1, (union sigval){ .sival_int = i }));
	while (sigtimedwait(&set, &info, &limit) > 0)
		printf("got %d; ", info.si_value.sival_int);
	printf("%s\n", strerror(errno));
}

static void tracing(void)
{
	struct user_regs_struct regs;
	int status, calls = 0;
	long steps = 0;
	pid_t pid = fork();

	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		for (int i = 0; i < 3; i++)
			getppid();
		__asm__ volatile("rdtsc\n\tpushfq\n\tpop %%rax\n\tnop" ::: "rax", "rdx", "memory");
		_exit(6);
	}
	waitpid(pid, &status, 0);
	CHECK(WIFSTOPPED(status) && !ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD));
	while (calls < 6) {
		CHECK(!ptrace(PTRACE_SYSCALL, pid, 0, 0));
		waitpid(pid, &status, 0);
		if (WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			CHECK(!ptrace(PTRACE_GETREGS, pid, 0, &regs));
			printf("call %lld rax %lld; ", (long long)regs.orig_rax, (long long)regs.rax);
			calls++;
		}
	}
	/* One at a time through RDTSC, which the kernel emulates: each of these is one stop. */
	for (;;) {
		CHECK(!ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
		waitpid(pid, &status, 0);
		if (!WIFSTOPPED(status))
			break;
		CHECK(WSTOPSIG(status) == SIGTRAP);
		CHECK(!ptrace(PTRACE_GETREGS, pid, 0, &regs));
		unsigned long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)(regs.rip - 2), 0);
		if ((word & 0xffff) == 0x310f)
			printf("stopped right behind RDTSC; ");
		/* As on any Linux: a stepped PUSHF stores the flag. */
		if ((word >> 8 & 0xff) == 0x9c) {
			unsigned long pushed = ptrace(PTRACE_PEEKDATA, pid, (void *)regs.rsp, 0);
			printf("PUSHF stored TF %lu; ", pushed >> 8 & 1);
		}
		steps++;
	}
	printf("ended %x after %ld steps\n", status, steps);
}

static void terminal(void)
{
	struct termios mode;
	char text[200], name[64];
	int master = posix_openpt(O_RDWR | O_NOCTTY), n;

	CHECK(master >= 0 && !grantpt(master) && !unlockpt(master) && !ptsname_r(master, name, sizeof(name)));
	if (!fork()) {
		setsid();
		int slave = open(name, O_RDWR);
		CHECK(slave >= 0 && !tcgetattr(slave, &mode));
		dprintf(slave, "?");
		n = read(slave, text, sizeof(text));
		dprintf(slave, "read %d bytes on %s\n", n, ttyname(slave));
		pause();
	}
	while ((n = read(master, text, sizeof(text))) > 0) {
		for (int i = 0; i < n; i++) {
			printf(text[i] < ' ' ? "<%d>" : "%c", text[i]);
			/* It reads now; the name of the terminal ends its answer. */
			if (text[i] == '?')
				CHECK(write(master, "typd\177ed\n", 8) == 8);
			if (text[i] == '/' && i + 1 < n && text[i + 1] >= '0' && text[i + 1] <= '9')
				CHECK(write(master, "\003", 1) == 1);
		}
	}
	printf(" then %s, ", strerror(errno));
	wait(&n);
	printf("ended by %d\n", WTERMSIG(n));
}

static void bomb(void)
{
	struct rlimit limit = { 40, 40 };
	int *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), failed = 0;

	CHECK(!setuid(1000) && !setrlimit(RLIMIT_NPROC, &limit));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < 7; i++) {
		pid_t pid = fork();
		if (pid < 0)
			failed++;
		else if (!pid)
			__atomic_fetch_add(&made[i], 1, __ATOMIC_SEQ_CST);
	}
	__atomic_fetch_add(&made[20], failed, __ATOMIC_SEQ_CST);
	usleep(1000);
	while (wait(NULL) > 0)
		;
	if (made[21]++)
		_exit(0);
	for (int i = 0; i < 7; i++)
		printf("%d ", made[i]);
	printf("processes\n");
}

static void priorities(void)
{
	struct sched_param fifo = { 10 };
	cpu_set_t set;

	printf("nice %d, ", nice(5));
	CHECK(!sched_setscheduler(0, SCHED_FIFO, &fifo));
	printf("policy %d, affinity %d, ", sched_getscheduler(0), sched_getaffinity(0, sizeof(set), &set));
	printf("%d of %ld cores, tsc mode ", CPU_COUNT(&set), sysconf(_SC_NPROCESSORS_ONLN));
	int mode = 0;
	CHECK(!prctl(PR_GET_TSC, &mode));
	printf("%d\n", mode);
	if (!fork()) {
		CHECK(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
		__asm__ volatile("rdtsc" ::: "rax", "rdx");
		_exit(0);
	}
	wait(&mode);
	printf("RDTSC forbidden: ended by %d\n", WTERMSIG(mode));
	for (int signal = 1; signal < 3; signal++) {
		if (!fork()) {
			if (signal == 1)
				*(volatile int *)8 = 1;
			__asm__ volatile("ud2");
		}
		wait(&mode);
		printf("fault: ended by %d\n", WTERMSIG(mode));
	}
}

static const struct part parts[] = {
	{ "spawning", spawning }, { "timing", timing }, { "tracing", tracing }, { "terminal", terminal },
	{ "bomb", bomb },	  { "priorities", priorities }, { 0 },
};

int main(int argc, char **argv) { return run_parts(parts, argc, argv); }
