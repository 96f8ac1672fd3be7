/*
 * bind.c - the exchange with gandivad: connect, one line out, one line in, 500 ms in all.
 *
 * gandivad may stop this process by SIGSTOP before the reply is read (a job whose GPUs are not yet
 * granted waits so). While it is stopped the clock runs on; when it goes on, the reply lies in the
 * socket. So a read that has run out of time looks once more before it gives up.
 */
#include "bind.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait until fd is ready; false when the deadline has passed first. */
static bool wait_ready(int fd, short events, int64_t deadline_ms)
{
	struct pollfd ready = {.fd = fd, .events = events};

	for (;;) {
		int64_t left_ms = deadline_ms - now_ms();
		int count = poll(&ready, 1, left_ms > 0 ? (int)left_ms : 0);

		if (count > 0)
			return true;
		if (count == 0 && left_ms <= 0)
			return false;
		if (count < 0 && errno != EINTR)
			return false;
	}
}

static const char *send_line(int fd, const char *line, int64_t deadline_ms)
{
	size_t left = strlen(line);

	while (left > 0) {
		ssize_t sent = send(fd, line, left, MSG_NOSIGNAL);

		if (sent < 0 && errno != EAGAIN && errno != EINTR)
			return strerror(errno);
		if (sent < 0 && !wait_ready(fd, POLLOUT, deadline_ms))
			return "it does not read";
		if (sent > 0) {
			line += sent;
			left -= (size_t)sent;
		}
	}
	return NULL;
}

static const char *read_line(int fd, char *reply, size_t size, int64_t deadline_ms)
{
	size_t used = 0;

	while (used + 1 < size) {
		bool is_last_look = !wait_ready(fd, POLLIN, deadline_ms);
		ssize_t got = recv(fd, reply + used, size - 1 - used, MSG_DONTWAIT);
		char *end;

		if (got == 0)
			return "it closed the connection";
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN && !is_last_look)
			continue;
		if (got < 0)
			return errno == EAGAIN ? "it does not answer" : strerror(errno);
		used += (size_t)got;
		reply[used] = '\0';
		end = strchr(reply, '\n');
		if (end != NULL) {
			*end = '\0';
			return NULL;
		}
	}
	return "its answer is too long";
}

const char *gandiva_bind(const char *path, const char *line, char *reply, size_t size)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int64_t deadline_ms = now_ms() + GANDIVA_BIND_BOUND_MS;
	const char *why = NULL;
	int fd = -1;

	if (strlen(path) >= sizeof(address.sun_path)) {
		why = "the socket's path is too long";
		goto done;
	}
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* On a unix socket connect() succeeds or fails at once: there is no EINPROGRESS to wait for. */
	if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		why = strerror(errno);
		goto done;
	}
	why = send_line(fd, line, deadline_ms);
	if (why == NULL)
		why = read_line(fd, reply, size, deadline_ms);
done:
	if (fd >= 0)
		close(fd);
	return why;
}
