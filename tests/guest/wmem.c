/* Memory and System V: mappings, userfaultfd, robust futexes, rseq, message queues, shared memory, semaphores. */
#include "parts.h"
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <time.h>

static void mapping(void)
{
	struct rusage usage;
	unsigned char resident[64];
	char *a = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *b = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(a != MAP_FAILED && b != MAP_FAILED);
	for (int i = 0; i < 256; i += 3)
		a[i * 4096] = b[i * 4096] = i;
	char *c = mremap(a, 1 << 20, 3 << 20, MREMAP_MAYMOVE);
	CHECK(c != MAP_FAILED && c[3 * 4096] == 3);
	CHECK(!mprotect(c + 4096, 8192, PROT_READ) && !madvise(c + (1 << 19), 1 << 19, MADV_DONTNEED));
	CHECK(c[(1 << 19) + 4096] == 0 && !munmap(c + 16384, 4096));
	CHECK(!mincore(b, 64 * 4096, resident));
	for (int i = 0; i < 64; i++)
		printf("%d", resident[i] & 1);
	if (!fork()) {
		b[5] = 77;
		c[0] = 9;
		_exit(0);
	}
	wait(NULL);
	CHECK(b[5] == 77 && c[0] == 0 && !mlock(b, 65536));
	getrusage(RUSAGE_SELF, &usage);
	printf(" at %p %p %p, faults %ld, most %ld KiB\n", a, b, c, usage.ru_minflt, usage.ru_maxrss);
	show("/proc/self/maps");
	show("/proc/self/smaps_rollup");
}

static void *serve(void *argument)
{
	int fd = (int)(long)argument;
	char page[4096];

	for (int i = 0; i < 8; i++) {
		struct uffd_msg message;
		CHECK(read(fd, &message, sizeof(message)) == sizeof(message));
		memset(page, 'a' + i, sizeof(page));
		struct uffdio_copy copy = {
			.dst = message.arg.pagefault.address & ~4095ULL, .src = (long)page, .len = 4096,
		};
		CHECK(!ioctl(fd, UFFDIO_COPY, &copy));
	}
	return NULL;
}

static void userfault(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	pthread_t thread;
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	char *at = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (long)at, 65536 }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	CHECK(fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &range));
	pthread_create(&thread, NULL, serve, (void *)(long)fd);
	for (int i = 7; i >= 0; i--)
		printf("%c", at[i * 8192]);
	printf("\n");
	pthread_join(thread, NULL);
}

static pthread_mutex_t *robust;

static void *die_holding(void *argument)
{
	(void)argument;
	pthread_mutex_lock(robust);
	return NULL;
}

static void futexes(void)
{
	pthread_mutexattr_t attributes;
	pthread_t thread;
	struct timespec short_time;

	robust = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(robust, &attributes);
	pthread_create(&thread, NULL, die_holding, NULL);
	pthread_join(thread, NULL);
	int error = pthread_mutex_lock(robust);
	printf("owner died: %s, then %s\n", strerror(error), strerror(pthread_mutex_consistent(robust)));
	if (!fork()) {
		clock_gettime(CLOCK_REALTIME, &short_time);
		short_time.tv_sec++;
		printf("child: %s\n", strerror(pthread_mutex_timedlock(robust, &short_time)));
		pthread_mutex_unlock(robust);
		_exit(0);
	}
	wait(NULL);
	pthread_mutex_unlock(robust);
	printf("rseq area %u bytes, cpu %d\n", __rseq_size, sched_getcpu());
	for (int i = 0; i < 3; i++)
		printf("membarrier %d: %ld\n", i, syscall(SYS_membarrier, i ? 1 << (2 * i) : 0, 0, 0));
}

static void queues(void)
{
	struct mq_attr attributes = { .mq_maxmsg = 4, .mq_msgsize = 64 };
	struct { long type; char text[32]; } message;
	struct sembuf down = { 0, -1, SEM_UNDO }, up = { 0, 1, 0 };
	char text[64];
	unsigned priority;
	mqd_t queue = mq_open("/q", O_RDWR | O_CREAT, 0600, &attributes);
	int messages = msgget(IPC_PRIVATE, 0600), semaphores = semget(IPC_PRIVATE, 1, 0600), segment = shmget(IPC_PRIVATE, 8192, 0600);
	char *shared = shmat(segment, NULL, 0);

	CHECK(queue >= 0 && messages >= 0 && semaphores >= 0 && shared != (void *)-1);
	for (int child = 0; child < 3; child++) {
		if (!fork()) {
			for (int i = 0; i < 6; i++) {
				snprintf(text, sizeof(text), "%d.%d", child, i);
				CHECK(!mq_send(queue, text, strlen(text) + 1, i % 3));
				message.type = child + 1;
				strcpy(message.text, text);
				CHECK(!msgsnd(messages, &message, sizeof(message.text), 0));
				CHECK(!semop(semaphores, &up, 1));
				__atomic_fetch_add(shared, 1, __ATOMIC_SEQ_CST);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < 18; i++) {
		CHECK(mq_receive(queue, text, sizeof(text), &priority) > 0);
		CHECK(msgrcv(messages, &message, sizeof(message.text), i % 4 ? 0 : -3, 0) > 0);
		CHECK(!semop(semaphores, &down, 1));
		printf("%s/%u %s; ", text, priority, message.text);
	}
	while (wait(NULL) > 0)
		;
	printf("shared %d\n", *shared);
	show("/proc/sysvipc/shm");
}

static const struct part parts[] = {
	{ "mapping", mapping }, { "userfault", userfault }, { "futexes", futexes }, { "queues", queues }, { 0 },
};

int main(int argc, char **argv) { return run_parts(parts, argc, argv); }
