/* Shows slurmd and slurmstepd a host of control groups of version 2 alone: /proc/self/cgroup without the lines of
 * version 1. Slurm's cgroup/v2 refuses a host that has both, though its groups are in the one hierarchy alone.
 * Put before them by `gandiva mini up --cgroups v2` (LD_PRELOAD); jobs do not have it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHOWN "/proc/self/cgroup"

/* What is left of the file: an open descriptor at its beginning, or -1. */
static int only_v2(int flags)
{
	char text[4096];
	int from = openat(AT_FDCWD, SHOWN, flags), to = memfd_create("cgroup", MFD_CLOEXEC);
	ssize_t size = from < 0 ? -1 : read(from, text, sizeof text - 1);

	if (from >= 0)
		close(from);
	text[size < 0 ? 0 : size] = 0;
	/* The line of version 2 has the number 0 and is the last. */
	const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
	if (to >= 0 && line != NULL) {
		line += *line == '\n';
		if (write(to, line, strlen(line)) >= 0 && lseek(to, 0, SEEK_SET) == 0)
			return to;
	}
	if (to >= 0)
		close(to);
	return -1;
}

int open(const char *path, int flags, ...)
{
	va_list rest;
	va_start(rest, flags);
	mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
	va_end(rest);
	return strcmp(path, SHOWN) == 0 ? only_v2(flags) : openat(AT_FDCWD, path, flags, mode);
}
