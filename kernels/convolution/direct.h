/*
 * The inner loops of convolutions whose lanes are positions: a tile of BLOCK_UNITS units x BLOCK_VECTORS vectors.
 *
 * accumulate[u][v] += sum over DEPTH source units and TAPS_Y x TAPS_X taps of weight * source at the tap's shift.
 * Tap (a, b) reads filter cell (TAP_Y_FIRST + a * TAP_Y_STEP, TAP_X_FIRST + b * TAP_X_STEP) and the source
 * ROW_SHIFT(a) + COLUMN_SHIFT(b) cells away; source units are SOURCE_STEP apart, numbers of source_t. Weights are OIHW.
 *
 * Processors see coming what lies in one row, and not what is read from plane to plane, or by the next block: that is
 * asked for ahead, the further the less of it lies side by side. At batch 1 much of it lies in another core's cache, or
 * beyond all. Where the file that includes this says ASKS_NEXT, what comes `next` numbers after the tile is
 * brought into the second cache meanwhile, a line of each source unit.
 */
#define UNITS_AHEAD (UNITS_FIRST && DEPTH >= 64 ? 16 : 8)
/* NOTE: with fewer units most of what is asked for ahead would lie after the last one. */
#define ASKS_AHEAD (TAPS_Y * TAPS_X == 1 && DEPTH >= (ASKS_NEXT ? 64 : 32))
#define WEIGHTS_FOLLOW (WEIGHT_UNIT_STRIDE == DEPTH * WEIGHT_DEPTH_STRIDE)

INLINE void accumulate_tile(vector_t accumulators[BLOCK_UNITS][BLOCK_VECTORS],
                            __global const source_t *source, const int positions[BLOCK_VECTORS],
                            __global const weight_t *weight, const int units, const int next)
{
    for (int depth = 0; depth < DEPTH; depth++) {
        for (int a = 0; a < TAPS_Y; a++) {
#pragma unroll
            for (int b = 0; b < TAPS_X; b++) {
                const int shift = ROW_SHIFT(a) + COLUMN_SHIFT(b);
#if WEIGHTS_FOLLOW
                /* The next block's weights lie after this one's; each step asks for as many as it reads. */
                PREFETCH(weight + BLOCK_UNITS * WEIGHT_UNIT_STRIDE
                         + (depth * TAPS_Y * TAPS_X + a * TAPS_X + b) * (BLOCK_UNITS - 1));
#endif
                const int tap = (TAP_Y_FIRST + a * TAP_Y_STEP) * FILTER_WIDTH + TAP_X_FIRST + b * TAP_X_STEP;
#if ASKS_NEXT
                PREFETCH_TO_KEEP(source + positions[0] + next);
#endif
                vector_t values[BLOCK_VECTORS];
#pragma unroll
                for (int v = 0; v < BLOCK_VECTORS; v++) {
#if ASKS_AHEAD
                    PREFETCH(source + positions[v] + shift + UNITS_AHEAD * SOURCE_STEP);
#endif
                    values[v] = VECTOR_LOAD(source + positions[v] + shift);
                }
#if ASKS_AHEAD
                /* The line in which the last vector ends. */
                PREFETCH(source + positions[BLOCK_VECTORS - 1] + LANES - 1 + shift
                         + UNITS_AHEAD * SOURCE_STEP);
#endif
#pragma unroll
                for (int u = 0; u < BLOCK_UNITS; u++) {
                    /* Units past the last one repeat it; their sums are not stored. */
                    const int unit = UNITS_DIVIDE || u < units ? u : units - 1;
                    const real_t factor = READ_VALUE(weight, unit * WEIGHT_UNIT_STRIDE + tap);
#pragma unroll
                    for (int v = 0; v < BLOCK_VECTORS; v++) {
                        accumulators[u][v] = MULTIPLY_ADD((vector_t)(factor), values[v], accumulators[u][v]);
                    }
                }
            }
        }
        source += SOURCE_STEP;
        weight += WEIGHT_DEPTH_STRIDE;
    }
}
