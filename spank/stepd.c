/*
 * stepd.c - in slurmstepd, in each task just before it starts: ask gandivad for the GPUs and give the task
 * what it needs to be found and parked.
 *
 * Two hooks run in the process that becomes the task. In the first, still root, it connects to root's socket,
 * which no user can flood, and says whose task it is: what root says there counts. Which slots the task has is
 * known in the second only, when Slurm has made the task's environment (22.05 to 26.05): then it asks on the
 * same connection. Where that has broken off it asks on the socket of all, where its own uid counts.
 *
 * The environment seen here is the job's: its owner may have put anything into it. Nothing of it goes
 * to gandivad unchecked, and gandivad takes it as a hint only.
 */
#include "contexts.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bind.h"
#include "check.h"
#include "config.h"
#include "image.h"
#include "options.h"
#include "taskenv.h"

/* Slurm's numbers of steps that have a name (SLURM_BATCH_SCRIPT and so on; not in spank.h). */
#define STEP_INTERACTIVE 0xfffffffaU
#define STEP_BATCH 0xfffffffbU
#define STEP_EXTERN 0xfffffffcU

#define LINE_SIZE 1400
#define REPLY_SIZE 4096

static struct gandiva_talk talk = {.fd = -1};
/*
 * How long gandivad may be silent while it restores a process image. How long that takes is gandivad's to bound, by the
 * image's bytes: it answers GANDIVA_RESTORING meanwhile.
 */
#ifndef RESTORE_SILENT_MS
#define RESTORE_SILENT_MS (INT64_C(300) * 1000)
#endif

/* "PID:INNER" of the root of a process image that was restored in place of this task; "": none was. */
static char restored[SHORT_TEXT];
/* Set when the hook of root has waited in vain for as long as a task may. */
static bool has_waited;
/* Set when there is an image of the job's processes, and a process 1 to restore it below. */
static bool is_restoring;

/*
 * True when the task's job may be Gandiva's: by --gandiva (any other option implies it where the job
 * was submitted) or by its partition. gandivad has the last word: it answers NO to any other job.
 */
static bool is_gandiva_job(spank_t sp)
{
	char text[SHORT_TEXT + 1];

	if (gandiva_asked(sp, OPT_GANDIVA, text, sizeof(text))[0] != '\0')
		return true;
	return gandiva_config_is_our_partition(gandiva_job_variable(sp, "SLURM_JOB_PARTITION", text, sizeof(text)));
}

static void name_step(uint32_t step, char *name, size_t size)
{
	switch (step) {
	case STEP_BATCH:
		snprintf(name, size, "batch");
		break;
	case STEP_INTERACTIVE:
		snprintf(name, size, "interactive");
		break;
	default:
		snprintf(name, size, "%u", step);
	}
}

/*
 * The slots this task may use: its own in a step (slurmstepd sets SLURM_STEP_GPUS for each task),
 * "none" in a step without GPUs (then SLURM_GPUS_ON_NODE is missing), "-" for all of the job's.
 */
static void task_slots(spank_t sp, uint32_t step, char *slots, int size)
{
	char count[SHORT_TEXT];

	if (step != STEP_BATCH && gandiva_is_slot_list(gandiva_job_variable(sp, "SLURM_STEP_GPUS", slots, size)))
		return;
	if (step != STEP_BATCH && gandiva_job_variable(sp, "SLURM_GPUS_ON_NODE", count, sizeof(count))[0] == '\0')
		snprintf(slots, (size_t)size, "none");
	else
		snprintf(slots, (size_t)size, "-");
}

/* Write the BIND line; false when Slurm does not say what it needs. */
static bool write_question(spank_t sp, uint32_t step, char *line, size_t size)
{
	char step_name[SHORT_TEXT], restart[SHORT_TEXT], job_slots[SLOTS_SIZE], slots[SLOTS_SIZE];
	uint32_t job = 0;
	int task = 0;
	int length;

	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_ID, &task) != ESPANK_SUCCESS)
		return false;
	name_step(step, step_name, sizeof(step_name));
	/* S_SLURM_RESTART_COUNT says 0 for every job (seen on 22.05.8); the variable is right. */
	if (!gandiva_is_slot_list(gandiva_job_variable(sp, "SLURM_RESTART_COUNT", restart, 11)) ||
	    strchr(restart, ',') != NULL)
		snprintf(restart, sizeof(restart), "0");
	if (!gandiva_is_slot_list(gandiva_job_variable(sp, "SLURM_JOB_GPUS", job_slots, sizeof(job_slots))))
		snprintf(job_slots, sizeof(job_slots), "-");
	task_slots(sp, step, slots, sizeof(slots));
	/* On the socket of all an older gandivad may listen, which knows no other version. */
	length = snprintf(line, size, "BIND %d %u %s %s %d %s %s\n", talk.fd < 0 ? 1 : 2, job, restart, step_name, task,
			  job_slots, slots);
	return length > 0 && (size_t)length < size;
}

/* gandivad speaks of GPUs, a part of them, and of itself; it has no business with any other variable. */
static bool is_accepted_name(const char *name)
{
	if (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0 || strcmp(name, GANDIVA_MPS_VARIABLE) == 0)
		return true;
	return strncmp(name, "GANDIVA_", 8) == 0 && gandiva_is_name(name);
}

/* Set each NAME=VALUE of "OK NAME=VALUE NAME=VALUE". */
static void take_answer(spank_t sp, char *reply)
{
	char *rest = NULL;

	for (char *word = strtok_r(reply + 2, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
		char *equals = strchr(word, '=');

		if (equals == NULL)
			continue;
		*equals = '\0';
		if (strcmp(word, GANDIVA_RESTORED) == 0)
			snprintf(restored, sizeof(restored), "%s", equals + 1);
		else if (is_accepted_name(word))
			gandiva_set_variable(sp, word, equals + 1);
		else
			slurm_info("gandiva: the node daemon's answer names %s, which is not its to set", word);
	}
}

int gandiva_stepd_init(spank_t sp)
{
	(void)gandiva_options_register(sp);
	return 0;
}

/* True when the task's job is one that asks, and then where; the extern step asks for nothing. */
static bool is_to_ask(spank_t sp, uint32_t *step)
{
	return is_gandiva_job(sp) && spank_get_item(sp, S_JOB_STEPID, step) == ESPANK_SUCCESS && *step != STEP_EXTERN;
}

/*
 * True when Gandiva planned the task's job, as far as is known without gandivad: it was asked for, or the job
 * has slots in a partition of Gandiva's. Its task never starts unbound.
 */
static bool is_planned(spank_t sp)
{
	static const char *const names[] = {"SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"};
	char text[SLOTS_SIZE];

	if (gandiva_asked(sp, OPT_GANDIVA, text, SHORT_TEXT)[0] != '\0')
		return true;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (gandiva_job_variable(sp, names[i], text, sizeof(text))[0] != '\0')
			return true;
	}
	return false;
}

static int64_t bound_ms(bool may_wait)
{
	return may_wait && gandiva_config.wait_s > 0 ? gandiva_config.wait_s * INT64_C(1000) : GANDIVA_BIND_BOUND_MS;
}

int gandiva_stepd_task_init_privileged(spank_t sp)
{
	char path[SLOTS_SIZE], root[SLOTS_SIZE], line[SHORT_TEXT], reply[REPLY_SIZE];
	const char *node = getenv("SLURMD_NODENAME");
	bool may_wait = is_planned(sp);
	uint32_t step = 0;
	uid_t uid = 0;

	if (!is_to_ask(sp, &step) || node == NULL || !gandiva_config_socket(node, path, sizeof(path)) ||
	    !gandiva_config_root_socket(path, root, sizeof(root)) ||
	    spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS)
		return 0;
	/* A gandivad of an older release has no socket of root's. */
	if (access(root, F_OK) != 0 && access(path, F_OK) == 0)
		return 0;
	gandiva_talk_bound(&talk, bound_ms(may_wait));
	snprintf(line, sizeof(line), "TASK %u\n", (unsigned)uid);
	if (gandiva_talk_ask(&talk, root, line, reply, sizeof(reply)) != NULL)
		has_waited = may_wait;
	else if (strcmp(reply, GANDIVA_IMAGE_READY) == 0 && step == STEP_BATCH)
		is_restoring = gandiva_image_begin();
	else if (strcmp(reply, "READY") != 0)
		gandiva_talk_end(&talk);
	return 0;
}

/* Ask for the task's GPUs; NULL and an answer that is understood, or why there is none. */
static const char *bind_task(spank_t sp, uint32_t step, const char *path, char *reply, size_t size)
{
	char line[LINE_SIZE];
	const char *why = "Slurm does not say which task this is";

	if (talk.fd >= 0 && write_question(sp, step, line, sizeof(line)))
		why = gandiva_talk_ask(&talk, NULL, line, reply, size);
	/* There is no connection of root's, or it broke off. */
	if (talk.fd < 0 && write_question(sp, step, line, sizeof(line)))
		why = gandiva_talk_ask(&talk, path, line, reply, size);
	gandiva_talk_end(&talk);
	if (why == NULL && strncmp(reply, "NO ", 3) != 0 && strncmp(reply, "END ", 4) != 0 &&
	    (strncmp(reply, "OK", 2) != 0 || (reply[2] != ' ' && reply[2] != '\0')))
		why = "its answer is not understood";
	return why;
}

/* Ends this process, which was to become the task. */
static void fail(const char *path, const char *why)
{
	slurm_error("gandiva: this task does not start: its node's daemon did not bind it to its GPUs (%s: %s), and those "
		    "that Slurm names may be another's; next: see gandivad's log on this node, and submit it again",
		    path, why);
	exit(1);
}

int gandiva_stepd_task_init(spank_t sp)
{
	char path[SLOTS_SIZE], reply[REPLY_SIZE];
	const char *node = getenv("SLURMD_NODENAME");
	const char *why = "the node's name is strange";
	bool may_wait = is_planned(sp);
	uint32_t step = 0;

	if (!is_to_ask(sp, &step))
		return 0;
	if (step == STEP_BATCH)
		gandiva_set_size(sp);
	gandiva_talk_bound(&talk, is_restoring ? RESTORE_SILENT_MS : bound_ms(may_wait && !has_waited));
	talk.later_ms = is_restoring ? RESTORE_SILENT_MS : 0;
	if (node == NULL || !gandiva_config_socket(node, path, sizeof(path)))
		snprintf(path, sizeof(path), "no socket");
	else
		why = bind_task(sp, step, path, reply, sizeof(reply));
	if (why == NULL && strncmp(reply, "END ", 4) == 0)
		fail(path, reply + 4);
	if (why == NULL && is_restoring && strncmp(reply, "OK", 2) == 0) {
		take_answer(sp, reply);
		if (restored[0] != '\0')
			gandiva_image_be(restored);
	}
	/* Nothing was restored: what there may be of it is ended before the task begins anew. */
	gandiva_image_end();
	if (why == NULL && restored[0] != '\0')
		fail(path, "its restored processes are gone");
	if (why != NULL && may_wait)
		fail(path, why);
	if (why == NULL && strncmp(reply, "NO ", 3) == 0) {
		slurm_info("gandiva: %s; the task sees no GPU", reply + 3);
		/* Slurm's are the numbers of slots: a program that took them for GPUs would run on another's. */
		gandiva_set_variable(sp, "CUDA_VISIBLE_DEVICES", "");
		return 0;
	}
	if (why != NULL)
		slurm_info("gandiva: no GPU binding from %s: %s; the task starts as Slurm made it", path, why);
	else
		take_answer(sp, reply);
	if (path[0] != '/')
		return 0;
	gandiva_set_variable(sp, "GANDIVA_SOCKET", path);
	gandiva_set_hook(sp);
	gandiva_set_files(sp);
	return 0;
}
