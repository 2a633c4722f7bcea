/* Assertions and marks for programs that run inside Rewind. One header, C99 and C++11, no library.
 *
 * Outside Rewind every call is a no-op (one failed open, remembered). Each call writes one JSON line to
 * /dev/rewind, so it is one system call, and is safe from any thread; not from a signal handler.
 *
 *   REWIND_ALWAYS(cond, "name")              must hold each time it is reached
 *   REWIND_SOMETIMES(cond, "name")           must hold at least once over all schedules
 *   REWIND_REACHABLE("name")                 must be reached at least once over all schedules
 *   REWIND_UNREACHABLE("name")               must never be reached
 *   REWIND_MARK("name")                      a named place on the timeline
 *   ..._DETAILS(..., fmt, ...)               the same with a printf-style text of details
 *
 * SPDX-License-Identifier: MIT */
#ifndef REWIND_H
#define REWIND_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The descriptor of /dev/rewind, -1 outside Rewind. Two threads may both open it the first time: harmless. */
static inline int rewind_fd_(void) {
    static int state = -2;
    int fd = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (fd == -2) {
        fd = open("/dev/rewind", O_WRONLY | O_CLOEXEC);
        if (fd < 0)
            fd = -1;
        __atomic_store_n(&state, fd, __ATOMIC_RELEASE);
    }
    return fd;
}

/* Appends `text` as a JSON string; bytes that are not printable ASCII become \u00XX. */
static inline size_t rewind_quote_(char *out, size_t at, size_t room, const char *text) {
    static const char hex[] = "0123456789abcdef";
    if (at + 1 < room)
        out[at++] = '"';
    for (; *text && at + 8 < room; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            out[at++] = '\\';
            out[at++] = (char)c;
        } else if (c < 0x20 || c >= 0x7f) {
            memcpy(out + at, "\\u00", 4);
            out[at + 4] = hex[c >> 4];
            out[at + 5] = hex[c & 15];
            at += 6;
        } else {
            out[at++] = (char)c;
        }
    }
    out[at++] = '"';
    return at;
}

static inline size_t rewind_raw_(char *out, size_t at, size_t room, const char *text) {
    size_t n = strlen(text);
    if (at + n < room) {
        memcpy(out + at, text, n);
        at += n;
    }
    return at;
}

#if defined(__GNUC__)
__attribute__((format(printf, 7, 8), unused))
#endif
static void rewind_report_(const char *kind, const char *name, int holds, const char *file, int line,
                           const char *function, const char *format, ...) {
    char text[2048], details[512], number[16];
    size_t at = 0, room = sizeof text - 16;
    va_list args;
    int fd = rewind_fd_();
    ssize_t done;
    if (fd < 0)
        return;
    va_start(args, format);
    vsnprintf(details, sizeof details, format, args);
    va_end(args);
    snprintf(number, sizeof number, "%d", line);
    at = rewind_raw_(text, at, room, kind[0] == 'm' ? "{\"mark\":{\"name\":" : "{\"property\":{\"kind\":\"");
    if (kind[0] != 'm') {
        at = rewind_raw_(text, at, room, kind);
        at = rewind_raw_(text, at, room, "\",\"name\":");
    }
    at = rewind_quote_(text, at, room - 1100, name);
    if (kind[0] != 'm')
        at = rewind_raw_(text, at, room, holds ? ",\"holds\":true" : ",\"holds\":false");
    at = rewind_raw_(text, at, room, ",\"file\":");
    at = rewind_quote_(text, at, at + 256 < room ? at + 256 : room, file);
    at = rewind_raw_(text, at, room, ",\"line\":");
    at = rewind_raw_(text, at, room, number);
    at = rewind_raw_(text, at, room, ",\"function\":");
    at = rewind_quote_(text, at, at + 128 < room ? at + 128 : room, function);
    at = rewind_raw_(text, at, room, ",\"details\":");
    at = rewind_quote_(text, at, room, details);
    memcpy(text + at, "}}\n", 3);
    /* Nothing sensible can be done for a failed report; the device only refuses lines that are too long. */
    done = write(fd, text, at + 3);
    (void)done;
}

#define REWIND_REPORT_(kind, holds, name, ...) \
    rewind_report_(kind, name, (holds) ? 1 : 0, __FILE__, __LINE__, __func__, __VA_ARGS__)
#define REWIND_ALWAYS(holds, name) REWIND_REPORT_("always", holds, name, "%s", "")
#define REWIND_SOMETIMES(holds, name) REWIND_REPORT_("sometimes", holds, name, "%s", "")
#define REWIND_REACHABLE(name) REWIND_REPORT_("reachable", 1, name, "%s", "")
#define REWIND_UNREACHABLE(name) REWIND_REPORT_("unreachable", 0, name, "%s", "")
#define REWIND_MARK(name) REWIND_REPORT_("mark", 1, name, "%s", "")
#define REWIND_ALWAYS_DETAILS(holds, name, ...) REWIND_REPORT_("always", holds, name, __VA_ARGS__)
#define REWIND_SOMETIMES_DETAILS(holds, name, ...) REWIND_REPORT_("sometimes", holds, name, __VA_ARGS__)
#define REWIND_REACHABLE_DETAILS(name, ...) REWIND_REPORT_("reachable", 1, name, __VA_ARGS__)
#define REWIND_UNREACHABLE_DETAILS(name, ...) REWIND_REPORT_("unreachable", 0, name, __VA_ARGS__)
#define REWIND_MARK_DETAILS(name, ...) REWIND_REPORT_("mark", 1, name, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
