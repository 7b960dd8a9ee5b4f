/*
 * Writes, reads and discards on a volume, waiting and not.
 *
 *   cc volume.c -I ../include -L TARGET -lcraton -lpthread -o volume
 *   ./volume CLUSTER VOLUME
 */
#include <craton.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096
#define COUNT 64
#define MANY 1000
#define LARGE ((size_t)3 << 20)

static void fail(const char *what, int64_t result)
{
    fprintf(stderr, "%s: %lld (%s)\n", what, (long long)result, craton_error());
    exit(1);
}

static void check(const char *what, int good)
{
    if (!good)
        fail(what, 0);
}

/* What the completions of this example count. */
struct pending {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int left;
    int failed;
};

static void count(struct pending *pending, int64_t result, int64_t want)
{
    pthread_mutex_lock(&pending->lock);
    if (result != want) {
        fprintf(stderr, "a completion: %lld (%s)\n", (long long)result, craton_error());
        pending->failed++;
    }
    pending->left--;
    pthread_cond_signal(&pending->moved);
    pthread_mutex_unlock(&pending->lock);
}

/* Of reads and writes: bytes. */
static void done(void *arg, int64_t result)
{
    count(arg, result, BLOCK);
}

/* Of discards: nothing but that they went well. */
static void discarded(void *arg, int64_t result)
{
    count(arg, result, 0);
}

static void wait_for_all(struct pending *pending)
{
    pthread_mutex_lock(&pending->lock);
    while (pending->left > 0)
        pthread_cond_wait(&pending->moved, &pending->lock);
    pthread_mutex_unlock(&pending->lock);
    check("all completions are good", pending->failed == 0);
    pending->left = COUNT;
}

/* Tells what a call that waits says inside a completion. */
static void nested(void *arg, int64_t result)
{
    int64_t *told = arg;
    (void)result;
    __atomic_store_n(told, craton_flush((craton_volume *)(uintptr_t)16), __ATOMIC_RELEASE);
}

int main(int argc, char **argv)
{
    craton_volume *volume, *second;
    struct pending pending = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, COUNT, 0};
    static char blocks[COUNT][BLOCK], back[COUNT][BLOCK];
    char *large = malloc(LARGE), *again = malloc(LARGE);
    int64_t result, told = 0;
    int index;

    if (argc != 3) {
        fprintf(stderr, "usage: %s CLUSTER VOLUME\n", argv[0]);
        return 2;
    }
    /* What goes wrong has a number and words. */
    check("a volume that is not there", craton_open(argv[1], NULL, "none", 0, &volume) == -ENOENT);
    check("nothing is opened", volume == NULL && strstr(craton_error(), "none") != NULL);
    check("a bad flag", craton_open(argv[1], NULL, argv[2], 1, &volume) == -EINVAL);
    check("a bad cluster", craton_open("/nowhere/at/all", NULL, argv[2], 0, &volume) == -ENOENT);

    result = craton_open(argv[1], NULL, argv[2], 0, &volume);
    if (result < 0)
        fail("open", result);
    check("one at a time", craton_open(argv[1], NULL, argv[2], 0, &second) == -EBUSY);

    /* Waiting: any offset, any length. */
    for (size_t at = 0; at < LARGE; at++)
        large[at] = (char)(at * 7 + at / 4096);
    result = craton_write(volume, large, LARGE, 12345);
    if (result != (int64_t)LARGE)
        fail("write", result);
    result = craton_read(volume, again, LARGE, 12345);
    if (result != (int64_t)LARGE)
        fail("read", result);
    check("what was written is read", memcmp(large, again, LARGE) == 0);
    check("flush", craton_flush(volume) == 0);
    check("discard", craton_discard(volume, 1 << 20, 1 << 20) == 0);
    check("read", craton_read(volume, again, 1 << 20, 1 << 20) == 1 << 20);
    for (int at = 0; at < 1 << 20; at++)
        check("what was discarded reads as zeroes", again[at] == 0);
    check("past the end", craton_read(volume, again, 2, craton_size(volume) - 1) == -EINVAL);
    check("words", strstr(craton_error(), "2 bytes at") != NULL);
    check("nothing at all", craton_read(volume, NULL, 0, 0) == 0);
    check("no memory", craton_read(volume, NULL, 1, 0) == -EINVAL);

    /* Not waiting: many at once. */
    for (index = 0; index < COUNT; index++) {
        memset(blocks[index], index + 1, BLOCK);
        result = craton_write_async(volume, blocks[index], BLOCK, (uint64_t)index * 3 * BLOCK, done,
                                    &pending);
        if (result < 0)
            fail("write_async", result);
    }
    wait_for_all(&pending);
    for (index = 0; index < COUNT; index++) {
        result = craton_read_async(volume, back[index], BLOCK, (uint64_t)index * 3 * BLOCK, done,
                                   &pending);
        if (result < 0)
            fail("read_async", result);
    }
    wait_for_all(&pending);
    check("what was written is read", memcmp(blocks, back, sizeof blocks) == 0);
    for (index = 0; index < COUNT; index++) {
        result = craton_discard_async(volume, (uint64_t)index * 3 * BLOCK, BLOCK, discarded,
                                      &pending);
        if (result < 0)
            fail("discard_async", result);
    }
    wait_for_all(&pending);
    check("read", craton_read(volume, again, COUNT * 3 * BLOCK, 0) == COUNT * 3 * BLOCK);
    for (size_t at = 0; at < COUNT * 3 * BLOCK; at++)
        if (at / BLOCK % 3 == 0)
            check("what was discarded reads as zeroes", again[at] == 0);

    /* Calls that overlap take effect in the order of their start, whatever they do. */
    pending.left = MANY + 1;
    for (index = 0; index < MANY; index++) {
        result = craton_write_async(volume, blocks[index % COUNT], BLOCK, (uint64_t)index * BLOCK,
                                    done, &pending);
        if (result < 0)
            fail("write_async", result);
    }
    check("discard_async", craton_discard_async(volume, (uint64_t)(MANY - 1) * BLOCK, BLOCK,
                                                discarded, &pending) == 0);
    wait_for_all(&pending);
    check("read", craton_read(volume, again, BLOCK, (uint64_t)(MANY - 1) * BLOCK) == BLOCK);
    for (int at = 0; at < BLOCK; at++)
        check("a discard after a write leaves zeroes", again[at] == 0);

    check("no completion", craton_flush_async(volume, NULL, NULL) == -EINVAL);
    check("flush_async", craton_flush_async(volume, nested, &told) == 0);
    while (__atomic_load_n(&told, __ATOMIC_ACQUIRE) == 0)
        ;
    check("a completion must not wait", told == -EDEADLK);

    /* Closing waits for what is under way. */
    pending.left = COUNT;
    for (index = 0; index < COUNT; index++)
        check("write_async", craton_write_async(volume, blocks[index], BLOCK,
                                                (uint64_t)index * BLOCK, done, &pending) == 0);
    result = craton_close(volume);
    if (result < 0)
        fail("close", result);
    check("all had ended", pending.left == 0 && pending.failed == 0);

    /* It is there still, and can be opened again at once. */
    result = craton_open(argv[1], NULL, argv[2], 0, &volume);
    if (result < 0)
        fail("open again", result);
    check("read", craton_read(volume, back, sizeof back, 0) == (int64_t)sizeof back);
    check("what was written is read", memcmp(blocks, back, sizeof blocks) == 0);
    check("close", craton_close(volume) == 0);
    printf("good: libcraton %s\n", craton_version());
    free(large);
    free(again);
    return 0;
}
