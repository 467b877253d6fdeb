/* Preloaded into a server: notes how much of each file would survive a loss of power.

   The folder TEST_POWER gets one file for each file that was synced, named by its inode: its length
   when the last fsync that succeeded began. What is written while it runs may be lost. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int noted(int file, long call) {
    struct stat before;
    const char *folder = getenv("TEST_POWER");
    int known = folder && fstat(file, &before) == 0 && S_ISREG(before.st_mode);
    int failed = syscall(call, file);
    if (failed || !known)
        return failed;
    char path[4096];
    snprintf(path, sizeof path, "%s/%llu", folder, (unsigned long long)before.st_ino);
    int note = open(path, O_WRONLY | O_CREAT, 0600);
    int64_t length = before.st_size;
    if (note < 0 || pwrite(note, &length, sizeof length, 0) != sizeof length)
        abort(); /* a test that relied on it would prove nothing */
    close(note);
    return 0;
}

int fsync(int file) { return noted(file, SYS_fsync); }

int fdatasync(int file) { return noted(file, SYS_fdatasync); }
