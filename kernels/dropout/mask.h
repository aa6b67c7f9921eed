/*
 * The random words of dropout: element e of the step's sample n has word e % 4 of philox4x32(counter = (e / 4, n,
 * ORDINAL, step), key = (seed low, seed high)); it is kept if the word is at least THRESHOLD. Elements are
 * numbered e = (z * height + y) * width + x, whatever the memory looks like.
 */
#include "dropout/philox.h"

/* Elements that one call of dropout_words covers. */
#define BLOCK (4 * LANES)

/* The words of the elements from 4 * group on; ``step`` is seed low, seed high, step. */
void dropout_words(uint words[BLOCK], const int group, const int n, __global const uint *step)
{
    union {
        words_t vectors[4];
        uint values[4][LANES];
    } counter;
    for (int lane = 0; lane < LANES; lane++) {
        counter.values[0][lane] = group + lane;
    }
    counter.vectors[1] = (words_t)(n);
    counter.vectors[2] = (words_t)(ORDINAL);
    counter.vectors[3] = (words_t)(step[2]);
    philox4x32(counter.vectors, step[0], step[1]);
    for (int lane = 0; lane < LANES; lane++) {
        for (int word = 0; word < 4; word++) {
            words[4 * lane + word] = counter.values[word][lane];
        }
    }
}
