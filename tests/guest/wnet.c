/* Sockets: UNIX with descriptors and credentials, TCP with many clients, UDP, IPv6, multicast of epoll wake-ups. */
#include "parts.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static void local(void)
{
	int pair[2], one = 1, fd;
	char control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))] = { 0 }, text[32];
	struct iovec piece = { text, sizeof(text) };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int)) };

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) && !setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)));
	if (!fork()) {
		struct cmsghdr *c = CMSG_FIRSTHDR(&message);
		fd = open("/etc/passwd", O_RDONLY);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
		piece.iov_len = sprintf(text, "here it is");
		CHECK(sendmsg(pair[0], &message, 0) > 0);
		_exit(0);
	}
	message.msg_controllen = sizeof(control);
	long n = recvmsg(pair[1], &message, 0);
	printf("%.*s with", (int)n, text);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_type == SCM_RIGHTS) {
			memcpy(&fd, CMSG_DATA(c), sizeof(fd));
			printf(" a file of %ld bytes", (long)lseek(fd, 0, SEEK_END));
		} else {
			struct ucred who;
			memcpy(&who, CMSG_DATA(c), sizeof(who));
			printf(" user %d, a child %d", who.uid, who.pid > getpid());
		}
	}
	printf("\n");
	wait(NULL);
}

static struct sockaddr_storage address;
static socklen_t address_length;

static void *client(void *argument)
{
	char text[64];
	long number = (long)argument;
	int fd = socket(address.ss_family, SOCK_STREAM, 0);

	CHECK(fd >= 0 && !connect(fd, (void *)&address, address_length));
	for (int i = 0; i < 5; i++) {
		CHECK(dprintf(fd, "client %ld says %d\n", number, i) > 0);
		CHECK(read(fd, text, sizeof(text)) > 0);
		usleep(number * 300);
	}
	close(fd);
	return NULL;
}

static void serve(int family)
{
	struct pollfd fds[10] = { 0 };
	pthread_t threads[6];
	char text[256];
	int used = 1, left = 6, one = 1, pending;

	memset(&address, 0, sizeof(address));
	address.ss_family = family;
	address_length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	if (family == AF_INET)
		((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
	fds[0].fd = socket(family, SOCK_STREAM, 0);
	fds[0].events = POLLIN;
	CHECK(!setsockopt(fds[0].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!bind(fds[0].fd, (void *)&address, address_length) && !listen(fds[0].fd, 5));
	CHECK(!getsockname(fds[0].fd, (void *)&address, &address_length));
	printf("port %d\n", ntohs(((struct sockaddr_in *)&address)->sin_port));
	for (long i = 0; i < 6; i++)
		pthread_create(&threads[i], NULL, client, (void *)i);
	while (left) {
		CHECK(poll(fds, used, 5000) > 0);
		for (int i = 0; i < used; i++) {
			if (!(fds[i].revents & (POLLIN | POLLHUP)))
				continue;
			if (!i) {
				struct sockaddr_storage from;
				socklen_t length = sizeof(from);
				fds[used] = (struct pollfd){ accept(fds[0].fd, (void *)&from, &length), POLLIN, 0 };
				CHECK(fds[used].fd >= 0);
				printf("port %d, ", ntohs(((struct sockaddr_in *)&from)->sin_port));
				used++;
				continue;
			}
			CHECK(!ioctl(fds[i].fd, FIONREAD, &pending));
			long n = read(fds[i].fd, text, sizeof(text));
			if (n <= 0) {
				left--;
				close(fds[i].fd);
				fds[i].fd = -1;
				continue;
			}
			printf("%d: %.*s", pending, (int)n, text);
			CHECK(write(fds[i].fd, text, 1) == 1);
		}
	}
	for (int i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
}

static void tcp(void) { serve(AF_INET); }
static void tcp6(void) { serve(AF_INET6); }

static void udp(void)
{
	struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons(5353) };
	struct timeval limit = { 0, 20000 };
	char text[2000];
	int in = socket(AF_INET6, SOCK_DGRAM, 0), out = socket(AF_INET6, SOCK_DGRAM, 0);

	CHECK(!bind(in, (void *)&to, sizeof(to)) && !setsockopt(in, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)));
	for (int i = 0; i < 5; i++)
		CHECK(sendto(out, text, 100 + i * 300, 0, (void *)&to, sizeof(to)) > 0);
	long n;
	while ((n = recv(in, text, sizeof(text), 0)) > 0)
		printf("%ld bytes; ", n);
	printf("%s\n", strerror(errno));
	to.sin6_port = htons(9);
	CHECK(!connect(out, (void *)&to, sizeof(to)) && send(out, "x", 1, 0) == 1);
	CHECK(recv(out, text, 1, 0) == -1);
	printf("refused: %s\n", strerror(errno));
	struct if_nameindex *names = if_nameindex();
	for (struct if_nameindex *i = names; i && i->if_index; i++)
		printf("%u %s\n", i->if_index, i->if_name);
	show("/proc/net/snmp");
	show("/proc/net/if_inet6");
}

static const struct part parts[] = {
	{ "local", local }, { "tcp", tcp }, { "tcp6", tcp6 }, { "udp", udp }, { 0 },
};

int main(int argc, char **argv) { return run_parts(parts, argc, argv); }
