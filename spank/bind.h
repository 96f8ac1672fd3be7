/* A talk with gandivad over a unix socket: lines out, lines in, asked again until a deadline. */
#ifndef GANDIVA_BIND_H
#define GANDIVA_BIND_H

#include <stddef.h>
#include <stdint.h>

/* How long a job that Gandiva did not plan waits for it, and one that it did with unbound=fail. */
#define GANDIVA_BIND_BOUND_MS 500

/* How an answer begins that has a task wait for as long as gandivad says so: its image has a bound there. */
#define GANDIVA_RESTORING "LATER restoring:"

/* From the hook of root to that of the user: the same process, the same connection. */
struct gandiva_talk {
	int fd;			/* -1: there is no connection */
	int64_t deadline_ms;	/* no question begins after it; time in which this process is stopped does not count */
	int64_t later_ms;	/* not 0: an answer GANDIVA_RESTORING puts the deadline off until this long behind it */
};

/* What follows has so much time. */
void gandiva_talk_bound(struct gandiva_talk *talk, int64_t bound_ms);

/*
 * Send `line` (it ends in '\n') on the open connection, else on a new one to `path`, and read one line into
 * `reply` without its '\n'. What fails is tried again, and so is the answer "LATER why", until the deadline;
 * with no `path`, until the open connection breaks off.
 * Returns NULL, the connection left open, or why it did not work, in words.
 */
const char *gandiva_talk_ask(struct gandiva_talk *talk, const char *path, const char *line, char *reply, size_t size);

/* Close the connection, if there is one. */
void gandiva_talk_end(struct gandiva_talk *talk);

#endif
