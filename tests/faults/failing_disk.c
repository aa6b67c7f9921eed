/* A disk that fails under a process that loads this first (LD_PRELOAD): from the BLOBNET_FAULT_NUMBERth time on that
   the process does BLOBNET_FAULT_CALL to a file whose path is like BLOBNET_FAULT_FILE, a pattern of shells, the call
   gives the error BLOBNET_FAULT_ERROR. The first write that fails has written half. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int times;

static int fails(const char* call, const char* path) {
  const char* wanted = getenv("BLOBNET_FAULT_CALL");
  if (!wanted || strcmp(wanted, call) || fnmatch(getenv("BLOBNET_FAULT_FILE"), path, 0)) return 0;
  if (++times < atoi(getenv("BLOBNET_FAULT_NUMBER"))) return 0;
  errno = atoi(getenv("BLOBNET_FAULT_ERROR"));
  return 1;
}

static int fails_file(const char* call, int file) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  int saved = errno;
  ssize_t size = readlink(link, path, sizeof path - 1);
  errno = saved;
  if (size < 0) return 0;
  path[size] = 0;
  return fails(call, path);
}

#define USUAL(name, ...) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__)

ssize_t write(int file, const void* data, size_t size) {
  int before = times;
  if (!fails_file("write", file)) return USUAL(write, file, data, size);
  int is_first = before + 1 == atoi(getenv("BLOBNET_FAULT_NUMBER"));
  return is_first && size > 1 ? USUAL(write, file, data, size / 2) : -1;
}

int fsync(int file) { return fails_file("fsync", file) ? -1 : USUAL(fsync, file); }

int rename(const char* from, const char* to) { return fails("rename", to) ? -1 : USUAL(rename, from, to); }

/* As of a disk on the network, which says here what became of what was written. */
int close(int file) {
  int is_failing = fails_file("close", file), saved = errno, result = USUAL(close, file);
  errno = is_failing ? saved : errno;
  return is_failing ? -1 : result;
}
