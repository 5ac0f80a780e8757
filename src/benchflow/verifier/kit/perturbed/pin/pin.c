/* Runs a command on one processor, the first that this process may use.
 *
 *   pin               say by the exit code whether it can: 0, 3 if there is only one processor anyway, 125 if it is refused
 *   pin PROGRAM ...   become that program, with its absolute path
 */

typedef unsigned long u64;
typedef long i64;

#if defined(__x86_64__)
enum { NR_execve = 59, NR_exit = 60, NR_sched_setaffinity = 203, NR_sched_getaffinity = 204 };
static i64 call(i64 n, i64 a, i64 b, i64 c)
{
    i64 result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
#elif defined(__aarch64__)
enum { NR_execve = 221, NR_exit = 93, NR_sched_setaffinity = 122, NR_sched_getaffinity = 123 };
static i64 call(i64 n, i64 a, i64 b, i64 c)
{
    register i64 x8 __asm__("x8") = n;
    register i64 x0 __asm__("x0") = a;
    register i64 x1 __asm__("x1") = b;
    register i64 x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n b start\n");
#else
#error "pin knows x86-64 and aarch64"
#endif

enum { WORDS = 128, ONLY_ONE = 3, REFUSED = 125, NOT_FOUND = 127 };

static u64 mask[WORDS];

static void leave(int code)
{
    for (;;)
        call(NR_exit, code, 0, 0);
}

/* Keeps the first processor of the mask and gives the number of those that were in it. */
static int keep_first(i64 words)
{
    int count = 0;
    for (i64 i = 0; i < words; i++) {
        u64 left = mask[i];
        mask[i] = 0;
        if (!count)
            mask[i] = left & -left;
        for (; left; left &= left - 1)
            count++;
    }
    return count;
}

__attribute__((used)) static void start(i64 *stack)
{
    char **arguments = (char **)(stack + 1);
    i64 size = call(NR_sched_getaffinity, 0, sizeof mask, (i64)mask);
    if (size <= 0)
        leave(REFUSED);
    int count = keep_first(size / (i64)sizeof *mask);
    if (*stack == 1 && count == 1)
        leave(ONLY_ONE);
    if (call(NR_sched_setaffinity, 0, size, (i64)mask) < 0)
        leave(REFUSED);
    if (*stack == 1)
        leave(0);
    call(NR_execve, (i64)arguments[1], (i64)(arguments + 1), (i64)(arguments + *stack + 1));
    leave(NOT_FOUND);
}
