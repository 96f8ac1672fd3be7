/*
 * bind.c - the talk with gandivad: connect, one line out, one line in, again and again until a deadline.
 *
 * gandivad may stop this process by SIGSTOP before the reply is read (a job whose GPUs are not yet
 * granted waits so). While it is stopped the clock runs on: that time is given back to the deadline. When
 * it goes on, the reply lies in the socket, or gandivad was started anew and is asked again.
 */
#include "bind.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Between two tries; and how often a process that waits looks at the clock. */
#define PAUSE_MS 100
/* A wait that took so much longer than it should was a stop. */
#define STOP_MS 300

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait until fd is ready (-1: for PAUSE_MS); false when the deadline has passed first. */
static bool wait_ready(struct gandiva_talk *talk, int fd, short events)
{
	struct pollfd ready = {.fd = fd, .events = events};

	for (;;) {
		int64_t began_ms = now_ms(), left_ms = talk->deadline_ms - began_ms;
		int bound_ms = left_ms > PAUSE_MS ? PAUSE_MS : left_ms > 0 ? (int)left_ms : 0;
		int count = poll(&ready, 1, bound_ms);
		int64_t late_ms = now_ms() - began_ms - bound_ms;

		if (late_ms > STOP_MS)
			talk->deadline_ms += late_ms;
		if (count > 0)
			return true;
		if (count < 0 && errno != EINTR)
			return false;
		if (talk->deadline_ms <= now_ms())
			return false;
		if (fd < 0)
			return true;
	}
}

static const char *send_line(struct gandiva_talk *talk, const char *line)
{
	size_t left = strlen(line);

	while (left > 0) {
		ssize_t sent = send(talk->fd, line, left, MSG_NOSIGNAL);

		if (sent < 0 && errno != EAGAIN && errno != EINTR)
			return strerror(errno);
		if (sent < 0 && !wait_ready(talk, talk->fd, POLLOUT))
			return "it does not read";
		if (sent > 0) {
			line += sent;
			left -= (size_t)sent;
		}
	}
	return NULL;
}

static const char *read_line(struct gandiva_talk *talk, char *reply, size_t size)
{
	size_t used = 0;

	while (used + 1 < size) {
		bool is_last_look = !wait_ready(talk, talk->fd, POLLIN);
		ssize_t got = recv(talk->fd, reply + used, size - 1 - used, MSG_DONTWAIT);
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

static const char *open_talk(struct gandiva_talk *talk, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(address.sun_path))
		return "the socket's path is too long";
	memcpy(address.sun_path, path, strlen(path) + 1);
	talk->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* On a unix socket connect() succeeds or fails at once: there is no EINPROGRESS to wait for. */
	if (talk->fd < 0 || connect(talk->fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return strerror(errno);
	return NULL;
}

void gandiva_talk_bound(struct gandiva_talk *talk, int64_t bound_ms)
{
	talk->deadline_ms = now_ms() + bound_ms;
}

const char *gandiva_talk_ask(struct gandiva_talk *talk, const char *path, const char *line, char *reply, size_t size)
{
	const char *why;

	do {
		why = talk->fd < 0 ? open_talk(talk, path) : NULL;
		if (why == NULL)
			why = send_line(talk, line);
		if (why == NULL)
			why = read_line(talk, reply, size);
		if (why == NULL && strncmp(reply, "LATER ", 6) != 0)
			return NULL;
		if (why == NULL && talk->later_ms > 0 &&
		    strncmp(reply, GANDIVA_RESTORING, sizeof(GANDIVA_RESTORING) - 1) == 0)
			talk->deadline_ms = now_ms() + talk->later_ms;
		if (why != NULL)
			gandiva_talk_end(talk);
		if (why != NULL && path == NULL)
			return why;
	} while (wait_ready(talk, -1, 0));
	return why != NULL ? why : reply + 6;
}

void gandiva_talk_end(struct gandiva_talk *talk)
{
	if (talk->fd >= 0)
		close(talk->fd);
	talk->fd = -1;
}
