/* Runs a command and writes down which paths its programs look for in vain.
 *
 *   missed FILE FOLDER PROGRAM ...   run the program, named by its absolute path, and end as it does
 *
 * FILE gets a record for each thing once, ended by NUL: `-PATH` was looked for and does not exist, resolved as far as it
 * does, with `//` where that ends; `~PATH` likewise, by a program that was given its name, by the script of the verifier
 * itself, or by a program or script in FOLDER; `+PATH` was found, `@PATH` executed; `<PATH` was found in /etc or
 * /opt by a program that was not given its name; `=PATH` is a folder that was listed, or would be if it existed; `?` if a
 * program could not be followed; `!` if there was more than fits. Only system calls that look up a path stop the programs;
 * all others run at full speed.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#if defined(__x86_64__)
enum { NR_read = 0, NR_write = 1, NR_open = 2, NR_close = 3, NR_stat = 4, NR_lstat = 6, NR_access = 21, NR_clone = 56, NR_execve = 59,
       NR_exit = 60, NR_wait4 = 61, NR_kill = 62, NR_readlink = 89, NR_ptrace = 101, NR_prctl = 157, NR_openat = 257,
       NR_getdents64 = 217, NR_newfstatat = 262, NR_readlinkat = 267, NR_faccessat = 269, NR_pipe2 = 293, NR_process_vm_readv = 310,
       NR_seccomp = 317, NR_execveat = 322, NR_statx = 332, NR_openat2 = 437, NR_faccessat2 = 439 };
enum { AUDIT_ARCH = 0xC000003E, O_DIRECTORY = 0200000, MODE = 6 }; /* and where the mode is in the status of a file */
static i64 call(i64 n, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f)
{
    i64 result;
    register i64 r10 __asm__("r10") = d;
    register i64 r8 __asm__("r8") = e;
    register i64 r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
#elif defined(__aarch64__)
enum { NR_read = 63, NR_write = 64, NR_close = 57, NR_clone = 220, NR_execve = 221, NR_exit = 93, NR_wait4 = 260, NR_kill = 129,
       NR_getdents64 = 61, NR_ptrace = 117, NR_prctl = 167, NR_openat = 56, NR_newfstatat = 79, NR_readlinkat = 78, NR_faccessat = 48,
       NR_pipe2 = 59, NR_process_vm_readv = 270, NR_seccomp = 277, NR_execveat = 281, NR_statx = 291, NR_openat2 = 437,
       NR_faccessat2 = 439 };
enum { AUDIT_ARCH = 0xC00000B7, O_DIRECTORY = 040000, MODE = 4 };
static i64 call(i64 n, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f)
{
    register i64 x8 __asm__("x8") = n;
    register i64 x0 __asm__("x0") = a;
    register i64 x1 __asm__("x1") = b;
    register i64 x2 __asm__("x2") = c;
    register i64 x3 __asm__("x3") = d;
    register i64 x4 __asm__("x4") = e;
    register i64 x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n b start\n");
#else
#error "missed knows x86-64 and aarch64"
#endif

#define CALL(name, a, b, c, d, e) call(NR_##name, (i64)(a), (i64)(b), (i64)(c), (i64)(d), (i64)(e), 0)

enum { EPERM = 1, ENOENT = 2, ENOTDIR = 20, ENOSYS = 38, AT_FDCWD = -100, O_WRONLY = 1, O_APPEND = 02000, O_PATH = 010000000, O_CLOEXEC = 02000000, AT_EMPTY_PATH = 0x1000, SIGCHLD = 17 };
enum { TRACE_PEEK = 2, TRACE_CONT = 7, TRACE_SYSCALL = 24, TRACE_MESSAGE = 0x4201, TRACE_SEIZE = 0x4206, TRACE_LISTEN = 0x4208, TRACE_SYSCALL_INFO = 0x420e };
enum { FOLLOW = 1 | 2 | 4 | 8 | 16 | 128 | 0x100000 }; /* good stops, fork, vfork, clone, exec, seccomp, kill at exit */
enum { EVENT_FORK = 1, EVENT_CLONE = 3, EVENT_EXEC = 4, EVENT_SECCOMP = 7, EVENT_STOP = 128, SIGTRAP = 5, SIGSTOP = 19, SIGTTOU = 22, WALL = 0x40000000 };
enum { PR_SET_NO_NEW_PRIVS = 38, SECCOMP_FILTER = 1, RET_TRACE = 0x7ff00000, RET_ALLOW = 0x7fff0000 };
enum { REFUSED = 125, NOT_FOUND = 127, LONGEST = 4096, TASKS = 1024, SEEN = 1 << 20, DEEPEST = 40 };

/* The calls that look up a path, and which of their values is the path; those at 1 have the folder before it. One has the
 * descriptor of a folder instead, and lists it. The last one is that of a program that wants to follow others itself, which
 * it then cannot, and ends too early. */
static const struct { u32 number, path; } calls[] = {
#if defined(__x86_64__)
    {NR_open, 0}, {NR_stat, 0}, {NR_lstat, 0}, {NR_access, 0}, {NR_readlink, 0},
#endif
    {NR_execve, 0}, {NR_openat, 1}, {NR_newfstatat, 1}, {NR_readlinkat, 1}, {NR_faccessat, 1}, {NR_execveat, 1}, {NR_statx, 1},
    {NR_openat2, 1}, {NR_faccessat2, 1}, {NR_getdents64, 0}, {NR_ptrace, 0},
};
enum { CALLS = sizeof calls / sizeof *calls };

struct instruction { u16 code; u8 yes, no; u32 value; };
struct filter { u16 count; struct instruction *all; };
struct vector { void *base; u64 size; };
/* What the kernel says of a stop; `values` are the number of the call and its arguments, or what it returned. */
struct stop { u8 op, pad[3]; u32 arch; u64 at, stack; i64 values[8]; };
struct task { i64 id; int known, waiting, scripted, folder; char path[LONGEST]; };

static struct task tasks[TASKS];
static u64 seen[SEEN];
static u32 seen_count;
static i64 out;
static const char *folder;

static void leave(int code)
{
    for (;;)
        CALL(exit, code, 0, 0, 0, 0);
}

/* Copies what fits, and gives where the copy ends. */
static char *append(char *to, const char *end, const char *text)
{
    while (*text && to < end)
        *to++ = *text++;
    *to = 0;
    return to;
}

static char *append_number(char *to, const char *end, i64 number)
{
    char digits[24], *first = digits + 23;
    *first = 0;
    do
        *--first = '0' + number % 10;
    while (number /= 10);
    return append(to, end, first);
}

static void write_record(char kind, const char *text)
{
    static char record[LONGEST + 2];
    record[0] = kind;
    char *end = append(record + 1, record + LONGEST, text);
    CALL(write, out, record, end + 1 - record, 0, 0);
}

/* Whether a text comes for the first time; once the table is full nothing does. */
static int is_new(char kind, const char *text)
{
    u64 hash = 14695981039346656037UL ^ (u8)kind;
    for (; *text; text++)
        hash = (hash ^ (u8)*text) * 1099511628211UL;
    hash += !hash;
    for (u64 place = hash % SEEN;; place = (place + 1) % SEEN) {
        if (seen[place] == hash)
            return 0;
        if (!seen[place]) {
            if (seen_count == SEEN / 2)
                write_record('!', "");
            if (seen_count++ >= SEEN / 2)
                return 0;
            seen[place] = hash;
            return 1;
        }
    }
}

static void record_once(char kind, const char *text)
{
    if (is_new(kind, text))
        write_record(kind, text);
}

/* Records a path of which so many of the last parts do not exist. */
static void record_parted(char kind, const char *path, int missing)
{
    static char parted[LONGEST + 1];
    const char *first = path;
    while (*first)
        first++;
    while (missing && first > path)
        missing -= *--first == '/';
    char *to = parted;
    while (path < first)
        *to++ = *path++;
    append(append(to, parted + LONGEST, "/"), parted + LONGEST, first);
    record_once(kind, parted);
}

/* Follows links as the kernel would, part by part, and records what is left once a part does not exist. What `..` after
 * such a part leads to exists only with it, so that both are recorded. */
static void record_missing(char kind, const char *path)
{
    static char left[2 * LONGEST], next[2 * LONGEST], target[LONGEST], done[LONGEST];
    char *end = done;
    const char *rest = left;
    int links = 0, missing = 0;
    append(left, left + sizeof left - 1, path);
    *end = 0;
    while (*rest) {
        char part[256], *stop = part;
        while (*rest == '/')
            rest++;
        while (*rest && *rest != '/' && stop < part + sizeof part - 1)
            *stop++ = *rest++;
        *stop = 0;
        if (*rest && *rest != '/')
            return; /* no name is that long */
        if (!*part || (part[0] == '.' && !part[1]))
            continue;
        if (part[0] == '.' && part[1] == '.' && !part[2]) {
            if (missing) {
                record_parted(kind, done, missing);
                missing--;
            }
            while (end > done && *--end != '/')
                ;
            *end = 0;
            continue;
        }
        if (end + (stop - part) + 2 >= done + LONGEST)
            return;
        char *before = end;
        end = append(append(end, done + LONGEST - 1, "/"), done + LONGEST - 1, part);
        i64 size = missing ? -ENOENT : CALL(readlinkat, AT_FDCWD, done, target, LONGEST - 1, 0);
        if (size == -ENOENT || size == -ENOTDIR) {
            missing++;
        } else if (size > 0) {
            if (++links > DEEPEST)
                return;
            target[size] = 0;
            char *to = append(append(next, next + sizeof next - 1, target), next + sizeof next - 1, "/");
            append(to, next + sizeof next - 1, rest);
            append(left, left + sizeof left - 1, next);
            rest = left;
            end = *target == '/' ? done : before;
            *end = 0;
        }
    }
    if (missing)
        record_parted(kind, done, missing);
}

static int is_of_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

static const char *last_part(const char *path)
{
    const char *last = path;
    for (; *path; path++)
        if (*path == '/' && path[1] && path[1] != '/')
            last = path + 1;
    return last;
}

/* Where a task is remembered between the beginning and the end of its call; none if there are too many. */
static struct task *task_of(i64 id, int add)
{
    struct task *unused = 0;
    for (u64 i = 0; i < TASKS; i++) {
        struct task *task = &tasks[(id + i) % TASKS];
        if (task->id == id)
            return task;
        if (task->id <= 0 && !unused)
            unused = task;
        if (!task->id)
            break;
    }
    if (!add || !unused)
        return 0;
    unused->id = id;
    unused->known = unused->waiting = unused->scripted = 0;
    unused->path[0] = 0;
    return unused;
}

/* Reads some bytes of another process, at most to the end of a page, after which there may be none. Engines refuse the
 * call that reads them all at once to containers without the right to trace others; word by word it is part of tracing. */
static i64 read_some(i64 id, u64 address, char *text, u64 most)
{
    static int refused;
    u64 size = 4096 - address % 4096, word;
    size = size > most ? most : size;
    struct vector to = {text, size}, from = {(void *)address, size};
    i64 got = refused ? -EPERM : call(NR_process_vm_readv, id, (i64)&to, 1, (i64)&from, 1, 0);
    if (got != -EPERM && got != -ENOSYS)
        return got;
    refused = 1;
    got = CALL(ptrace, TRACE_PEEK, id, address & ~7UL, &word, 0);
    if (got == -EPERM || got == -ENOSYS)
        record_once('?', "");
    for (u64 i = address % 8; got >= 0 && i < 8 && most; i++, most--)
        text[got++] = word >> 8 * i;
    return got;
}

static int read_text(i64 id, u64 address, char *text, const char *end)
{
    while (text < end) {
        i64 got = read_some(id, address, text, end - text);
        if (got <= 0)
            return 0;
        for (i64 i = 0; i < got; i++)
            if (!text[i])
                return 1;
        text += got;
        address += got;
    }
    return 0;
}

/* The folder that a relative path starts from, as a path. */
static char *read_base(i64 id, i64 folder, char *to, const char *end)
{
    char place[64], *last = append(place, place + 63, "/proc/");
    last = append_number(last, place + 63, id);
    if ((int)folder == AT_FDCWD)
        append(last, place + 63, "/cwd");
    else
        append_number(append(last, place + 63, "/fd/"), place + 63, (int)folder);
    i64 size = CALL(readlinkat, AT_FDCWD, place, to, end - to, 0);
    if (size <= 0 || *to != '/')
        return 0;
    to[size] = 0;
    return append(to + size, end, "/");
}

static int starts_with(const char *text, const char *start)
{
    while (*start && *text == *start)
        text++, start++;
    return !*start;
}

/* Whether a program is in the folder, or was given a file there first: then it runs what is not the verifier's. */
static int runs_work(i64 id, const char *words, i64 size)
{
    char place[64], path[LONGEST], *end = path + LONGEST - 1, *to;
    struct { u64 parts[18]; } status;
    char *last = append_number(append(place, place + 63, "/proc/"), place + 63, id);
    append(last, place + 63, "/exe");
    i64 got = CALL(readlinkat, AT_FDCWD, place, path, LONGEST - 1, 0), at = 0;
    path[got > 0 ? got : 0] = 0;
    u64 n = 0;
    while (folder[n])
        n++;
    if (starts_with(path, folder) && path[n] == '/')
        return 1;
    while (at < size && words[at])
        at++;
    for (at++; at < size && (words[at] == '-' || !words[at]); at++)
        while (at < size && words[at])
            at++;
    if (at >= size)
        return 0;
    to = words[at] == '/' ? path : read_base(id, AT_FDCWD, path, end);
    if (!to)
        return 0;
    append(to, end, words + at);
    i64 file = CALL(openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0, 0);
    if (file < 0)
        return 0;
    append_number(append(place, place + 63, "/proc/self/fd/"), place + 63, file);
    got = CALL(readlinkat, AT_FDCWD, place, path, LONGEST - 1, 0);
    path[got > 0 ? got : 0] = 0;
    i64 known = CALL(newfstatat, file, "", &status, AT_EMPTY_PATH, 0);
    CALL(close, file, 0, 0, 0, 0);
    return starts_with(path, folder) && path[n] == '/' && known >= 0 && (*((u32 *)&status + MODE) & 0170000) == 0100000;
}

/* Whether the name of a path stands, as a word, among the arguments of a program, or the program is not the verifier's. */
static int is_argument(i64 id, const char *path)
{
    static char words[1 << 16];
    char place[64];
    const char *name = last_part(path);
    append(append_number(append(place, place + 63, "/proc/"), place + 63, id), place + 63, "/cmdline");
    i64 file = CALL(openat, AT_FDCWD, place, O_CLOEXEC, 0, 0);
    if (file < 0)
        return 0;
    i64 size = CALL(read, file, words, sizeof words - 1, 0, 0), at = 0;
    CALL(close, file, 0, 0, 0, 0);
    words[size > 0 ? size : 0] = 0;
    while (at < size && words[at]) /* its own name */
        at++;
    if (size > 0 && runs_work(id, words, size))
        return 1;
    for (at++; at < size; at++) {
        i64 same = 0, from = at;
        while (name[same] && name[same] != '/' && at + same < size && words[at + same] == name[same])
            same++;
        if (!same || (name[same] && name[same] != '/') || is_of_name(words[at - 1]) || is_of_name(words[at + same]))
            continue;
        const char *before = name;
        while (before > path && from > 1 && words[from - 1] == before[-1])
            from--, before--;
        if (words[from - 1] != '/' && !is_of_name(words[from - 1])) /* nothing of another path is before it */
            return 1;
    }
    return 0;
}

/* Whether a task runs a shell: what it looks for after it has opened a script of the verifier, that script looks for. */
static int is_shell(i64 id)
{
    char place[64], program[LONGEST];
    append(append_number(append(place, place + 63, "/proc/"), place + 63, id), place + 63, "/exe");
    i64 size = CALL(readlinkat, AT_FDCWD, place, program, LONGEST - 1, 0);
    if (size <= 0)
        return 0;
    program[size] = 0;
    const char *name = last_part(program);
    u64 n = 0;
    while (name[n])
        n++;
    return starts_with(name, "busybox") || (n >= 2 && name[n - 2] == 's' && name[n - 1] == 'h');
}

static int is_setting(const char *path)
{
    return starts_with(path, "/etc/") || starts_with(path, "/opt/");
}

/* Records a path that exists, and if it is among settings and nobody names it, once more: as it was spelled, and where links
 * lead. */
static void record_found(i64 id, struct task *task)
{
    static char real[LONGEST];
    char place[64];
    int first = is_new('+', task->path), spelled = is_setting(task->path);
    if (first)
        write_record('+', task->path);
    if (task->scripted || !(first || spelled))
        return;
    i64 file = CALL(openat, AT_FDCWD, task->path, O_PATH | O_CLOEXEC, 0, 0);
    if (file >= 0) {
        append_number(append(place, place + 63, "/proc/self/fd/"), place + 63, file);
        i64 size = CALL(readlinkat, AT_FDCWD, place, real, LONGEST - 1, 0);
        real[size > 0 ? size : 0] = 0;
        CALL(close, file, 0, 0, 0, 0);
    }
    int led = file >= 0 && is_setting(real);
    if (!(spelled || led) || is_argument(id, task->path))
        return;
    if (spelled)
        record_once('<', task->path);
    if (led)
        record_once('<', real);
}

static void begin_call(i64 id)
{
    struct stop stop;
    if (CALL(ptrace, TRACE_SYSCALL_INFO, id, sizeof stop, &stop, 0) <= 0)
        return;
    struct task *task = task_of(id, 1);
    if (!task)
        return;
    char *end = task->path + LONGEST - 1, *to = task->path;
    *to = 0;
    if (stop.arch != AUDIT_ARCH || stop.values[0] == NR_ptrace) {
        record_once('?', "");
        return;
    }
    for (u64 i = 0; i < CALLS; i++) {
        if (calls[i].number != (u64)stop.values[0])
            continue;
        u64 address = stop.values[1 + calls[i].path];
        task->folder = calls[i].number == NR_openat && stop.values[3] & O_DIRECTORY;
        if (calls[i].number == NR_getdents64) {
            to = read_base(id, address, to, end);
            if (to)
                to[-1] = 0;
            if (to && task->path[0])
                record_once('=', task->path);
            task->path[0] = 0;
        } else if (!read_text(id, address, to, end)) {
            *to = 0;
        } else if (*to && *to != '/') {
            to = read_base(id, calls[i].path ? stop.values[1] : AT_FDCWD, to, end);
            if (!to || !read_text(id, address, to, end))
                task->path[0] = 0;
        }
        *end = 0;
        return;
    }
}

static void end_call(i64 id, i64 result)
{
    struct task *task = task_of(id, 0);
    if (!task || !task->path[0])
        return;
    if (result == -ENOENT || result == -ENOTDIR) {
        char kind = task->scripted || is_argument(id, task->path) ? '~' : '-';
        if (is_new(kind == '~' ? '?' : '*', task->path)) /* as it was spelled, to resolve it once */
            record_missing(kind, task->path);
        if (task->folder && is_new('/', task->path))
            record_missing('=', task->path);
    } else if (result >= 0) {
        record_found(id, task);
        if (starts_with(task->path, "/verifier/") || starts_with(task->path, "/tests/"))
            task->scripted = task->scripted || is_shell(id);
    }
    task->path[0] = 0;
}

/* A new task is still the script that made it, until it becomes another program. It may have stopped before its parent says
 * that it was made, and then waits for that. */
static void inherit(i64 id)
{
    u64 child = 0;
    struct task *task = task_of(id, 0);
    int scripted = task && task->scripted;
    if (CALL(ptrace, TRACE_MESSAGE, id, 0, &child, 0) < 0)
        return;
    struct task *made = task_of(child, 1);
    if (!made)
        return;
    made->known = 1;
    made->scripted = scripted;
    if (made->waiting)
        CALL(ptrace, TRACE_CONT, child, 0, 0, 0);
    made->waiting = 0;
}

static void follow_stop(i64 id, u32 status)
{
    u32 signal = status >> 8 & 0xff, event = status >> 16;
    if (event == EVENT_SECCOMP) {
        begin_call(id);
        CALL(ptrace, TRACE_SYSCALL, id, 0, 0, 0);
    } else if (event == EVENT_STOP && signal >= SIGSTOP && signal <= SIGTTOU) {
        CALL(ptrace, TRACE_LISTEN, id, 0, 0, 0);
    } else if (event) {
        struct task *task = task_of(id, event == EVENT_STOP);
        if (event == EVENT_STOP && task && !task->known) {
            task->waiting = 1;
            return;
        }
        if (event == EVENT_EXEC && task && task->path[0])
            record_once('@', task->path);
        if (event == EVENT_EXEC)
            end_call(id, 0);
        if (event == EVENT_EXEC && task)
            task->scripted = 0;
        if (event >= EVENT_FORK && event <= EVENT_CLONE)
            inherit(id);
        CALL(ptrace, TRACE_CONT, id, 0, 0, 0);
    } else if (signal == (SIGTRAP | 0x80)) {
        struct stop stop;
        if (CALL(ptrace, TRACE_SYSCALL_INFO, id, sizeof stop, &stop, 0) > 0)
            end_call(id, stop.values[0]);
        CALL(ptrace, TRACE_CONT, id, 0, 0, 0);
    } else {
        CALL(ptrace, TRACE_CONT, id, 0, signal, 0);
    }
}

static void follow(i64 first)
{
    task_of(first, 1)->known = 1;
    for (;;) {
        u32 status = 0;
        i64 id = CALL(wait4, -1, &status, WALL, 0, 0);
        if (id < 0)
            leave(REFUSED);
        if ((status & 0xff) == 0x7f) {
            follow_stop(id, status);
            continue;
        }
        struct task *task = task_of(id, 0);
        if (task)
            task->id = -1; /* others may have been put behind it */
        if (id == first)
            leave(status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff);
    }
}

static i64 install_filter(void)
{
    static struct instruction all[CALLS + 5];
    all[0] = (struct instruction){0x20, 0, 0, 4}; /* the machine that the call is for, then its number */
    all[1] = (struct instruction){0x15, 0, CALLS + 2, AUDIT_ARCH};
    all[2] = (struct instruction){0x20, 0, 0, 0};
    for (u32 i = 0; i < CALLS; i++)
        all[3 + i] = (struct instruction){0x15, CALLS - i, 0, calls[i].number};
    all[3 + CALLS] = (struct instruction){6, 0, 0, RET_ALLOW};
    all[4 + CALLS] = (struct instruction){6, 0, 0, RET_TRACE};
    struct filter filter = {CALLS + 5, all};
    CALL(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return CALL(seccomp, SECCOMP_FILTER, 0, &filter, 0, 0);
}

__attribute__((used)) static void start(i64 *stack)
{
    char **words = (char **)(stack + 1), **env = words + *stack + 1;
    int ends[2];
    if (*stack < 4)
        leave(REFUSED);
    folder = words[2];
    out = CALL(openat, AT_FDCWD, words[1], O_WRONLY | O_APPEND | O_CLOEXEC, 0, 0);
    if (out < 0 || CALL(pipe2, ends, O_CLOEXEC, 0, 0, 0) < 0)
        leave(REFUSED);
    i64 child = CALL(clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        char followed = 0;
        CALL(read, ends[0], &followed, 1, 0, 0);
        if (followed && install_filter() < 0)
            write_record('?', "");
        CALL(execve, words[3], words + 3, env, 0, 0);
        leave(NOT_FOUND);
    }
    if (child < 0)
        leave(REFUSED);
    char followed = CALL(ptrace, TRACE_SEIZE, child, 0, FOLLOW, 0) >= 0;
    if (!followed)
        write_record('?', "");
    CALL(write, ends[1], &followed, 1, 0, 0);
    follow(child);
}
