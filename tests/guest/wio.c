/* Files and descriptors: fifo, epoll, timerfd, eventfd, signalfd, splice and its kin, memfd, O_DIRECT, holes, inotify. */
#include "parts.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>

static void fifo(void)
{
	char text[64];

	CHECK(!mkfifo("/tmp/fifo", 0600));
	for (int i = 0; i < 3; i++) {
		if (!fork()) {
			int fd = open("/tmp/fifo", O_WRONLY);
			usleep(1000 * (3 - i));
			CHECK(dprintf(fd, "writer %d\n", i) > 0);
			_exit(0);
		}
	}
	int fd = open("/tmp/fifo", O_RDONLY), n;
	while ((n = read(fd, text, sizeof(text))) > 0)
		printf("%.*s", n, text);
	while (wait(NULL) > 0)
		;
}

static void *tick(void *argument)
{
	uint64_t one = 1;

	for (int i = 0; i < 5; i++) {
		usleep(700);
		CHECK(write((int)(long)argument, &one, 8) == 8);
	}
	return NULL;
}

static void events(void)
{
	struct itimerspec every = { { 0, 1000000 }, { 0, 500000 } };
	struct epoll_event event, got[4];
	sigset_t usr;
	pthread_t thread;
	uint64_t count;
	int poller = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), woken = 0;
	int counter = eventfd(0, EFD_NONBLOCK), signals;

	sigemptyset(&usr);
	sigaddset(&usr, SIGUSR1);
	CHECK(!sigprocmask(SIG_BLOCK, &usr, NULL));
	signals = signalfd(-1, &usr, SFD_NONBLOCK);
	CHECK(poller >= 0 && timer >= 0 && counter >= 0 && signals >= 0);
	for (int i = 0; i < 3; i++) {
		int fds[] = { timer, counter, signals };
		event.events = EPOLLIN | (i == 1 ? EPOLLET : 0);
		event.data.u32 = i;
		CHECK(!epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &event));
	}
	CHECK(!timerfd_settime(timer, 0, &every, NULL));
	pthread_create(&thread, NULL, tick, (void *)(long)counter);
	while (woken < 14) {
		int n = epoll_wait(poller, got, 4, 10);
		CHECK(n > 0);
		for (int i = 0; i < n; i++, woken++) {
			if (got[i].data.u32 == 2) {
				struct signalfd_siginfo info;
				CHECK(read(signals, &info, sizeof(info)) == sizeof(info));
				printf("signal %u from %d\n", info.ssi_signo, info.ssi_pid == (unsigned)getpid());
				continue;
			}
			CHECK(read(got[i].data.u32 ? counter : timer, &count, 8) == 8);
			printf("%s %llu\n", got[i].data.u32 ? "counter" : "timer", (unsigned long long)count);
			if (woken == 5)
				kill(getpid(), SIGUSR1);
		}
	}
	pthread_join(thread, NULL);
}

static void moving(void)
{
	char text[70000], back[70000];
	int from = open("/tmp/from", O_RDWR | O_CREAT, 0600), to = open("/tmp/to", O_RDWR | O_CREAT, 0600), pipes[2][2];
	loff_t at = 100;
	off_t offset = 5;

	for (unsigned i = 0; i < sizeof(text); i++)
		text[i] = i * 7 + i / 256;
	CHECK(write(from, text, sizeof(text)) == sizeof(text));
	CHECK(!pipe(pipes[0]) && !pipe(pipes[1]));
	CHECK(splice(from, &at, pipes[0][1], NULL, 30000, 0) > 0);
	CHECK(tee(pipes[0][0], pipes[1][1], 20000, 0) > 0);
	long moved = splice(pipes[0][0], NULL, to, NULL, 30000, 0);
	printf("spliced %ld, copied beside %ld\n", moved, (long)read(pipes[1][0], back, sizeof(back)));
	CHECK(!memcmp(back, text + 100, 20000));
	printf("sendfile %ld\n", (long)sendfile(to, from, &offset, 40000));
	loff_t a = 1000, b = 300000;
	printf("copy_file_range %ld\n", (long)copy_file_range(from, &a, to, &b, 12345, 0));
	struct iovec pieces[3] = { { text, 10 }, { text + 50, 20 }, { text + 500, 4096 } };
	printf("vmsplice %ld\n", (long)vmsplice(pipes[0][1], pieces, 3, 0));
	printf("preadv %ld pwritev %ld\n", (long)preadv(from, pieces, 3, 60000), (long)pwritev(to, pieces, 3, 77));
	printf("size %ld\n", (long)lseek(to, 0, SEEK_END));
}

static void holes(void)
{
	struct stat st;
	int fd = open("/tmp/holes", O_RDWR | O_CREAT | O_TRUNC, 0600);

	CHECK(!ftruncate(fd, 10 << 20));
	CHECK(pwrite(fd, "x", 1, 5 << 20) == 1);
	CHECK(!fallocate(fd, 0, 1 << 20, 100000));
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (1 << 20) + 8192, 4096));
	CHECK(!fallocate(fd, FALLOC_FL_KEEP_SIZE, 11 << 20, 4096));
	CHECK(!fstat(fd, &st));
	printf("size %ld blocks %ld inode %ld\n", (long)st.st_size, (long)st.st_blocks, (long)st.st_ino);
	for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
		off_t end = lseek(fd, at, SEEK_HOLE);
		printf("data %ld to %ld\n", (long)at, (long)end);
		at = end;
	}
	CHECK(!flock(fd, LOCK_EX) && !fsetxattr(fd, "user.kind", "sparse", 6, 0) && !fsync(fd));
	int direct = open("/bin/battery", O_RDONLY | O_DIRECT);
	void *page = aligned_alloc(4096, 65536);
	CHECK(direct >= 0);
	printf("direct %ld\n", (long)read(direct, page, 65536));
	int memory = memfd_create("m", MFD_ALLOW_SEALING);
	CHECK(memory >= 0 && !ftruncate(memory, 8192) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	CHECK(ftruncate(memory, 1) == -1);
	printf("sealed: %s\n", strerror(errno));
}

static void watching(void)
{
	char text[4096] __attribute__((aligned(8)));
	int watch = inotify_init1(IN_NONBLOCK), n;

	CHECK(!mkdir("/tmp/watched", 0700));
	CHECK(inotify_add_watch(watch, "/tmp/watched", IN_ALL_EVENTS) >= 0);
	if (!fork()) {
		int fd = open("/tmp/watched/a", O_WRONLY | O_CREAT, 0600);
		CHECK(write(fd, "x", 1) == 1 && !close(fd) && !rename("/tmp/watched/a", "/tmp/watched/b"));
		CHECK(!chmod("/tmp/watched/b", 0644) && !unlink("/tmp/watched/b"));
		_exit(0);
	}
	wait(NULL);
	while ((n = read(watch, text, sizeof(text))) > 0) {
		for (char *at = text; at < text + n;) {
			struct inotify_event *e = (void *)at;
			printf("%x %u %s\n", e->mask, e->cookie, e->len ? e->name : "");
			at += sizeof(*e) + e->len;
		}
	}
}

static const struct part parts[] = {
	{ "fifo", fifo }, { "events", events }, { "moving", moving }, { "holes", holes }, { "watching", watching }, { 0 },
};

int main(int argc, char **argv) { return run_parts(parts, argc, argv); }
