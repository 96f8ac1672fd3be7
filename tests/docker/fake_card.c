/* A GPU's driver, played in two parts: the one that a program uses, and the checkpoint of another process.
 *
 * A program that takes a context has /dev/nvidia0 open, and its GPU's memory is lost when it is taken off: what the
 * driver keeps comes back when it is put on again. A thread of the program's own does both, so that one that is
 * stopped cannot be taken off. FAKE_CARD names a program's file: its state, and the UUID of the GPU that it is, or
 * was, on; FILE.order is what it is to do, FILE.calls what was done. A file fail-HOST beside it lets restores fail.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED };
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, ILLEGAL_STATE = 401, NOT_READY = 600, UNKNOWN = 999 };
#define PATH 512
#define ROOM (64 << 20)
#define PATIENCE 6000 /* looks, of 5 ms */

struct pair {
	unsigned char old[16], new[16];
};
struct restore_args {
	const struct pair *pairs;
	unsigned int count;
	unsigned char reserved[52];
};

static char *memory, *kept;
static int device = -1;
/* Of the program that uses the GPU; its thread has it while the program is off. */
static pthread_mutex_t gpu = PTHREAD_MUTEX_INITIALIZER;

static void uuid_here(unsigned char *uuid)
{
	char host[64] = "";

	(void)gethostname(host, sizeof(host) - 1);
	memset(uuid, 0, 16);
	uuid[15] = (unsigned char)atoi(host + 1);
}

static bool read_state(const char *path, int *state, int *at)
{
	FILE *file = fopen(path, "r");
	bool is_read = file != NULL && fscanf(file, "%d %d", state, at) == 2;

	if (file != NULL)
		fclose(file);
	return is_read;
}

static void write_state(const char *path, int state, int at)
{
	char new[PATH + 8];
	FILE *file;

	snprintf(new, sizeof(new), "%s.new", path);
	file = fopen(new, "w");
	if (file == NULL)
		return;
	fprintf(file, "%d %d\n", state, at);
	fclose(file);
	rename(new, path);
}

/* The program's own thread. */
static void *serve(void *argument)
{
	const char *path = argument;
	char order[PATH + 8], word[16];

	snprintf(order, sizeof(order), "%s.order", path);
	for (;; usleep(5000)) {
		FILE *file = fopen(order, "r");
		int at = 0;
		bool is_one = file != NULL && fscanf(file, "%15s %d", word, &at) == 2;

		if (file != NULL)
			fclose(file);
		if (!is_one)
			continue;
		unlink(order);
		if (strcmp(word, "off") == 0) {
			pthread_mutex_lock(&gpu);
			memcpy(kept, memory, ROOM);
			memset(memory, 0xEE, ROOM);
			close(device);
			device = -1;
			write_state(path, CHECKPOINTED, at);
		} else {
			device = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
			memcpy(memory, kept, ROOM);
			pthread_mutex_unlock(&gpu);
			write_state(path, LOCKED, at);
		}
	}
	return NULL;
}

int cuInit(unsigned int flags)
{
	return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorName(int code, const char **text)
{
	*text = code == NOT_READY ? "CUDA_ERROR_NOT_READY" : NULL;
	return *text == NULL ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGet(int *found, int ordinal)
{
	*found = ordinal;
	return ordinal == 0 ? SUCCESS : INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int ordinal)
{
	static char path[PATH];
	unsigned char uuid[16];
	pthread_t thread;

	snprintf(path, sizeof(path), "%s", getenv("FAKE_CARD") != NULL ? getenv("FAKE_CARD") : "");
	memory = malloc(ROOM);
	kept = malloc(ROOM);
	device = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
	if (ordinal != 0 || memory == NULL || kept == NULL || device < 0)
		return UNKNOWN;
	uuid_here(uuid);
	write_state(path, RUNNING, uuid[15]);
	*context = memory;
	return pthread_create(&thread, NULL, serve, path) == 0 ? SUCCESS : UNKNOWN;
}

int cuCtxSetCurrent(void *context)
{
	return context == memory ? SUCCESS : INVALID_VALUE;
}

int cuMemAlloc_v2(uint64_t *found, size_t size)
{
	*found = (uint64_t)(uintptr_t)memory;
	return size <= ROOM ? SUCCESS : UNKNOWN;
}

/* As the real driver's, a call of a program that is off its GPU waits. */
static int copy(void *target, const void *source, size_t size)
{
	pthread_mutex_lock(&gpu);
	memcpy(target, source, size);
	pthread_mutex_unlock(&gpu);
	return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t size)
{
	return copy((void *)(uintptr_t)target, source, size);
}

int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size)
{
	return copy(target, (const void *)(uintptr_t)source, size);
}

/* The file of another process: FAKE_CARD of its environment. */
static bool path_of(int pid, char *path)
{
	static char text[1 << 16];
	char name[64];
	size_t size;
	FILE *file;

	snprintf(name, sizeof(name), "/proc/%d/environ", pid);
	file = fopen(name, "r");
	if (file == NULL)
		return false;
	size = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[size] = '\0';
	for (size_t at = 0; at < size; at += strlen(text + at) + 1) {
		if (strncmp(text + at, "FAKE_CARD=", 10) == 0) {
			snprintf(path, PATH, "%s", text + at + 10);
			return true;
		}
	}
	return false;
}

static void note(const char *path, const char *call)
{
	char name[PATH + 8], host[64] = "";
	FILE *file;

	(void)gethostname(host, sizeof(host) - 1);
	snprintf(name, sizeof(name), "%s.calls", path);
	file = fopen(name, "a");
	if (file == NULL)
		return;
	fprintf(file, "%s %s\n", host, call);
	fclose(file);
}

/* Have the program do it, and wait until it has. */
static int order(const char *path, const char *word, int to, int until)
{
	char name[PATH + 8], new[PATH + 16];
	int state = -1, at;
	FILE *file;

	snprintf(name, sizeof(name), "%s.order", path);
	snprintf(new, sizeof(new), "%s.asked", name);
	file = fopen(new, "w");
	if (file == NULL)
		return UNKNOWN;
	fprintf(file, "%s %d\n", word, to);
	fclose(file);
	rename(new, name);
	for (int look = 0; look < PATIENCE; look++) {
		if (read_state(path, &state, &at) && state == until)
			return SUCCESS;
		usleep(5000);
	}
	unlink(name);
	return NOT_READY;
}

static int move(int pid, const char *call, int from, int to)
{
	char path[PATH];
	int state, at;

	if (!path_of(pid, path) || !read_state(path, &state, &at))
		return INVALID_VALUE;
	if (state != from)
		return ILLEGAL_STATE;
	note(path, call);
	if (to == CHECKPOINTED)
		return order(path, "off", at, to);
	write_state(path, to, at);
	return SUCCESS;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
	char path[PATH];
	int at;

	return path_of(pid, path) && read_state(path, state, &at) ? SUCCESS : INVALID_VALUE;
}

int cuCheckpointProcessLock(int pid, const void *args)
{
	return args == NULL ? INVALID_VALUE : move(pid, "lock", RUNNING, LOCKED);
}

int cuCheckpointProcessCheckpoint(int pid, const void *args)
{
	return args != NULL ? INVALID_VALUE : move(pid, "checkpoint", LOCKED, CHECKPOINTED);
}

int cuCheckpointProcessUnlock(int pid, const void *args)
{
	return args != NULL ? INVALID_VALUE : move(pid, "unlock", LOCKED, RUNNING);
}

int cuCheckpointProcessRestore(int pid, const struct restore_args *args)
{
	char path[PATH], fail[PATH + 80], host[64] = "", told[64];
	unsigned char here[16];
	int state, at;

	if (!path_of(pid, path) || !read_state(path, &state, &at))
		return INVALID_VALUE;
	if (state != CHECKPOINTED)
		return ILLEGAL_STATE;
	uuid_here(here);
	for (size_t n = 0; args != NULL && n < sizeof(args->reserved); n++) {
		if (args->reserved[n] != 0)
			return INVALID_VALUE;
	}
	if (args == NULL ? at != here[15]
			 : args->count != 1 || args->pairs[0].old[15] != at || memcmp(args->pairs[0].new, here, 16) != 0)
		return INVALID_DEVICE;
	(void)gethostname(host, sizeof(host) - 1);
	snprintf(fail, sizeof(fail), "%.*s/fail-%s", (int)(strrchr(path, '/') - path), path, host);
	if (access(fail, F_OK) == 0)
		return UNKNOWN;
	snprintf(told, sizeof(told), "restore %d as %d", at, here[15]);
	note(path, told);
	return order(path, "on", here[15], LOCKED);
}
