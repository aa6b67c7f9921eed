/*
 * A product on tensor cores (tensor_core.h): a work-group makes TILE_UNITS x TILE_COLUMNS sums, a warp WARP_UNITS x
 * WARP_COLUMNS of them in fragments of 16 x 8. STAGES steps of both factors, STAGE_ELEMENTS values each, lie in local
 * memory or are on their way there.
 */
#define WARPS_X (TILE_COLUMNS / WARP_COLUMNS)
#define WARPS_Y (TILE_UNITS / WARP_UNITS)
#define WARPS (WARPS_X * WARPS_Y)
#define ITEMS (32 * WARPS)
#include "local_copy.h"
#include "tensor_core.h"

#define WARP_X (WARP % WARPS_X)
#define WARP_Y (WARP / WARPS_X)
#define UNIT_FRAGMENTS (WARP_UNITS / 16)
#define COLUMN_FRAGMENTS (WARP_COLUMNS / 8)

typedef real_t sums_t[UNIT_FRAGMENTS][COLUMN_FRAGMENTS][4];

INLINE void clear(sums_t sums)
{
    UNROLL
    for (int u = 0; u < UNIT_FRAGMENTS; u++) {
        UNROLL
        for (int c = 0; c < COLUMN_FRAGMENTS; c++) {
            UNROLL
            for (int i = 0; i < 4; i++) {
                sums[u][c][i] = 0;
            }
        }
    }
}

/*
 * COPY(stage, step) begins to copy a step; LOAD(part, stage, k) takes the k-th of its FRAGMENT_STEPS (an even number)
 * into fragments `part`, 0 or 1; MULTIPLY(part) adds the product of those. Loads run one ahead of products, copies
 * STAGES - 1 steps.
 */
#define PIPELINE(STEPS, MEMORY, COPY, LOAD, MULTIPLY)                                \
    do {                                                                             \
        for (int step = 0; step < STAGES - 1; step++) {                              \
            if (step < (STEPS)) {                                                    \
                COPY((MEMORY) + step * STAGE_ELEMENTS, step);                        \
            }                                                                        \
            END_COPIES();                                                            \
        }                                                                            \
        AWAIT_COPIES(STAGES - 2);                                                    \
        barrier(CLK_LOCAL_MEM_FENCE);                                                \
        LOAD(0, MEMORY, 0);                                                          \
        int used = 0;                                                                \
        int filled = STAGES - 1;                                                     \
        for (int step = 0; step < (STEPS); step++) {                                 \
            const int next = used + 1 < STAGES ? used + 1 : 0;                       \
            UNROLL for (int k = 0; k < FRAGMENT_STEPS; k++)                          \
            {                                                                        \
                if (k < FRAGMENT_STEPS - 1) {                                        \
                    LOAD((k + 1) % 2, (MEMORY) + used * STAGE_ELEMENTS, k + 1);      \
                } else {                                                             \
                    AWAIT_COPIES(STAGES - 2);                                        \
                    barrier(CLK_LOCAL_MEM_FENCE);                                    \
                    LOAD(0, (MEMORY) + next * STAGE_ELEMENTS, 0);                    \
                }                                                                    \
                MULTIPLY(k % 2);                                                     \
                if (k == 0) {                                                        \
                    if (step + STAGES - 1 < (STEPS)) {                               \
                        COPY((MEMORY) + filled * STAGE_ELEMENTS, step + STAGES - 1); \
                    }                                                                \
                    END_COPIES();                                                    \
                }                                                                    \
            }                                                                        \
            filled = used;                                                           \
            used = next;                                                             \
        }                                                                            \
    } while (0)
