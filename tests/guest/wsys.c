/* What the kernel tells about itself, name spaces, control groups, file systems, many files. */
#include "parts.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <time.h>

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (long)strlen(text) && !close(fd));
}

static void telling(void)
{
	static const char *const files[] = {
		"stat",	       "meminfo",	  "uptime",	  "loadavg",	 "cpuinfo",	   "vmstat",	 "interrupts",
		"softirqs",    "self/stat",	  "self/status",  "self/io",	 "self/sched",	   "self/limits", "self/mountinfo",
		"self/cgroup", "self/smaps",	  "self/wchan",	  "buddyinfo",	 "zoneinfo",	   "slabinfo",	 "diskstats",
		"net/dev",     "net/tcp",	  "net/unix",	  "net/sockstat", "sys/kernel/random/boot_id",
		"sys/kernel/random/uuid",	  "sys/fs/file-nr", "sys/fs/inode-nr", "timer_list", "self/auxv", "self/stack",
		"version",     "self/timerslack_ns", "self/schedstat", "schedstat", "pagetypeinfo", "key-users", "locks",
	};
	char path[64];

	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "/proc/%s", files[i]);
		if (access(path, R_OK))
			printf("%s: %s\n", path, strerror(errno));
		else
			show(path);
	}
	struct utsname name;
	struct sysinfo info;
	struct timespec cpu;
	CHECK(!uname(&name) && !sysinfo(&info) && !clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu));
	printf("%s %s, %ld free, %d processes, up %ld, cpu %ld ns\n", name.release, name.version, info.freeram, info.procs,
	       info.uptime, cpu.tv_nsec);
	for (int i = 0; i < 8; i++) {
		struct timespec now, unit;
		if (!clock_gettime(i, &now) && !clock_getres(i, &unit))
			printf("clock %d: %ld.%09ld by %ld\n", i, (long)now.tv_sec, now.tv_nsec, unit.tv_nsec);
	}
	unsigned char *random = (void *)getauxval(AT_RANDOM);
	printf("AT_RANDOM %02x%02x, hwcap %lx, pagemap ", random[0], random[1], getauxval(AT_HWCAP));
	uint64_t entry;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	printf("%ld %llx\n", (long)pread(fd, &entry, 8, (long)random / 4096 * 8), (unsigned long long)entry);
}

static void spaces(void)
{
	char text[64];
	struct statfs fs;

	CHECK(!unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP | CLONE_NEWTIME));
	CHECK(!sethostname("inside", 6) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
	CHECK(!mkdir("/tmp/m", 0700) && !mount("t", "/tmp/m", "tmpfs", 0, "size=1m"));
	if (!fork()) {
		printf("pid %d parent %d\n", getpid(), getppid());
		CHECK(!mount("p", "/proc", "proc", 0, NULL));
		DIR *folder = opendir("/proc");
		for (struct dirent *e; (e = readdir(folder));)
			if (e->d_name[0] >= '0' && e->d_name[0] <= '9')
				printf("process %s\n", e->d_name);
		exit(0);
	}
	wait(NULL);
	CHECK(!statfs("/tmp/m", &fs));
	printf("%ld blocks\n", (long)fs.f_blocks);
	for (int i = 0; i < 5; i++) {
		static const char *const names[] = { "mnt", "uts", "pid", "net", "user" };
		char path[64];
		snprintf(path, sizeof(path), "/proc/self/ns/%s", names[i]);
		long n = readlink(path, text, sizeof(text));
		printf("%.*s\n", (int)n, text);
	}
	if (!fork()) {
		CHECK(!setuid(1000) && !unshare(CLONE_NEWUSER));
		put("/proc/self/setgroups", "deny");
		put("/proc/self/uid_map", "0 1000 1");
		printf("user %d in its own name space\n", getuid());
		exit(0);
	}
	wait(NULL);
}

static void groups(void)
{
	int status;

	CHECK(!mkdir("/tmp/cg", 0700) && !mount("c", "/tmp/cg", "cgroup2", 0, NULL));
	show("/tmp/cg/cgroup.controllers");
	put("/tmp/cg/cgroup.subtree_control", "+memory +pids");
	CHECK(!mkdir("/tmp/cg/a", 0700));
	put("/tmp/cg/a/memory.max", "8M");
	put("/tmp/cg/a/pids.max", "3");
	pid_t pid = fork();
	if (!pid) {
		put("/tmp/cg/a/cgroup.procs", "0");
		int made = 0;
		for (int i = 0; i < 4; i++) {
			pid_t child = fork();
			if (!child)
				exit(0);
			made += child > 0;
			if (child > 0 && i == 1)
				usleep(1000);
		}
		printf("%d of 4 started\n", made);
		fflush(stdout);
		for (;;) {
			char *more = malloc(1 << 20);
			CHECK(more);
			memset(more, 1, 1 << 20);
		}
	}
	waitpid(pid, &status, 0);
	printf("ended by %d\n", WTERMSIG(status));
	show("/tmp/cg/a/memory.events");
	show("/tmp/cg/a/pids.events");
	CHECK(!rmdir("/tmp/cg/a"));
}

static void files(void)
{
	char path[64];
	unsigned long sum = 0;
	long count = 0;

	CHECK(!mkdir("/tmp/many", 0700));
	for (int i = 0; i < 10000; i++) {
		if (i % 100 == 0) {
			snprintf(path, sizeof(path), "/tmp/many/%d", i / 100);
			CHECK(!mkdir(path, 0700));
		}
		snprintf(path, sizeof(path), "/tmp/many/%d/%d", i / 100, i);
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
		CHECK(fd >= 0 && write(fd, path, strlen(path)) > 0 && !close(fd));
	}
	for (int i = 0; i < 100; i++) {
		snprintf(path, sizeof(path), "/tmp/many/%d", i);
		DIR *folder = opendir(path);
		CHECK(folder);
		for (struct dirent *e; (e = readdir(folder)); count++)
			sum = sum * 31 + e->d_ino + e->d_name[0];
		closedir(folder);
	}
	printf("%ld entries, sum %lx\n", count, sum);
}

static const struct part parts[] = {
	{ "telling", telling }, { "spaces", spaces }, { "groups", groups }, { "files", files }, { 0 },
};

int main(int argc, char **argv) { return run_parts(parts, argc, argv); }
