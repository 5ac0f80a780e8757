/* The one program of ours inside a container: its first process, the parent of every command, and its file mover.
 *
 *   anchor hold LEASE [CMD...]   stay, reap, and leave as soon as nobody holds a lock on the file LEASE (-: none) any more,
 *                                or as soon as CMD, which is started first, ends
 *   anchor run SEC USEC CMD...   run CMD; a timeout (0 0: none) or SIGTERM kills all its descendants
 *   anchor kill SIGNAL PID       send a signal (PID -1: to every process but the first); that nobody is there is fine. After
 *                                `kill 9 -1` it waits up to a second and writes `gone` if nobody is left
 *   anchor unpack                make files from the records on stdin (see struct record)
 *   anchor pack PATH             write the file or tree at PATH as records to stdout
 *   anchor stat                  a record for each NUL-ended path on stdin, without the contents of files
 *   anchor touched SEC NSEC DIR  the path, ended by NUL, of every file and link below DIR that was made or changed in any way
 *                                since that time; other file systems are left out
 *   anchor give UID GID PATH     make all that is root's in the file or tree at PATH somebody else's
 *
 * All but `hold` begin with a greeting on stderr, which tells their words from the engine's.
 * It needs nothing from the image, neither a shell nor a library, so nothing that was changed in there can act on it. It
 * never follows a symbolic link, but for those that distributions put at the root (bin -> usr/bin and the like).
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#if defined(__x86_64__)
enum { NR_read = 0, NR_write = 1, NR_close = 3, NR_fstat = 5, NR_rt_sigaction = 13, NR_rt_sigprocmask = 14,
       NR_nanosleep = 35, NR_setitimer = 38, NR_getpid = 39, NR_execve = 59, NR_exit = 60, NR_wait4 = 61, NR_kill = 62,
       NR_flock = 73, NR_fchmod = 91, NR_fchown = 93, NR_prctl = 157, NR_getdents64 = 217, NR_openat = 257,
       NR_mkdirat = 258, NR_fchownat = 260, NR_newfstatat = 262, NR_unlinkat = 263, NR_symlinkat = 266,
       NR_renameat = 264, NR_readlinkat = 267, NR_utimensat = 280, NR_rt_sigtimedwait = 128, NR_clone = 56, NR_socket = 41 };
enum { OTHER_NR_socket = 359, OTHER_NR_socketcall = 102 };
#define MACHINE 0xc000003eU
#define OTHER_MACHINE 0x40000003U
enum { O_DIRECTORY = 0200000, O_NOFOLLOW = 0400000 };
struct stat { u64 dev, ino, nlink; u32 mode, uid, gid, pad0; u64 rdev; i64 size, blksize, blocks; i64 atime, atime_ns, mtime,
              mtime_ns, ctime, ctime_ns, pad[3]; };
static i64 call(i64 n, i64 a, i64 b, i64 c, i64 d, i64 e)
{
    i64 result;
    register i64 r10 __asm__("r10") = d;
    register i64 r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
#elif defined(__aarch64__)
enum { NR_flock = 32, NR_mkdirat = 34, NR_unlinkat = 35, NR_symlinkat = 36, NR_renameat = 38, NR_fchmod = 52, NR_fchownat = 54,
       NR_fchown = 55, NR_openat = 56, NR_close = 57, NR_getdents64 = 61, NR_read = 63, NR_write = 64, NR_readlinkat = 78,
       NR_newfstatat = 79, NR_fstat = 80, NR_utimensat = 88, NR_exit = 93, NR_nanosleep = 101, NR_setitimer = 103,
       NR_kill = 129, NR_rt_sigaction = 134, NR_rt_sigprocmask = 135, NR_rt_sigtimedwait = 137, NR_prctl = 167,
       NR_getpid = 172, NR_socket = 198, NR_clone = 220, NR_execve = 221, NR_wait4 = 260 };
enum { OTHER_NR_socket = 281, OTHER_NR_socketcall = 102 };
#define MACHINE 0xc00000b7U
#define OTHER_MACHINE 0x40000028U
enum { O_DIRECTORY = 040000, O_NOFOLLOW = 0100000 };
struct stat { u64 dev, ino; u32 mode, nlink, uid, gid; u64 rdev, pad0; i64 size; int blksize, pad1; i64 blocks, atime, atime_ns,
              mtime, mtime_ns, ctime, ctime_ns; u32 pad[2]; };
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
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n b start\n");
#else
#error "anchor knows x86-64 and aarch64"
#endif

#define CALL(name, a, b, c, d, e) call(NR_##name, (i64)(a), (i64)(b), (i64)(c), (i64)(d), (i64)(e))

enum { O_RDONLY = 0, O_WRONLY = 1, O_CREAT = 0100, O_EXCL = 0200, O_TRUNC = 01000, O_NONBLOCK = 04000, O_CLOEXEC = 02000000,
       O_PATH = 010000000, AT_FDCWD = -100, AT_NOFOLLOW = 0x100, AT_EMPTY_PATH = 0x1000, AT_REMOVEDIR = 0x200 };
enum { ENOENT = 2, ESRCH = 3, EACCES = 13, EEXIST = 17, ENOTDIR = 20, ELOOP = 40, EINVAL = 22, ENAMETOOLONG = 36 };
enum { S_IFMT = 0170000, S_IFREG = 0100000, S_IFDIR = 0040000, S_IFLNK = 0120000 };
enum { SIGKILL = 9, SIGALRM = 14, SIGTERM = 15, SIGCHLD = 17 };
enum { PATH_LIMIT = 4096, DEPTH_LIMIT = 200 };

/* What `unpack` reads and `pack` and `stat` write, little-endian, followed by the path and then `size` bytes of data.
 * type: d directory, f file, l link (data is where it points), i file to be overwritten in place, x to be removed with all
 * below, m to be renamed (data is its new name in the same folder), s special, - missing. */
struct record { u8 type, pad; u16 path_length; u32 mode, uid, gid; u64 size; i64 mtime, mtime_ns; };

static u8 buffer[1 << 16];

void *memcpy(void *to, const void *from, u64 n)
{
    for (u64 i = 0; i < n; i++)
        ((u8 *)to)[i] = ((const u8 *)from)[i];
    return to;
}

void *memset(void *to, int value, u64 n)
{
    for (u64 i = 0; i < n; i++)
        ((volatile u8 *)to)[i] = (u8)value;
    return to;
}

static u64 length(const char *text)
{
    u64 n = 0;
    while (text[n])
        n++;
    return n;
}

static int same(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static i64 number(const char *text)
{
    i64 value = 0, sign = *text == '-' ? -1 : 1;
    for (text += sign < 0; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (*text - '0');
    return sign * value;
}

static void leave(int code)
{
    for (;;)
        CALL(exit, code, 0, 0, 0, 0);
}

static void send_all(int fd, const void *data, u64 n)
{
    for (u64 done = 0; done < n;) {
        i64 wrote = CALL(write, fd, (const u8 *)data + done, n - done, 0, 0);
        if (wrote <= 0)
            leave(74);
        done += (u64)wrote;
    }
}

/* One sentence on stderr, then out; the errno is the exit code, so that the driver can tell reasons apart. */
static void fail(const char *path, const char *what, i64 error)
{
    send_all(2, path, length(path));
    send_all(2, ": ", 2);
    send_all(2, what, length(what));
    send_all(2, "\n", 1);
    leave(error < 0 ? (int)-error : 1);
}

static int receive(void *data, u64 n)
{
    for (u64 done = 0; done < n;) {
        i64 got = CALL(read, 0, (u8 *)data + done, n - done, 0, 0);
        if (got < 0 || (got == 0 && done))
            fail("input", "ended too early", -EINVAL);
        if (got == 0)
            return 0;
        done += (u64)got;
    }
    return 1;
}

static void pause_for(i64 sec, i64 nsec)
{
    i64 time[2] = {sec, nsec};
    CALL(nanosleep, time, 0, 0, 0, 0);
}

/* Tells the driver that it talks to us and no longer to the engine, and under which process id. */
static void greet(void)
{
    struct { char magic[8]; u32 pid, pad; } greeting = {"\0anchor", (u32)CALL(getpid, 0, 0, 0, 0, 0), 0};
    send_all(2, &greeting, sizeof greeting);
}

/* ---- commands ---- */

static int status_code(int status)
{
    return (status & 0x7f) ? 128 + (status & 0x7f) : (status >> 8) & 0xff;
}

/* Descendants that lose their parent become ours (subreaper), so killing children until none is left kills the tree. */
static void kill_descendants(void)
{
    for (int tries = 0; tries < 2000; tries++) {
        int status;
        while (CALL(wait4, -1, &status, 1, 0, 0) > 0) {
        }
        i64 fd = CALL(openat, AT_FDCWD, "/proc/thread-self/children", O_RDONLY | O_CLOEXEC, 0, 0);
        i64 got = fd < 0 ? fd : CALL(read, fd, buffer, sizeof buffer - 1, 0, 0);
        CALL(close, fd, 0, 0, 0, 0);
        if (got <= 0)
            return;
        buffer[got] = 0;
        for (char *at = (char *)buffer; *at; at++)
            if (at == (char *)buffer || at[-1] == ' ') {
                i64 pid = number(at);
                if (pid > 1)
                    CALL(kill, pid, SIGKILL, 0, 0, 0);
            }
        pause_for(0, 1000000);
    }
}

static void send_signal(i64 pid, i64 signal)
{
    i64 sent = CALL(kill, pid, signal, 0, 0, 0);
    if (pid == -1 && signal == SIGKILL) {
        for (int left = 200; sent == 0 && left; left--) {
            sent = CALL(kill, -1, 0, 0, 0, 0);
            if (sent == 0)
                pause_for(0, 5000000);
        }
        if (sent == -ESRCH)
            send_all(1, "gone", 4);
    }
    leave(sent == -ESRCH ? 0 : (int)-sent);
}

static const char *variable(char **environment, const char *name)
{
    u64 n = length(name);
    for (; *environment; environment++) {
        u64 i = 0;
        while (i < n && (*environment)[i] == name[i])
            i++;
        if (i == n && (*environment)[n] == '=')
            return *environment + n + 1;
    }
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

static i64 execute(char **command, char **environment)
{
    static char candidate[PATH_LIMIT];
    const char *name = command[0], *at = variable(environment, "PATH");
    i64 worst = -ENOENT;
    for (const char *c = name; *c; c++)
        if (*c == '/')
            return CALL(execve, name, command, environment, 0, 0);
    while (*name) {
        u64 n = 0, extra = length(name);
        while (at[n] && at[n] != ':')
            n++;
        if (n + extra + 2 < sizeof candidate) {
            memcpy(candidate, at, n);
            candidate[n] = '/';
            memcpy(candidate + n + (n > 0), name, extra + 1);
            i64 error = CALL(execve, candidate, command, environment, 0, 0);
            if (error != -ENOENT && error != -ENOTDIR)
                worst = error;
        }
        if (!at[n])
            break;
        at += n + 1;
    }
    return worst;
}

/* ---- hold ---- */

static void hold(const char *lease, char **command, char **environment)
{
    u64 ended_signal = 1UL << (SIGCHLD - 1), before = 0;
    i64 child = -1, second[2] = {1, 0};
    CALL(rt_sigprocmask, 0, &ended_signal, &before, 8, 0);
    if (command)
        child = CALL(clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        CALL(rt_sigprocmask, 2, &before, 0, 8, 0);
        execute(command, environment);
        fail(command[0], "cannot be executed", -127);
    }
    for (;;) {
        i64 ended;
        int status;
        CALL(rt_sigtimedwait, &ended_signal, 0, second, 8, 0);
        while ((ended = CALL(wait4, -1, &status, 1, 0, 0)) > 0)
            if (ended == child)
                leave(status_code(status));
        if (same(lease, "-"))
            continue;
        i64 fd = CALL(openat, AT_FDCWD, lease, O_RDONLY | O_CLOEXEC, 0, 0);
        if (fd < 0 || CALL(flock, fd, 1 | 4, 0, 0, 0) == 0) /* LOCK_SH | LOCK_NB: the owner is gone */
            leave(0);
        CALL(close, fd, 0, 0, 0, 0);
    }
}

/* ---- run ---- */

/* No families but local, internet and routing sockets: AF_VSOCK for one reaches the host past every network namespace. */
static void restrict_sockets(void)
{
    struct { u16 code; u8 yes, no; u32 value; } filter[] = {
        {0x20, 0, 0, 4},                                        /* load the machine */
        {0x15, 0, 3, MACHINE},                                  /* this one? */
        {0x20, 0, 0, 0},                                        /* load the call's number */
        {0x54, 0, 0, 0xbfffffff},                               /* without the mark of the x32 calls */
        {0x15, 5, 11, NR_socket},
        {0x15, 0, 9, OTHER_MACHINE},                            /* its 32-bit sibling? */
        {0x20, 0, 0, 0},
        {0x15, 2, 0, OTHER_NR_socket},
        {0x15, 6, 0, OTHER_NR_socketcall},
        {0x06, 0, 0, 0x7fff0000},
        {0x20, 0, 0, 16},                                       /* load the first argument: the family */
        {0x15, 4, 0, 1},
        {0x15, 3, 0, 2},
        {0x15, 2, 0, 10},
        {0x15, 1, 0, 16},
        {0x06, 0, 0, 0x00050000 | 97},                          /* EAFNOSUPPORT */
        {0x06, 0, 0, 0x7fff0000},                               /* allowed */
    };
    struct { u16 count; void *filter; } program = {sizeof filter / sizeof *filter, filter};
    CALL(prctl, 38, 1, 0, 0, 0); /* PR_SET_NO_NEW_PRIVS */
    if (CALL(prctl, 22, 2, &program, 0, 0) < 0) /* PR_SET_SECCOMP */
        fail("anchor", "cannot restrict sockets", -126);
}

static void run(char **args, char **environment)
{
    u64 wanted = (1UL << (SIGCHLD - 1)) | (1UL << (SIGTERM - 1)) | (1UL << (SIGALRM - 1)), before = 0;
    i64 timer[4] = {0, 0, number(args[0]), number(args[1])};
    CALL(prctl, 36, 1, 0, 0, 0); /* PR_SET_CHILD_SUBREAPER */
    CALL(rt_sigprocmask, 0, &wanted, &before, 8, 0);
    i64 child = CALL(clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        CALL(rt_sigprocmask, 2, &before, 0, 8, 0);
        restrict_sockets();
        i64 error = execute(args + 2, environment);
        int missing = error == -ENOENT || error == -ENOTDIR;
        fail(args[2], missing ? "not found" : "cannot be executed", missing ? -127 : -126);
    }
    if (child < 0)
        fail(args[2], "no process left to start it", -126);
    for (int fd = 0; fd < 3; fd++)
        CALL(close, fd, 0, 0, 0, 0);
    if (timer[2] || timer[3])
        CALL(setitimer, 0, timer, 0, 0, 0);
    for (;;) {
        i64 signal = CALL(rt_sigtimedwait, &wanted, 0, 0, 8, 0), ended;
        int status;
        if (signal == SIGTERM || signal == SIGALRM) {
            kill_descendants();
            leave(128 + (int)signal);
        }
        while ((ended = CALL(wait4, -1, &status, 1, 0, 0)) > 0)
            if (ended == child)
                leave(status_code(status));
    }
}

/* ---- files ---- */

/* The directories that distributions keep as links at the root, so that /bin/x is /usr/bin/x there. */
static int merged(int depth, const char *name, const char *target)
{
    static const char *const names[] = {"bin", "sbin", "lib", "lib32", "lib64", "libx32"};
    target += *target == '/';
    if (depth == 0 && target[0] == 'u' && target[1] == 's' && target[2] == 'r' && target[3] == '/')
        for (u64 i = 0; i < sizeof names / sizeof *names; i++)
            if (same(name, names[i]) && same(target + 4, names[i]))
                return 1;
    return 0;
}

/* Opens directory `name` below `parent`. What is no directory is refused, or, with `make`, replaced by an empty one. */
static i64 enter(i64 parent, const char *name, int depth, int make)
{
    static char target[PATH_LIMIT];
    i64 fd = CALL(openat, parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd == -ELOOP || fd == -ENOTDIR) {
        i64 n = CALL(readlinkat, parent, name, target, sizeof target - 1, 0);
        if (n > 0) {
            target[n] = 0;
            if (merged(depth, name, target))
                return CALL(openat, parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0);
            fd = -ELOOP;
        }
        if (!make)
            return fd;
        i64 removed = CALL(unlinkat, parent, name, 0, 0, 0);
        if (removed < 0)
            return removed;
        fd = -ENOENT;
    }
    if (fd == -ENOENT && make) {
        i64 made = CALL(mkdirat, parent, name, 0755, 0, 0);
        if (made < 0 && made != -EEXIST)
            return made;
        fd = CALL(openat, parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    }
    return fd;
}

/* Walks to the directory that holds the last part of an absolute path, which `*last` then names ("." for the root). */
static i64 walk(char *path, char **last, int make)
{
    i64 at = CALL(openat, AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0);
    char *name = path + 1;
    *last = ".";
    for (int depth = 0; *path == '/'; depth++) {
        while (*name == '/')
            name++;
        if (!*name)
            return at;
        char *end = name;
        while (*end && *end != '/')
            end++;
        char stop = *end;
        *end = 0;
        if (same(name, "..") || same(name, "."))
            break;
        *last = name;
        char *next = end + (stop != 0);
        while (*next == '/')
            next++;
        if (!stop || !*next)
            return at;
        i64 inside = enter(at, name, depth, make);
        CALL(close, at, 0, 0, 0, 0);
        *end = stop;
        if (inside < 0)
            return inside;
        at = inside;
        name = next;
    }
    return -EINVAL;
}

static void stamp(i64 fd, const struct record *r)
{
    i64 times[4] = {r->mtime, r->mtime_ns, r->mtime, r->mtime_ns};
    CALL(utimensat, fd, 0, times, 0, 0);
}

static void make_file(i64 parent, const char *name, const char *path, struct record *r)
{
    int in_place = r->type == 'i';
    if (!in_place) {
        i64 removed = CALL(unlinkat, parent, name, 0, 0, 0);
        if (removed < 0 && removed != -ENOENT)
            fail(path, "is in the way", removed);
    }
    i64 fd = CALL(openat, parent, name,
                  O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (in_place ? O_TRUNC : O_CREAT | O_EXCL), 0600, 0);
    if (fd < 0)
        fail(path, "cannot be created", fd);
    for (u64 left = r->size; left;) {
        u64 n = left < sizeof buffer ? left : sizeof buffer;
        if (!receive(buffer, n))
            fail(path, "input ended too early", -EINVAL);
        for (u64 done = 0; done < n;) {
            i64 wrote = CALL(write, fd, buffer + done, n - done, 0, 0);
            if (wrote <= 0)
                fail(path, "cannot be written", wrote);
            done += (u64)wrote;
        }
        left -= n;
    }
    if (!in_place) {
        i64 owned = CALL(fchown, fd, r->uid, r->gid, 0, 0);
        if (owned < 0)
            fail(path, "cannot get its owner", owned);
        CALL(fchmod, fd, r->mode & 07777, 0, 0, 0);
        stamp(fd, r);
    }
    CALL(close, fd, 0, 0, 0, 0);
}

static void make_directory(i64 parent, const char *name, const char *path, const struct record *r)
{
    i64 fd = CALL(openat, parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd < 0) {
        i64 inside = enter(parent, name, 1, 1);
        if (inside < 0)
            fail(path, "cannot be made a folder", inside);
        CALL(close, inside, 0, 0, 0, 0);
        fd = CALL(openat, parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
        i64 owned = CALL(fchown, fd, r->uid, r->gid, 0, 0);
        if (owned < 0)
            fail(path, "cannot get its owner", owned);
        CALL(fchmod, fd, r->mode & 07777, 0, 0, 0);
    }
    CALL(close, fd, 0, 0, 0, 0);
}

static void remove_all(i64 parent, const char *name, const char *path, int depth)
{
    i64 gone = CALL(unlinkat, parent, name, 0, 0, 0);
    if (gone == 0 || gone == -ENOENT)
        return;
    i64 fd = CALL(openat, parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd < 0 || depth >= DEPTH_LIMIT)
        fail(path, "cannot be removed", fd < 0 ? gone : -ENAMETOOLONG);
    u8 entries[2048];
    i64 got;
    while ((got = CALL(getdents64, fd, entries, sizeof entries, 0, 0)) > 0)
        for (i64 at = 0; at < got; at += *(u16 *)(entries + at + 16)) {
            const char *entry = (const char *)entries + at + 19;
            if (!same(entry, ".") && !same(entry, ".."))
                remove_all(fd, entry, path, depth + 1);
        }
    CALL(close, fd, 0, 0, 0, 0);
    gone = CALL(unlinkat, parent, name, AT_REMOVEDIR, 0, 0);
    if (gone < 0)
        fail(path, "cannot be removed", gone);
}

static void unpack(void)
{
    static char path[PATH_LIMIT], shown[PATH_LIMIT], target[PATH_LIMIT];
    struct record r;
    while (receive(&r, sizeof r)) {
        char *last;
        if (r.path_length >= PATH_LIMIT || !receive(path, r.path_length))
            fail("input", "path too long", -ENAMETOOLONG);
        path[r.path_length] = 0;
        memcpy(shown, path, r.path_length + 1UL);
        i64 parent = walk(path, &last, r.type != 'x' && r.type != 'm');
        if (r.type == 'x' && (parent == -ENOENT || parent == -ENOTDIR || parent == -ELOOP))
            continue;
        if (parent < 0)
            fail(shown, "cannot be reached", parent);
        if (r.type == 'x') {
            remove_all(parent, last, shown, 0);
        } else if (r.type == 'f' || r.type == 'i') {
            make_file(parent, last, shown, &r);
        } else if (r.type == 'd') {
            make_directory(parent, last, shown, &r);
        } else if (r.type == 'm' && r.size && r.size < PATH_LIMIT && receive(target, r.size)) {
            target[r.size] = 0;
            for (const char *name = target; *name; name++)
                if (*name == '/')
                    fail(shown, "cannot leave its folder", -EINVAL);
            i64 renamed = CALL(renameat, parent, last, parent, target, 0);
            if (renamed < 0)
                fail(shown, "cannot be renamed", renamed);
        } else if (r.type == 'l' && r.size && r.size < PATH_LIMIT && receive(target, r.size)) {
            target[r.size] = 0;
            CALL(unlinkat, parent, last, 0, 0, 0);
            i64 made = CALL(symlinkat, target, parent, last, 0, 0);
            if (made < 0)
                fail(shown, "cannot be linked", made);
            CALL(fchownat, parent, last, r.uid, r.gid, AT_NOFOLLOW);
        } else {
            fail(shown, "unknown record", -EINVAL);
        }
        CALL(close, parent, 0, 0, 0, 0);
    }
}

static struct record describe(const struct stat *s, u64 path_length)
{
    u32 kind = s->mode & S_IFMT;
    struct record r = {0};
    r.type = kind == S_IFREG ? 'f' : kind == S_IFDIR ? 'd' : kind == S_IFLNK ? 'l' : 's';
    r.path_length = (u16)path_length;
    r.mode = s->mode & 07777;
    r.uid = s->uid;
    r.gid = s->gid;
    r.size = r.type == 'f' || r.type == 'l' ? (u64)s->size : 0;
    r.mtime = s->mtime;
    r.mtime_ns = s->mtime_ns;
    return r;
}

static void pack_file(i64 parent, const char *name, const char *path)
{
    struct stat s;
    i64 fd = CALL(openat, parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0, 0);
    if (fd < 0 || CALL(fstat, fd, &s, 0, 0, 0) < 0 || (s.mode & S_IFMT) != S_IFREG)
        fail(path, "changed while it was read", fd < 0 ? fd : -EINVAL);
    struct record r = describe(&s, length(path));
    send_all(1, &r, sizeof r);
    send_all(1, path, r.path_length);
    for (u64 left = r.size; left;) {
        i64 got = CALL(read, fd, buffer, left < sizeof buffer ? left : sizeof buffer, 0, 0);
        if (got <= 0)
            fail(path, "changed while it was read", -EINVAL);
        send_all(1, buffer, (u64)got);
        left -= (u64)got;
    }
    CALL(close, fd, 0, 0, 0, 0);
}

static char asked[PATH_LIMIT];

/* `path` is what the driver sees: relative to the place that was asked for, empty for that place itself. */
static void pack(i64 parent, const char *name, char *path, u64 n, int depth)
{
    struct stat s;
    i64 found = CALL(newfstatat, parent, name, &s, AT_NOFOLLOW, 0);
    if (found < 0)
        fail(n ? path : asked, "cannot be read", found);
    struct record r = describe(&s, n);
    if (r.type == 'f') {
        pack_file(parent, name, path);
        return;
    }
    if (r.type == 'l') {
        static char target[PATH_LIMIT];
        i64 got = CALL(readlinkat, parent, name, target, sizeof target, 0);
        if (got < 0)
            fail(path, "changed while it was read", got);
        r.size = (u64)got;
        send_all(1, &r, sizeof r);
        send_all(1, path, n);
        send_all(1, target, r.size);
        return;
    }
    send_all(1, &r, sizeof r);
    send_all(1, path, n);
    if (r.type != 'd')
        return;
    if (depth >= DEPTH_LIMIT)
        fail(path, "is nested too deep", -ENAMETOOLONG);
    i64 fd = CALL(openat, parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd < 0)
        fail(n ? path : asked, "changed while it was read", fd);
    u8 entries[2048];
    i64 got;
    while ((got = CALL(getdents64, fd, entries, sizeof entries, 0, 0)) > 0)
        for (i64 at = 0; at < got; at += *(u16 *)(entries + at + 16)) {
            const char *entry = (const char *)entries + at + 19;
            u64 extra = length(entry), separator = n > 0;
            if (same(entry, ".") || same(entry, ".."))
                continue;
            if (n + separator + extra + 1 > PATH_LIMIT)
                fail(path, "has too long a path", -ENAMETOOLONG);
            if (separator)
                path[n] = '/';
            memcpy(path + n + separator, entry, extra + 1);
            pack(fd, entry, path, n + separator + extra, depth + 1);
            path[n] = 0;
        }
    CALL(close, fd, 0, 0, 0, 0);
}

/* The folder that a place is in, and its name there. */
static i64 reach(char *place, char **last)
{
    u64 n = length(place);
    if (n >= PATH_LIMIT)
        fail(place, "path too long", -ENAMETOOLONG);
    memcpy(asked, place, n + 1);
    i64 parent = walk(place, last, 0);
    if (parent < 0)
        fail(asked, parent == -ELOOP ? "is behind a link" : "cannot be read", parent);
    return parent;
}

static void pack_tree(char *place)
{
    static char path[PATH_LIMIT];
    char *last;
    i64 parent = reach(place, &last);
    pack(parent, last, path, 0, 0);
}

static void describe_paths(void)
{
    static char path[PATH_LIMIT], shown[PATH_LIMIT], target[PATH_LIMIT];
    u64 n = 0;
    for (i64 got; (got = CALL(read, 0, buffer, sizeof buffer, 0, 0)) > 0;)
        for (i64 i = 0; i < got; i++) {
            if (n >= PATH_LIMIT)
                fail("input", "path too long", -ENAMETOOLONG);
            path[n++] = (char)buffer[i];
            if (buffer[i])
                continue;
            struct stat s;
            char *last;
            u64 shown_length = n - 1;
            memcpy(shown, path, n);
            n = 0;
            i64 parent = walk(path, &last, 0);
            struct record r = {0};
            i64 target_length = 0;
            r.type = '-';
            r.path_length = (u16)shown_length;
            if (parent >= 0 && CALL(newfstatat, parent, last, &s, AT_NOFOLLOW, 0) == 0)
                r = describe(&s, shown_length);
            if (r.type == 'l') {
                target_length = CALL(readlinkat, parent, last, target, sizeof target, 0);
                r.size = target_length > 0 ? (u64)target_length : 0;
            }
            CALL(close, parent, 0, 0, 0, 0);
            send_all(1, &r, sizeof r);
            send_all(1, shown, shown_length);
            if (target_length > 0)
                send_all(1, target, (u64)target_length);
        }
}

/* The kernel alone sets the time of change, so it holds where an agent has put back size and time of modification. Deeper and
 * longer paths than the limits are not in an image: an engine lists what is there as added. */
static void touched(i64 parent, const char *name, char *path, u64 n, int depth, const i64 *since, u64 device)
{
    i64 fd = CALL(openat, parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd < 0)
        return;
    u8 entries[2048];
    i64 got;
    while ((got = CALL(getdents64, fd, entries, sizeof entries, 0, 0)) > 0)
        for (i64 at = 0; at < got; at += *(u16 *)(entries + at + 16)) {
            const char *entry = (const char *)entries + at + 19;
            u64 extra = length(entry);
            struct stat s;
            if (same(entry, ".") || same(entry, "..") || n + extra + 2 > PATH_LIMIT ||
                CALL(newfstatat, fd, entry, &s, AT_NOFOLLOW, 0) < 0)
                continue;
            path[n] = '/';
            memcpy(path + n + 1, entry, extra + 1);
            if ((s.mode & S_IFMT) == S_IFDIR) {
                if (s.dev == device && depth < DEPTH_LIMIT)
                    touched(fd, entry, path, n + 1 + extra, depth + 1, since, device);
            } else if (s.ctime > since[0] || (s.ctime == since[0] && s.ctime_ns >= since[1])) {
                send_all(1, path, n + 1 + extra + 1);
            }
        }
    CALL(close, fd, 0, 0, 0, 0);
}

static void list_touched(i64 sec, i64 nsec, const char *folder)
{
    static char path[PATH_LIMIT];
    struct stat s;
    u64 n = length(folder);
    i64 since[2] = {sec, nsec}, found = CALL(newfstatat, AT_FDCWD, folder, &s, AT_NOFOLLOW, 0);
    if (found < 0 || n >= PATH_LIMIT)
        fail(folder, "cannot be read", found < 0 ? found : -ENAMETOOLONG);
    memcpy(path, folder, n + 1);
    touched(AT_FDCWD, folder, path, path[n - 1] == '/' ? n - 1 : n, 0, since, s.dev);
}

static void give(i64 parent, const char *name, u32 uid, u32 gid, int depth)
{
    struct stat s;
    i64 done = CALL(newfstatat, parent, name, &s, AT_NOFOLLOW, 0);
    if (done == 0 && s.uid == 0)
        done = CALL(fchownat, parent, name, uid, gid, AT_NOFOLLOW);
    if (done < 0)
        fail(asked, "cannot get its owner", done);
    if ((s.mode & S_IFMT) != S_IFDIR)
        return;
    i64 fd = CALL(openat, parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd < 0 || depth >= DEPTH_LIMIT)
        fail(asked, "cannot get its owner", fd < 0 ? fd : -ENAMETOOLONG);
    u8 entries[2048];
    i64 got;
    while ((got = CALL(getdents64, fd, entries, sizeof entries, 0, 0)) > 0)
        for (i64 at = 0; at < got; at += *(u16 *)(entries + at + 16)) {
            const char *entry = (const char *)entries + at + 19;
            if (!same(entry, ".") && !same(entry, ".."))
                give(fd, entry, uid, gid, depth + 1);
        }
    CALL(close, fd, 0, 0, 0, 0);
}

static void give_tree(char *place, u32 uid, u32 gid)
{
    char *last;
    i64 parent = reach(place, &last);
    give(parent, last, uid, gid, 0);
}

__attribute__((used, noreturn)) void start(i64 *stack)
{
    i64 count = *stack;
    char **args = (char **)(stack + 1), **environment = args + count + 1;
    const char *what = count > 1 ? args[1] : "";
    if (same(what, "hold") && count > 2)
        hold(args[2], count > 3 ? args + 3 : 0, environment);
    greet();
    if (same(what, "run") && count > 4)
        run(args + 2, environment);
    else if (same(what, "kill") && count == 4)
        send_signal(number(args[3]), number(args[2]));
    else if (same(what, "unpack"))
        unpack();
    else if (same(what, "pack") && count == 3)
        pack_tree(args[2]);
    else if (same(what, "stat"))
        describe_paths();
    else if (same(what, "touched") && count == 5)
        list_touched(number(args[2]), number(args[3]), args[4]);
    else if (same(what, "give") && count == 5)
        give_tree(args[4], (u32)number(args[2]), (u32)number(args[3]));
    else
        fail("anchor", "unknown command", -EINVAL);
    for (;;)
        leave(0);
}
