/*
 * image.c - the restore side of process images (ADR 0054), in the process that was to become the batch task.
 *
 * As root it begins a child that is process 1 of new pid and mount namespaces: there gandivad has the image
 * restored, with the pids it had. Then, as the user, this process stands for the restored root before Slurm:
 * signals that reach it are handed on, and it ends with the root's status. It is never restored twice: when
 * gandivad says that nothing was restored, process 1 is ended first, and all below it with it.
 */
#define _GNU_SOURCE
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

/* -1: there is no process 1. */
static pid_t first = -1;
/* To process 1: the restored root's pid there; from it: how that ended. */
static int order[2] = {-1, -1}, end[2] = {-1, -1};

/*
 * Be called by another name than slurmstepd's, which is in the memory that this process has of it: a job's
 * slurmstepd is looked for by its title (proc_pid_stat(5): arg_start and arg_end are the 48th and 49th).
 */
static void rename_self(void)
{
	static const char name[] = "gandiva-image";
	char text[2048];
	unsigned long from = 0, to = 0;
	FILE *file = fopen("/proc/self/stat", "re");
	char *rest = NULL, *word;
	int field = 3;

	prctl(PR_SET_NAME, name);
	if (file == NULL)
		return;
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	word = strrchr(text, ')');
	if (word == NULL)
		return;
	for (word = strtok_r(word + 1, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest), field++) {
		if (field == 48)
			from = strtoul(word, NULL, 10);
		if (field == 49)
			to = strtoul(word, NULL, 10);
	}
	if (from == 0 || to < from + sizeof(name))
		return;
	memset((void *)from, 0, to - from);
	memcpy((void *)from, name, sizeof(name));
}

/* In process 1: wait for the root's pid, reap whatever ends, and tell how the root did. Never returns. */
static void be_first(void)
{
	sigset_t all;
	pid_t root = 0, gone;
	int status = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	rename_self();
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	/* Nothing of slurmstepd's stays open here. */
	if (dup2(order[0], 0) != 0 || dup2(end[1], 1) != 1 || syscall(SYS_close_range, 2, ~0U, 0) < 0)
		_exit(1);
	/* Closed without an answer: nothing was restored. The kernel ends with this process all of its namespace. */
	if (read(0, &root, sizeof(root)) != (ssize_t)sizeof(root))
		_exit(1);
	do {
		gone = waitpid(-1, &status, 0);
	} while (gone != root && (gone > 0 || errno == EINTR));
	if (gone != root || write(1, &status, sizeof(status)) != (ssize_t)sizeof(status))
		_exit(1);
	_exit(0);
}

bool gandiva_image_begin(void)
{
	if (pipe2(order, O_CLOEXEC) < 0)
		return false;
	if (pipe2(end, O_CLOEXEC) < 0) {
		close(order[0]);
		close(order[1]);
		return false;
	}
	/* Like fork(), with namespaces: the C library is told nothing, and process 1 asks nothing of it. */
	first = (pid_t)syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, 0, 0, 0, 0);
	if (first == 0)
		be_first();
	close(order[0]);
	close(end[1]);
	if (first < 0) {
		close(order[1]);
		close(end[0]);
	}
	return first > 0;
}

void gandiva_image_end(void)
{
	if (first <= 0)
		return;
	close(order[1]);
	close(end[0]);
	while (waitpid(first, NULL, 0) < 0 && errno == EINTR)
		;
	first = -1;
}

/* Hand on what Slurm, or the job's user, sends to this process, until process 1 has ended. */
static void hand_on(int root)
{
	sigset_t all;
	struct timespec pause = {.tv_sec = 1};

	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	while (waitpid(first, NULL, WNOHANG) == 0) {
		siginfo_t from;
		int number = sigtimedwait(&all, &from, &pause);

		if (number > 0 && number != SIGCHLD)
			syscall(SYS_pidfd_send_signal, root, number, NULL, 0);
	}
	sigprocmask(SIG_UNBLOCK, &all, NULL);
}

/* End as a program with this status of waitpid() did. */
static void end_as(int status)
{
	struct rlimit none = {0, 0};

	if (WIFSIGNALED(status)) {
		sigset_t one;

		setrlimit(RLIMIT_CORE, &none);	/* the root's own core is there already */
		sigemptyset(&one);
		sigaddset(&one, WTERMSIG(status));
		signal(WTERMSIG(status), SIG_DFL);
		sigprocmask(SIG_UNBLOCK, &one, NULL);
		kill(getpid(), WTERMSIG(status));
	}
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

void gandiva_image_be(const char *text)
{
	int pid = 0, inner = 0, status = 1 << 8, root;
	pid_t told;

	if (first <= 0 || sscanf(text, "%d:%d", &pid, &inner) != 2 || pid <= 1 || inner <= 1)
		return;
	rename_self();
	root = (int)syscall(SYS_pidfd_open, pid, 0);
	told = inner;
	if (root < 0 || write(order[1], &told, sizeof(told)) != (ssize_t)sizeof(told))
		return;
	hand_on(root);
	if (read(end[0], &status, sizeof(status)) != (ssize_t)sizeof(status))
		status = SIGKILL;	/* process 1 was killed, and all below it */
	end_as(status);
}
