/* A driver that only keeps states of processes, one file each in $FAKE_CUDA, and fails where a file says so.
 *
 * state-PID: the state's number; a process without one is none of CUDA's.
 * fail-FUNCTION: the error to return, and the state to leave the process in (-1: as it is). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { RUNNING, LOCKED, CHECKPOINTED };
enum { SUCCESS = 0, INVALID_VALUE = 1, ILLEGAL_STATE = 401, UNKNOWN = 999 };

struct lock_args {
	unsigned int timeout_ms, reserved0;
	uint64_t reserved1[7];
};

struct restore_args {
	const struct {
		unsigned char uuids[32];
	} *pairs;
	unsigned int count;
	unsigned char reserved[52];
};

static FILE *open_file(const char *format, const char *name, int pid, const char *mode)
{
	char path[4096], rest[64];
	snprintf(rest, sizeof rest, format, name, pid);
	snprintf(path, sizeof path, "%s/%s", getenv("FAKE_CUDA"), rest);
	return fopen(path, mode);
}

static int get(int pid)
{
	int state = -1;
	FILE *file = open_file("%s-%d", "state", pid, "r");
	if (file != NULL) {
		if (fscanf(file, "%d", &state) != 1)
			state = -1;
		fclose(file);
	}
	return state;
}

static void set(int pid, int state)
{
	char from[4096], to[4096];
	FILE *file = open_file("%s-%d", "new", pid, "w");
	fprintf(file, "%d", state);
	fclose(file);
	snprintf(from, sizeof from, "%s/new-%d", getenv("FAKE_CUDA"), pid);
	snprintf(to, sizeof to, "%s/state-%d", getenv("FAKE_CUDA"), pid);
	rename(from, to);
}

/* Note a call; return the error it is to fail with. */
static int call(const char *name, int pid)
{
	int code = SUCCESS, state = -1;
	FILE *calls = open_file("%s%.0d", "calls", 0, "a"), *fail = open_file("fail-%s%.0d", name, 0, "r");
	fprintf(calls, "%s\n", name);
	fclose(calls);
	if (fail == NULL)
		return SUCCESS;
	if (fscanf(fail, "%d %d", &code, &state) < 1)
		code = UNKNOWN;
	fclose(fail);
	if (state >= 0)
		set(pid, state);
	return code;
}

static int move(const char *name, int pid, int from, int to)
{
	int code = call(name, pid);
	if (code != SUCCESS)
		return code;
	if (get(pid) != from)
		return ILLEGAL_STATE;
	set(pid, to);
	return SUCCESS;
}

int cuInit(unsigned int flags)
{
	return call("Init", 0);
}

int cuGetErrorName(int code, const char **text)
{
	*text = code == 600 ? "CUDA_ERROR_NOT_READY" : code == ILLEGAL_STATE ? "CUDA_ERROR_ILLEGAL_STATE" : NULL;
	return *text == NULL ? INVALID_VALUE : SUCCESS;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
	int code = call("GetState", pid);
	*state = get(pid);
	return code != SUCCESS ? code : *state < 0 ? INVALID_VALUE : SUCCESS;
}

int cuCheckpointProcessLock(int pid, const struct lock_args *args)
{
	for (int n = 0; n < 7; n++)
		if (args->reserved1[n] != 0)
			return UNKNOWN;
	if (args->timeout_ms == 0 || args->reserved0 != 0)
		return UNKNOWN;
	return move("Lock", pid, RUNNING, LOCKED);
}

int cuCheckpointProcessCheckpoint(int pid, const void *args)
{
	return move("Checkpoint", pid, LOCKED, CHECKPOINTED);
}

/* Pairs are noted in hexadecimal. */
int cuCheckpointProcessRestore(int pid, const struct restore_args *args)
{
	char pairs[80 * 8] = "Restore";

	if (args != NULL && args->count > 8)
		return INVALID_VALUE;
	for (size_t n = 0; args != NULL && n < sizeof args->reserved; n++)
		if (args->reserved[n] != 0)
			return UNKNOWN;
	for (unsigned int n = 0; args != NULL && n < args->count; n++) {
		char *at = pairs + sprintf(pairs, "pair:");
		for (int byte = 0; byte < 32; byte++)
			at += sprintf(at, "%s%02x", byte == 16 ? "=" : "", args->pairs[n].uuids[byte]);
		(void)call(pairs, 0);
	}
	return move("Restore", pid, CHECKPOINTED, LOCKED);
}

int cuCheckpointProcessUnlock(int pid, const void *args)
{
	return move("Unlock", pid, LOCKED, RUNNING);
}
