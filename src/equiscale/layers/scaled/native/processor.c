/* Which of the instruction sets that kernel.c was compiled for this processor and system have. */

#if defined(__x86_64__)
#include <cpuid.h>

/* Whether all these bits of a word are set. */
static int has(unsigned word, unsigned bits) { return (word & bits) == bits; }

/* Vector registers that the system saves: bits 1 and 2 for AVX, also 5 to 7 for AVX-512. */
static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static const char *find_instructions(void)
{
    const unsigned FMA = 1u << 12, OSXSAVE = 1u << 27, AVX2 = 1u << 5;
    const unsigned AVX512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* f, dq, bw, vl */
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, FMA | OSXSAVE))
        return "baseline";
    unsigned saved = saved_registers();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, AVX2) || !has(saved, 0x06))
        return "baseline";
    return has(b, AVX512) && has(saved, 0xe6) ? "avx512" : "avx2";
}
#else
static const char *find_instructions(void) { return "baseline"; }
#endif

EXPORTED const char *equiscale_instructions(void) { return find_instructions(); }
