/*
 * Philox4x32-10: four random words from a counter of four words and a key of two (Salmon et al., Parallel
 * Random Numbers: As Easy as 1, 2, 3, 2011). LANES counters go through it at once.
 */
#include "vector.h"

#if LANES == 1
typedef uint words_t;
#else
typedef VECTOR_JOIN(uint, LANES) words_t;
#endif

void philox4x32(words_t counter[4], uint key_low, uint key_high)
{
    const words_t first = (words_t)(0xD2511F53U);
    const words_t second = (words_t)(0xCD9E8D57U);
    for (int number = 0; number < 10; number++) {
        const words_t high_0 = mul_hi(first, counter[0]);
        const words_t low_0 = first * counter[0];
        const words_t high_2 = mul_hi(second, counter[2]);
        const words_t low_2 = second * counter[2];
        counter[0] = high_2 ^ counter[1] ^ key_low;
        counter[1] = low_2;
        counter[2] = high_0 ^ counter[3] ^ key_high;
        counter[3] = low_0;
        key_low += 0x9E3779B9U;
        key_high += 0xBB67AE85U;
    }
}
