/* A library that is loaded before all others (LD_PRELOAD) and lets programs see another time of day.
 *
 * Every realtime clock is `offset` seconds ahead; monotonic clocks stay. Files that were changed since `start`, which is when
 * the library was put in place, show times of the shifted clock: for a program it is as if it ran on another day. Deadlines
 * on realtime clocks are taken back for the kernel. It calls the kernel itself and needs no symbol of a certain C library.
 * Programs that are linked statically do not load it.
 */

typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#if defined(__x86_64__)
enum { NR_fstat = 5, NR_clock_gettime = 228, NR_clock_nanosleep = 230, NR_newfstatat = 262, NR_utimensat = 280, NR_statx = 332 };
struct stat { u64 dev, ino, nlink; u32 mode, uid, gid, pad0; u64 rdev; i64 size, blksize, blocks; i64 times[6], pad[3]; };
static i64 call(i64 n, i64 a, i64 b, i64 c, i64 d, i64 e)
{
    i64 result;
    register i64 r10 __asm__("r10") = d;
    register i64 r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum { NR_fstat = 80, NR_clock_gettime = 113, NR_clock_nanosleep = 115, NR_newfstatat = 79, NR_utimensat = 88, NR_statx = 291 };
struct stat { u64 dev, ino; u32 mode, nlink, uid, gid; u64 rdev, pad0; i64 size; int blksize, pad1; i64 blocks, times[6];
              u32 pad[2]; };
static i64 call(i64 n, i64 a, i64 b, i64 c, i64 d, i64 e)
{
    register i64 x8 __asm__("x8") = n;
    register i64 x0 __asm__("x0") = a;
    register i64 x1 __asm__("x1") = b;
    register i64 x2 __asm__("x2") = c;
    register i64 x3 __asm__("x3") = d;
    register i64 x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#error "clock knows x86-64 and aarch64"
#endif

#define CALL(name, a, b, c, d, e) call(NR_##name, (i64)(a), (i64)(b), (i64)(c), (i64)(d), (i64)(e))
#define SEEN __attribute__((visibility("default")))

enum { REALTIME = 0, REALTIME_COARSE = 5, TAI = 11, ABSOLUTE = 1, UTC = 1 };
enum { CURRENT_FOLDER = -100, NO_FOLLOW = 0x100, NOT_SUPPORTED = 38 };
enum { SECOND = 1000000000 };
enum { NOW = 0x3fffffff, OMIT = 0x3ffffffe };

struct timespec { i64 sec, nsec; };
struct timeval { i64 sec, usec; };
struct statx_time { i64 sec; u32 nsec; int pad; };
struct statx { u64 head[8]; struct statx_time times[4]; };

extern int *__errno_location(void);
extern void *dlsym(void *, const char *) __attribute__((weak));

/* `start` is in nanoseconds, because files that came before it may be of the same second. Both numbers are written into the
 * file before it is used; the mark says where. */
static volatile struct { char mark[16]; i64 offset, start; } settings = { "benchcube clock", 0, 0 };

static i64 result_of(i64 result)
{
    if (result >= 0)
        return result;
    *__errno_location() = (int)-result;
    return -1;
}

static int is_realtime(int clock)
{
    return clock == REALTIME || clock == REALTIME_COARSE || clock == TAI;
}

/* A deadline of a program; those on monotonic clocks are far below any time of day. */
static struct timespec taken_back(const struct timespec *given)
{
    struct timespec own = *given;
    if (own.sec >= settings.start / SECOND)
        own.sec -= settings.offset;
    return own;
}

SEEN int clock_gettime(int clock, struct timespec *now)
{
    i64 result = CALL(clock_gettime, clock, now, 0, 0, 0);
    if (result >= 0 && is_realtime(clock))
        now->sec += settings.offset;
    return (int)result_of(result);
}

SEEN int timespec_get(struct timespec *now, int base)
{
    return base == UTC && clock_gettime(REALTIME, now) == 0 ? base : 0;
}

SEEN int gettimeofday(struct timeval *now, int *zone)
{
    struct timespec found;
    clock_gettime(REALTIME, &found);
    if (now) {
        now->sec = found.sec;
        now->usec = found.nsec / 1000;
    }
    if (zone)
        zone[0] = zone[1] = 0;
    return 0;
}

SEEN i64 time(i64 *place)
{
    struct timespec found;
    clock_gettime(REALTIME, &found);
    if (place)
        *place = found.sec;
    return found.sec;
}

SEEN int clock_nanosleep(int clock, int flags, const struct timespec *until, struct timespec *left)
{
    struct timespec own = *until;
    if ((flags & ABSOLUTE) && is_realtime(clock))
        own = taken_back(until);
    return (int)-CALL(clock_nanosleep, clock, flags, &own, left, 0);
}

/* Waits until a deadline. */

#define NEXT(name, ...) ((int (*)(__VA_ARGS__))(dlsym ? dlsym((void *)-1, name) : 0))
#define WAIT(name)                                                                                                             \
    SEEN int name(void *thing, const struct timespec *until)                                                                   \
    {                                                                                                                          \
        struct timespec own = taken_back(until);                                                                               \
        int (*next)(void *, const struct timespec *) = NEXT(#name, void *, const struct timespec *);                           \
        return next ? next(thing, &own) : NOT_SUPPORTED;                                                                       \
    }

WAIT(sem_timedwait)
WAIT(pthread_mutex_timedlock)
WAIT(pthread_rwlock_timedrdlock)
WAIT(pthread_rwlock_timedwrlock)

SEEN int pthread_cond_timedwait(void *condition, void *mutex, const struct timespec *until)
{
    struct timespec own = taken_back(until);
    int (*next)(void *, void *, const struct timespec *) =
        NEXT("pthread_cond_timedwait", void *, void *, const struct timespec *);
    return next ? next(condition, mutex, &own) : NOT_SUPPORTED;
}

/* Times of files. */

static int is_new(i64 sec, i64 nsec)
{
    return sec > settings.start / SECOND || (sec == settings.start / SECOND && nsec >= settings.start % SECOND);
}

static int shown(i64 result, struct stat *found)
{
    for (int i = 0; result >= 0 && i < 6; i += 2)
        if (is_new(found->times[i], found->times[i + 1]))
            found->times[i] += settings.offset;
    return (int)result_of(result);
}

#define STATS(suffix)                                                                                                          \
    SEEN int fstatat##suffix(int folder, const char *path, struct stat *found, int flags)                                      \
    {                                                                                                                          \
        return shown(CALL(newfstatat, folder, path, found, flags, 0), found);                                                  \
    }                                                                                                                          \
    SEEN int stat##suffix(const char *path, struct stat *found)                                                                \
    {                                                                                                                          \
        return fstatat##suffix(CURRENT_FOLDER, path, found, 0);                                                                \
    }                                                                                                                          \
    SEEN int lstat##suffix(const char *path, struct stat *found)                                                               \
    {                                                                                                                          \
        return fstatat##suffix(CURRENT_FOLDER, path, found, NO_FOLLOW);                                                        \
    }                                                                                                                          \
    SEEN int fstat##suffix(int file, struct stat *found)                                                                       \
    {                                                                                                                          \
        return shown(CALL(fstat, file, found, 0, 0, 0), found);                                                                \
    }                                                                                                                          \
    SEEN int __xstat##suffix(int version, const char *path, struct stat *found)                                                \
    {                                                                                                                          \
        (void)version;                                                                                                         \
        return stat##suffix(path, found);                                                                                      \
    }                                                                                                                          \
    SEEN int __lxstat##suffix(int version, const char *path, struct stat *found)                                               \
    {                                                                                                                          \
        (void)version;                                                                                                         \
        return lstat##suffix(path, found);                                                                                     \
    }                                                                                                                          \
    SEEN int __fxstat##suffix(int version, int file, struct stat *found)                                                       \
    {                                                                                                                          \
        (void)version;                                                                                                         \
        return fstat##suffix(file, found);                                                                                     \
    }                                                                                                                          \
    SEEN int __fxstatat##suffix(int version, int folder, const char *path, struct stat *found, int flags)                      \
    {                                                                                                                          \
        (void)version;                                                                                                         \
        return fstatat##suffix(folder, path, found, flags);                                                                    \
    }

STATS()
STATS(64)

SEEN int statx(int folder, const char *path, int flags, u32 mask, struct statx *found)
{
    i64 result = CALL(statx, folder, path, flags, mask, found);
    for (int i = 0; result >= 0 && i < 4; i++)
        if (is_new(found->times[i].sec, found->times[i].nsec))
            found->times[i].sec += settings.offset;
    return (int)result_of(result);
}

SEEN int utimensat(int folder, const char *path, const struct timespec *given, int flags)
{
    struct timespec own[2];
    for (int i = 0; given && i < 2; i++)
        own[i] = given[i].nsec == NOW || given[i].nsec == OMIT ? given[i] : taken_back(&given[i]);
    return (int)result_of(CALL(utimensat, folder, path, given ? own : 0, flags, 0));
}

SEEN int futimens(int file, const struct timespec *given)
{
    return utimensat(file, 0, given, 0);
}

static int set_times(int folder, const char *path, const struct timeval *given, int flags)
{
    struct timespec own[2];
    for (int i = 0; given && i < 2; i++)
        own[i] = (struct timespec){ given[i].sec, given[i].usec * 1000 };
    return utimensat(folder, path, given ? own : 0, flags);
}

SEEN int utimes(const char *path, const struct timeval *given)
{
    return set_times(CURRENT_FOLDER, path, given, 0);
}

SEEN int lutimes(const char *path, const struct timeval *given)
{
    return set_times(CURRENT_FOLDER, path, given, NO_FOLLOW);
}

SEEN int futimes(int file, const struct timeval *given)
{
    return set_times(file, 0, given, 0);
}

SEEN int utime(const char *path, const i64 *given)
{
    struct timeval own[2] = { { given ? given[0] : 0, 0 }, { given ? given[1] : 0, 0 } };
    return utimes(path, given ? own : 0);
}
