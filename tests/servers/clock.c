/* Preloaded into a server: shifts its wall clock by the number in a mapped file, which may change.

   The file named by TEST_CLOCK holds one 64-bit number of microseconds. The monotonic clock is
   not shifted, just as when an administrator or NTP sets the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset_us = mapped;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (failed || !offset_us || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t us = now->tv_sec * 1000000LL + now->tv_nsec / 1000 + *offset_us;
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000 + now->tv_nsec % 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}
