/*
 * craton.h: volumes of a Craton cluster, for programs in C.
 *
 * A volume is opened, read and written anywhere, flushed, and closed. Functions may be called from
 * any thread, at the same time; only craton_close must be the last one on its volume.
 *
 * Results are 0 or a count of bytes; failures are a negative errno, and craton_error() tells what
 * happened and what to do, in words. A write that has returned is durable: it survives every
 * failure that the volume's copies allow.
 *
 *   EINVAL   an argument that cannot be, or bytes past the volume's end
 *   ENOENT   no such volume, or no such cluster directory
 *   EBUSY    somebody else has the volume open
 *   ESTALE   the volume was opened elsewhere after this, or removed: this one is over
 *   ENOSPC   the cluster is full
 *   EIO      not done within two minutes, or damaged: an outcome of a change is not known then
 *   EAGAIN   CRATON_ASYNC_MAX calls are under way already: wait for one of them
 *   EDEADLK  a call that waits, from a completion: use those that do not
 */
#ifndef CRATON_H
#define CRATON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Asynchronous calls under way on one volume. */
#define CRATON_ASYNC_MAX 1024

/* An open volume. */
typedef struct craton_volume craton_volume;

/*
 * Told when an asynchronous call has ended: what the call that waits would have returned. It runs
 * on a thread of the library, one at a time for each volume; it must return soon, and may start
 * further asynchronous calls. craton_error() has the words when result is negative.
 */
typedef void (*craton_done)(void *arg, int64_t result);

/*
 * Opens a volume and puts it into *out. cluster: the cluster's directory, or its masters' addresses
 * "HOST:PORT,..."; NULL: what CRATON_CLUSTER says. key_file: the file with the cluster's key; NULL:
 * none, or the one in the directory. flags: 0.
 */
int craton_open(const char *cluster, const char *key_file, const char *volume, unsigned flags,
                craton_volume **out);

/* Waits for calls that are under way, and closes. The volume is gone whatever is returned. */
int craton_close(craton_volume *volume);

/* Bytes of the volume when it was opened. */
uint64_t craton_size(const craton_volume *volume);

/* Reads or writes len bytes (at most INT64_MAX) at any offset: len, or a failure. */
int64_t craton_read(craton_volume *volume, void *buf, size_t len, uint64_t offset);
int64_t craton_write(craton_volume *volume, const void *buf, size_t len, uint64_t offset);

/* Makes durable what writes that have returned have written: it is already, so this is cheap. */
int craton_flush(craton_volume *volume);

/* Makes a range read as zeroes, and gives its room back. */
int craton_discard(craton_volume *volume, uint64_t offset, uint64_t len);

/*
 * The same without waiting: 0 when the call is under way, and done is called once; a failure when
 * it is not, and done is not called. buf belongs to the call until then. Calls that overlap take
 * effect in the order of their start on one thread.
 */
int craton_read_async(craton_volume *volume, void *buf, size_t len, uint64_t offset,
                      craton_done done, void *arg);
int craton_write_async(craton_volume *volume, const void *buf, size_t len, uint64_t offset,
                       craton_done done, void *arg);
int craton_flush_async(craton_volume *volume, craton_done done, void *arg);
int craton_discard_async(craton_volume *volume, uint64_t offset, uint64_t len, craton_done done,
                         void *arg);

/*
 * The words of this thread's last failure; "" when there was none. Valid until this thread's next
 * failure.
 */
const char *craton_error(void);

/* "0.1.0". */
const char *craton_version(void);

#ifdef __cplusplus
}
#endif

#endif
