/*
 * The filters of a convolution for kernels that transform them: TAPS x TAPS weights of a unit of the result and one of
 * the source, ROTATED by 180 degrees for backward data.
 */
#define FILTER(group, unit, row)                                                                \
    (ARRAY(weight) + (group) * (GROUP_UNITS * GROUP_DEPTH * TAPS * TAPS) + (unit) * UNIT_STRIDE \
     + (row) * DEPTH_STRIDE)

/* Loads a filter; what is not there is 0. */
INLINE void load_filter(real_t filter[TAPS * TAPS], __global const weight_t *from, const bool there)
{
#pragma unroll
    for (int tap = 0; tap < TAPS * TAPS; tap++) {
        filter[tap] = there ? READ_VALUE(from, ROTATED ? TAPS * TAPS - 1 - tap : tap) : 0;
    }
}
