/*
 * Puts samples of any storage type into a blob, changed at random and normalised (blobnet/augment/ makes the rows).
 *
 * A row of AUGMENTATION: the position in the sample is y = a y + b x + c and x = d y + e x + f for a cell's y and x, with
 * values between cells where it lies between them (numbers 0 to 5); the rectangle that is erased, first row and column
 * and those after the last (6 to 9); the value is gain * sample + gray * its gray + p * mean + q * gray of the means
 * (10 to 13). What is outside the sample, or erased, is the mean: 0 when normalised. In another rectangle (14 to 17) a
 * part (18) of that is replaced by as much of the next sample of the batch, after the last by that of the first, changed
 * by its own row. Without a change, the bits are those of input/forward. The rest of a row is for input/policy.
 *
 * Blobs:
 *   OUTPUT write
 * Arrays:
 *   SAMPLES       read  (any number, units[, depth], height, width) of SAMPLE_TYPE, no padding
 *   ROWS          read  COUNT int32: which of SAMPLES
 *   MEAN          read  a unit
 *   DEVIATION     read  a unit
 *   AUGMENTATION  read  COUNT rows of ROW_LENGTH
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   SAMPLE_TYPE    float or half, or an integer type of one or two bytes
 *   HALF_SAMPLES   1: SAMPLE_TYPE is half, which every device can load, but not every one compute with
 *   HAS_GRAY       1: the units are red, green and blue
 *   ROW_LENGTH     numbers of a row
 *   IN_ORDER       1: SAMPLES are those of the batch, which input/policy has changed, and ROWS are not asked
 *   GLOBAL_WIDTH   step along x
 *   GLOBAL_HEIGHT  step along y
 *   GLOBAL_UNITS   planes of a sample
 * Global:
 *   width   columns
 *   height  rows
 *   units   planes * COUNT
 */
#include "blob.h"
#define PLANE_HEIGHT OUTPUT_UNIT_HEIGHT
#define PLANE_WIDTH OUTPUT_UNIT_WIDTH
#include "input/between_cells.h"

#if IN_ORDER
#define SAMPLE_NUMBER(n) (n)
#else
#define SAMPLE_NUMBER(n) ARRAY(rows)[n]
#endif
#define GRAY(red, green, blue) (0.299f * (red) + 0.587f * (green) + 0.114f * (blue))

/* In a cell of put_sample's rectangle. */
#define PUT(at, value)                                                                                     \
    if (y >= cells.x && x >= cells.y) {                                                                    \
        WRITE_VALUE(to, at,                                                                                \
                    part == 1 ? (value) : (READ_VALUE(to, at)) + part * ((value) - (READ_VALUE(to, at)))); \
    }

/*
 * In the cells of a rectangle (first row and column, and those after the last), `part` of what is there is replaced by
 * as much of plane z of a sample that is changed by a row. With a part of 1, nothing is read there.
 */
INLINE void put_sample(__global output_t *to, __global const SAMPLE_TYPE *sample, const int z,
                       __global const real_t *row, __global const real_t *mean,
                       __global const real_t *deviation, const int4 cells, const real_t part)
{
    const real_t shift = mean[UNIT_OF(OUTPUT, z)];
    const real_t scale = 1 / deviation[UNIT_OF(OUTPUT, z)];
    __global const SAMPLE_TYPE *from = sample + OUTPUT_PLANE_ELEMENTS * z;
#ifdef GENERAL_BLOBS
    /* The gray is that of the same plane of all units. */
    sample += OUTPUT_PLANE_ELEMENTS * REMAINDER(z, OUTPUT, UNIT_DEPTH);
#endif
    const real_t a = row[0], b = row[1], c = row[2], d = row[3], e = row[4], f = row[5];
    const real_t top = row[6], left = row[7], bottom = row[8], right = row[9];
    const real_t gain = row[10], gray = row[11];
    bool is_exact = true;
    for (int i = 0; i < 6; i++) {
        is_exact = is_exact && row[i] == rint(row[i]);
    }
    const bool is_coloured = gain != 1 || gray != 0 || row[12] != 0 || row[13] != 0;
    real_t offset = row[12] * shift;
#if HAS_GRAY
    offset += row[13] * GRAY(mean[0], mean[1], mean[2]);
#endif

    /* Crops and flips, with bounds that a compiler can keep out of its loops. */
    if (is_exact && !is_coloured && b == 0 && d == 0 && fabs(e) == 1 && bottom <= top) {
        const int step = (int)e;
        const int start = (int)clamp(f, -2.0f * OUTPUT_UNIT_WIDTH, 2.0f * OUTPUT_UNIT_WIDTH);
        const int first = step > 0 ? max(0, -start) : max(0, start - (OUTPUT_UNIT_WIDTH - 1));
        const int end = min(OUTPUT_UNIT_WIDTH, step > 0 ? OUTPUT_UNIT_WIDTH - start : start + 1);
        for (int y = get_global_id(1); y < cells.z; y += GLOBAL_HEIGHT) {
            const real_t from_y = a * y + c;
            const bool is_inside = from_y >= 0 && from_y < OUTPUT_UNIT_HEIGHT;
            const int line = is_inside ? (int)from_y * OUTPUT_UNIT_WIDTH + start : 0;
            for (int x = get_global_id(0); x < cells.w; x += GLOBAL_WIDTH) {
                const real_t value =
                    is_inside && x >= first && x < end ? (SAMPLE(from, line + step * x) - shift) * scale : 0;
                PUT(y * OUTPUT_UNIT_MEMORY_WIDTH + x, value)
            }
        }
        return;
    }
    for (int y = get_global_id(1); y < cells.z; y += GLOBAL_HEIGHT) {
        for (int x = get_global_id(0); x < cells.w; x += GLOBAL_WIDTH) {
            const real_t from_y = a * y + b * x + c;
            const real_t from_x = d * y + e * x + f;
            const bool is_inside = IS_INSIDE(from_y, from_x);
            const bool is_erased = y >= top && y < bottom && x >= left && x < right;
            real_t value = shift;
            if (is_inside && !is_erased) {
                value = value_at(from, from_y, from_x, is_exact);
                if (is_coloured) {
                    value = gain * value + offset;
#if HAS_GRAY
                    if (gray != 0) {
                        value +=
                            gray
                            * GRAY(value_at(sample, from_y, from_x, is_exact),
                                   value_at(sample + OUTPUT_UNIT_ELEMENTS, from_y, from_x, is_exact),
                                   value_at(sample + 2 * OUTPUT_UNIT_ELEMENTS, from_y, from_x, is_exact));
                    }
#endif
                }
            }
            value = (value - shift) * scale;
            PUT(y * OUTPUT_UNIT_MEMORY_WIDTH + x, value)
        }
    }
}

__kernel void input_augmented(WRITE_BLOB(output), READ_ARRAY(SAMPLE_TYPE, samples), READ_ARRAY(int, rows),
                              READ_ARRAY(real_t, mean), READ_ARRAY(real_t, deviation),
                              READ_ARRAY(real_t, augmentation), const int count)
{
    const int n = (int)get_global_id(2) / GLOBAL_UNITS;
    const int z = (int)get_global_id(2) % GLOBAL_UNITS;
    if (n >= count) {
        return;
    }
    __global const real_t *own = ARRAY(augmentation) + ROW_LENGTH * n;
    const real_t partner_part = own[18];
    /* First the sample in all cells, then its partner. */
    int m = n;
    int4 cells = (int4)(0, 0, OUTPUT_UNIT_HEIGHT, OUTPUT_UNIT_WIDTH);
    for (int pass = 0; pass < (partner_part > 0 ? 2 : 1); pass++) {
        put_sample(output + BLOB_INDEX(OUTPUT, n, z, 0, 0),
                   ARRAY(samples) + (size_t)OUTPUT_PLANE_ELEMENTS * GLOBAL_UNITS * SAMPLE_NUMBER(m), z,
                   ARRAY(augmentation) + ROW_LENGTH * m, ARRAY(mean), ARRAY(deviation), cells,
                   pass ? partner_part : 1);
        m = (n + 1) % count;
        cells = convert_int4(vload4(0, own + 14));
    }
}
