/* How a command enters a sandbox: a list of system calls, made by the supervisor, is followed until one of them replaces
 * this program by the command.
 *
 *   entry once           follow the list in the file behind descriptor 3
 *   entry serve GROUPS   join the control groups behind descriptors 4 to 3 + GROUPS, then start a sibling for every request
 *                        on the socket behind descriptor 3, which gets the list and the command's streams with it
 *
 * It is small so that starting it costs nothing: the supervisor is an interpreter, whose copy takes longer than most
 * commands. It decides nothing: what is called, with which values and what an error means, stands in the list.
 */

typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#if defined(__x86_64__)
enum { NR_write = 1, NR_close = 3, NR_lseek = 8, NR_mmap = 9, NR_recvmsg = 47, NR_clone = 56, NR_exit = 60, NR_prctl = 157,
       NR_unshare = 272, NR_dup3 = 292, NR_setns = 308 };
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
enum { NR_write = 64, NR_close = 57, NR_lseek = 62, NR_mmap = 222, NR_recvmsg = 212, NR_clone = 220, NR_exit = 93,
       NR_prctl = 167, NR_unshare = 97, NR_dup3 = 24, NR_setns = 268 };
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
#error "entry knows x86-64 and aarch64"
#endif

#define CALL(name, a, b, c, d) call(NR_##name, (i64)(a), (i64)(b), (i64)(c), (i64)(d), 0, 0)

enum { ENOENT = 2, ENOTDIR = 20 };
enum { REQUEST = 3, FIRST_GROUP = 4, NOT_CONFINED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127 };
enum { PR_SET_DUMPABLE = 4, CLONE_PARENT = 0x8000, CLONE_NEWCGROUP = 0x02000000, CLONE_NEWUTS = 0x04000000, SIGCHLD = 17 };
enum { LIST, STDIN, STDOUT, STDERR, TAG, PASSED };

/* The list lies at this address; all addresses in it are absolute. */
#define BASE 0x200000000UL

enum rule { FAIL, GO_ON, TRY };
struct step { i64 number, values[6], rule; const char *text; i64 code; };
struct list { struct { struct step *steps; i64 count; } parts[2]; const char **reasons; i64 reason_count; const char *name; };

static void leave(int code)
{
    for (;;)
        CALL(exit, code, 0, 0, 0);
}

static void say(const char *text)
{
    u64 n = 0;
    while (text[n])
        n++;
    CALL(write, 2, text, n, 0);
}

static void complain(const struct list *list, const char *what, i64 error)
{
    say(what);
    say(": ");
    say(error == 0 ? "not found" : -error < list->reason_count ? list->reasons[-error] : "unknown error");
    say("\n");
}

/* A call that is only tried may fail; the first reason that is not just "nothing there" is told when no try replaces us. */
static void follow(int fd)
{
    i64 size = CALL(lseek, fd, 0, 2, 0), problem = 0;
    struct list *list = (struct list *)BASE;
    if (size <= 0 || call(NR_mmap, BASE, size, 3, 0x100002, fd, 0) != (i64)BASE) /* private, never over something else */
        leave(NOT_CONFINED);
    for (int part = 0; part < 2; part++)
        for (i64 i = 0; i < list->parts[part].count; i++) {
            struct step *step = list->parts[part].steps + i;
            i64 *v = step->values, result = call(step->number, v[0], v[1], v[2], v[3], v[4], v[5]);
            if (result >= 0 || step->rule == GO_ON)
                continue;
            if (step->rule == TRY) {
                if (!problem && result != -ENOENT && result != -ENOTDIR)
                    problem = result;
                continue;
            }
            complain(list, step->text, result);
            leave((int)step->code);
        }
    complain(list, list->name, problem);
    leave(problem ? NOT_EXECUTABLE : NOT_FOUND);
}

struct message { void *name; u32 name_length, pad; struct { void *base; u64 size; } *data; u64 count; void *control;
                 u64 control_length; int flags, pad2; };

static void serve(int groups)
{
    struct { u64 length; int level, type; int fds[PASSED + 1]; } control;
    char byte;
    struct { void *base; u64 size; } data = {&byte, 1};
    i64 error = 0;
    for (int fd = FIRST_GROUP; fd < FIRST_GROUP + groups; fd++) {
        i64 result = CALL(write, fd, "0", 1, 0);
        if (result < 0)
            error = result;
        CALL(close, fd, 0, 0, 0);
    }
    if (!error)
        error = CALL(unshare, CLONE_NEWCGROUP, 0, 0, 0); /* the group is the root of what commands see */
    CALL(write, REQUEST, &error, sizeof error, 0);
    while (!error) {
        struct message message = {0, 0, 0, (void *)&data, 1, &control, sizeof control, 0, 0};
        if (CALL(recvmsg, REQUEST, &message, 0, 0) <= 0)
            break;
        i64 pid = CALL(clone, CLONE_PARENT | SIGCHLD, 0, 0, 0);
        if (pid == 0) {
            for (int fd = 0; fd < 3; fd++)
                CALL(dup3, control.fds[STDIN + fd], fd, 0, 0);
            if (CALL(setns, control.fds[TAG], CLONE_NEWUTS, 0, 0) < 0)
                leave(NOT_CONFINED);
            follow(control.fds[LIST]);
        }
        for (int i = 0; i < PASSED; i++)
            CALL(close, control.fds[i], 0, 0, 0);
        CALL(write, REQUEST, &pid, sizeof pid, 0);
    }
    leave(0);
}

__attribute__((used)) static void start(i64 *stack)
{
    char **arguments = (char **)(stack + 1);
    CALL(prctl, PR_SET_DUMPABLE, 0, 0, 0); /* nobody inside may look at it or steer it */
    if (*stack == 3 && arguments[1][0] == 's')
        serve(arguments[2][0] - '0');
    if (*stack == 2)
        follow(REQUEST);
    leave(NOT_CONFINED);
}
