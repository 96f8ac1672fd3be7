/* Host memory that a GPU can use, for a pool of PyTorch's (client/spill.py).
 *
 * PyTorch calls an allocator with its own lock held: one in Python could wait for the interpreter's, whose
 * holder may wait for PyTorch's. The driver is looked up when it is needed; nothing is linked. */
#include <dlfcn.h>
#include <stddef.h>

enum { PORTABLE = 1, DEVICEMAP = 2 };

typedef int (*host_alloc_fn)(void **at, size_t size, unsigned flags);
typedef int (*host_free_fn)(void *at);

void *gandiva_spill_alloc(size_t size, int device, void *stream);
void gandiva_spill_free(void *at, size_t size, int device, void *stream);

static void *of_driver(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);

    return driver ? dlsym(driver, name) : NULL;
}

/* NULL where there is none: PyTorch then says that memory has run out. By unified addressing the GPU knows it
 * by the host's address. */
void *gandiva_spill_alloc(size_t size, int device, void *stream)
{
    host_alloc_fn alloc = (host_alloc_fn) of_driver("cuMemHostAlloc");
    void *at = NULL;

    (void) device;
    (void) stream;
    return alloc && alloc(&at, size, PORTABLE | DEVICEMAP) == 0 ? at : NULL;
}

void gandiva_spill_free(void *at, size_t size, int device, void *stream)
{
    host_free_fn release = (host_free_fn) of_driver("cuMemFreeHost");

    (void) size;
    (void) device;
    (void) stream;
    if (release)
        release(at);
}
