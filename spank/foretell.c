/*
 * foretell.c - sbatch --test-only: what `gandiva when` foretells of the job, before it is submitted.
 *
 * Asked here and never in job_submit.lua, for slurmctld must wait for nobody. As the user, by a process of its
 * own that has a second: where there is no answer by then one sentence says so, where there is an error nothing
 * is said, and Slurm's own --test-only goes on. A submission that is no --test-only starts no process.
 */
#include "defaults.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "options.h"

#define BOUND_MS 1000
#define MOST_WORDS 128
#define CMDLINE_SIZE 65536
#define ANSWER_SIZE 2048
#define LATE "no forecast within a second; `gandiva when --new gpus=N` takes the time it needs"

/* sbatch's own words; false where they are too many to be worth a question. */
static bool read_words(char *text, size_t size, char **words, int *count)
{
	int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t got = 0;

	if (file < 0)
		return false;
	while (used < size - 1 && (got = read(file, text + used, size - 1 - used)) > 0)
		used += (size_t)got;
	(void)close(file);
	if (got != 0)
		return false;
	text[used] = '\0';
	*count = 0;
	for (size_t at = 0; at < used; at += strlen(text + at) + 1) {
		if (*count == MOST_WORDS)
			return false;
		words[(*count)++] = text + at;
	}
	return true;
}

static long now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

static void become_gandiva(int output, char **words, int count)
{
	char *command[MOST_WORDS + 6] = {"gandiva", "when", "--test-only"};
	int used = 3, nothing = open("/dev/null", O_RDWR);

	if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDERR_FILENO) < 0 ||
	    dup2(output, STDOUT_FILENO) < 0)
		_exit(1);
	command[used++] = optind < count ? words[optind] : "";
	command[used++] = "--";
	for (int i = 1; i < optind && i < count; i++)
		command[used++] = words[i];
	command[used] = NULL;
	(void)execvp(command[0], command);
	_exit(1);
}

/* What the process says until it ends; "" where it has not ended well, LATE where it has not in time. */
static void read_answer(int input, pid_t child, char *answer, size_t size)
{
	long end_ms = now_ms() + BOUND_MS, left_ms = BOUND_MS;
	size_t used = 0;
	int status = 1;
	pid_t ended = 0;
	bool has_ended = false;

	while (!has_ended && left_ms > 0) {
		struct pollfd ready = {.fd = input, .events = POLLIN};

		if (poll(&ready, 1, (int)left_ms) > 0) {
			ssize_t got = read(input, answer + used, size - 1 - used);

			used += got > 0 ? (size_t)got : 0;
			has_ended = got <= 0 || used == size - 1;
		}
		left_ms = end_ms - now_ms();
	}
	/* One that has closed its output may go on all the same. */
	while (has_ended && used < size - 1 && ended == 0 && now_ms() < end_ms) {
		ended = waitpid(child, &status, WNOHANG);
		if (ended == 0)
			(void)poll(NULL, 0, 5);
	}
	if (ended == 0) {
		(void)kill(child, SIGKILL);
		(void)waitpid(child, &status, 0);
	}
	answer[status == 0 ? used : 0] = '\0';
	if (ended == 0 && now_ms() >= end_ms)
		(void)snprintf(answer, size, "%s", LATE);
}

static void say(char *answer)
{
	char *rest = NULL;

	for (char *line = strtok_r(answer, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
		for (char *at = line; *at != '\0'; at++) {
			if (*at < ' ' || *at > '~')
				*at = '?';
		}
		slurm_info("gandiva: %s", line);
	}
}

void gandiva_foretell(void)
{
	static char text[CMDLINE_SIZE], answer[ANSWER_SIZE];
	char *words[MOST_WORDS], name[GANDIVA_VARIABLE_SIZE];
	int count = 0, ends[2];
	bool is_test = false;
	pid_t child;

	gandiva_option_variable(OPT_GANDIVA, name, sizeof(name));
	if (getenv(name) == NULL || !read_words(text, sizeof(text), words, &count))
		return;
	for (int i = 1; i < optind && i < count; i++)
		is_test = is_test || strcmp(words[i], "--test-only") == 0;
	if (!is_test || pipe(ends) < 0)
		return;
	(void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	(void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	child = fork();
	if (child == 0)
		become_gandiva(ends[1], words, count);
	(void)close(ends[1]);
	if (child > 0) {
		read_answer(ends[0], child, answer, sizeof(answer));
		say(answer);
	}
	(void)close(ends[0]);
}
