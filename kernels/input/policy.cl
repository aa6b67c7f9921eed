/*
 * Changes pictures of whole numbers from 0 to 255 by steps, before input/augmented puts them into a blob
 * (blobnet/augment/policies.py makes the steps). A work-group takes a sample.
 *
 * A step has eight numbers, after those that input/augmented reads of a row: its kind, the share of what it leaves in
 * the result, and up to six of its own. A step reads what the step before left, rounded down to a whole number from 0 to
 * 255; after a share of 0 or more, the next one begins with the sample again. CHANGED is the sum of the shares, which
 * is not rounded.
 *
 * Arrays:
 *   SAMPLES       read    (any number, units[, depth], height, width) bytes, no padding
 *   ROWS          read    COUNT int32: which of SAMPLES
 *   MEAN          read    a unit: what comes from outside a picture
 *   AUGMENTATION  read    COUNT rows of ROW_LENGTH
 *   SCRATCH       update  (COUNT, SCRATCHES) pictures of bytes
 *   CHANGED       update  COUNT samples
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   UNITS         of a sample; with 3 they are red, green and blue
 *   DEPTH         planes of a unit
 *   PLANE_HEIGHT  rows
 *   PLANE_WIDTH   columns
 *   ROW_LENGTH    numbers of a row
 *   STEPS         at the end of a row
 *   SCRATCHES     pictures between steps: the sample and the result are not among them
 *   LOCAL_WIDTH   work-items of a group that share a row
 *   LOCAL_HEIGHT  rows of them
 * Global:
 *   width   those of a group
 *   height  those of a group
 *   units   COUNT
 */
#include "blob.h"
#define SAMPLE_TYPE uchar
#define HALF_SAMPLES 0
#include "input/between_cells.h"

#define STEP_LENGTH 8
#define UNIT_ELEMENTS (DEPTH * PLANE_HEIGHT * PLANE_WIDTH)
#define ELEMENTS (UNITS * UNIT_ELEMENTS)
#define VALUES 256

/* The kinds of steps, as blobnet/augment/policies.py numbers them. */
#define KEEP 0
#define BRIGHTNESS 1
#define POSTERIZE 2
#define SOLARIZE 3
#define CONTRAST 4
#define AUTOCONTRAST 5
#define EQUALIZE 6
#define COLOR 7
#define SHARPNESS 8
#define MOVE 9

#define GROUP (LOCAL_WIDTH * LOCAL_HEIGHT)
#if GROUP == 1
#define MEET(what)
#define ADD_ONE(counter) (*(counter))++
#else
#define MEET(what) barrier(what)
#define ADD_ONE(counter) atomic_inc(counter)
#endif

/* The work-item's number in its group, and its share of a loop. */
#define ITEM ((int)get_local_id(1) * LOCAL_WIDTH + (int)get_local_id(0))
#define FOR_EACH(i, count) for (int i = ITEM; i < (count); i += GROUP)

/* Element i of what a step leaves. */
#define LEAVE(i, value)                           \
    {                                             \
        if (!is_end) {                            \
            to[i] = (value);                      \
        } else if (is_first) {                    \
            result[i] = share * (real_t)(value);  \
        } else {                                  \
            result[i] += share * (real_t)(value); \
        }                                         \
    }

INLINE uchar whole(const real_t value)
{
    return (uchar)clamp(value, (real_t)0, (real_t)(VALUES - 1));
}

/* factor times a value, and the rest of another one. */
INLINE uchar blend(const real_t value, const real_t other, const real_t factor)
{
    return whole(value * factor + other * (1 - factor));
}

/* The gray of a cell of the first unit, as torchvision has it. */
INLINE real_t gray_at(__global const uchar *from, const int i)
{
    return floor(from[i] * 0.2989f + from[i + UNIT_ELEMENTS] * 0.587f + from[i + 2 * UNIT_ELEMENTS] * 0.114f);
}

/* Three times three values: five of the middle one, and the eight around it. */
INLINE int blurred(__global const uchar *at)
{
    const int row = PLANE_WIDTH;
    const int sum = at[-row - 1] + at[-row] + at[-row + 1] + at[-1] + 5 * at[0] + at[1] + at[row - 1]
                    + at[row] + at[row + 1];
    return (2 * sum + 13) / 26;
}

__kernel void input_policy(READ_ARRAY(uchar, samples), READ_ARRAY(int, rows), READ_ARRAY(real_t, mean),
                           READ_ARRAY(real_t, augmentation), WRITE_ARRAY(real_t, scratch),
                           WRITE_ARRAY(real_t, changed), const int count)
{
    __local uint histogram[VALUES];
    __local uchar table[VALUES];
    /* The lowest and the highest value, the sum of all, and a 255th of how many are below the highest. */
    __local uint facts[4];
    const int n = (int)get_global_id(2);
    __global const uchar *sample = ARRAY(samples) + (size_t)ELEMENTS * ARRAY(rows)[n];
    __global real_t *result = ARRAY(changed) + (size_t)ELEMENTS * n;
    __global uchar *scratches = (__global uchar *)ARRAY(scratch) + (size_t)ELEMENTS * SCRATCHES * n;
    __global const real_t *step =
        ARRAY(augmentation) + (size_t)ROW_LENGTH * n + (ROW_LENGTH - STEP_LENGTH * STEPS);

    __global const uchar *from = sample;
    int next = 0;
    bool is_first = true;
    for (int number = 0; number < STEPS; number++, step += STEP_LENGTH) {
        const int kind = (int)step[0];
        const real_t share = step[1];
        const real_t own = step[2];
        const bool is_end = share >= 0;
        /* NOTE: with 'continue' here, before barriers, PoCL 3.1 loses variables of work-items. */
        const bool is_step = kind != KEEP || is_end;
        /* NOTE: what ends is not written to a scratch, of which there may be none. */
        __global uchar *to = scratches + (is_end ? 0 : (size_t)ELEMENTS * next);

        if (kind >= BRIGHTNESS && kind <= EQUALIZE) {
            const bool has_facts = kind >= CONTRAST;
            const bool is_gray = kind == CONTRAST && UNITS == 3;
            for (int unit = 0; unit < UNITS; unit++) {
                __global const uchar *plane = from + unit * UNIT_ELEMENTS;
                if (has_facts && !(is_gray && unit > 0)) {
                    FOR_EACH(value, VALUES)
                    {
                        histogram[value] = 0;
                    }
                    MEET(CLK_LOCAL_MEM_FENCE);
                    if (is_gray) {
#if UNITS == 3
                        FOR_EACH(i, UNIT_ELEMENTS)
                        {
                            ADD_ONE(&histogram[(int)gray_at(from, i)]);
                        }
#endif
                    } else {
                        FOR_EACH(i, UNIT_ELEMENTS)
                        {
                            ADD_ONE(&histogram[plane[i]]);
                        }
                    }
                    MEET(CLK_LOCAL_MEM_FENCE);
                    if (ITEM == 0) {
                        uint lowest = VALUES, highest = 0, sum = 0, before = 0, of_highest = 0;
                        for (uint value = 0; value < VALUES; value++) {
                            const uint cells = histogram[value];
                            if (cells > 0) {
                                lowest = min(lowest, value);
                                highest = value;
                                of_highest = cells;
                            }
                            sum += value * cells;
                            histogram[value] = before;
                            before += cells;
                        }
                        facts[0] = lowest;
                        facts[1] = highest;
                        facts[2] = sum;
                        facts[3] = (UNIT_ELEMENTS - of_highest) / (VALUES - 1);
                    }
                    MEET(CLK_LOCAL_MEM_FENCE);
                }
                FOR_EACH(value, VALUES)
                {
                    uchar made = (uchar)value;
                    if (kind == BRIGHTNESS) {
                        made = whole(value * own);
                    } else if (kind == POSTERIZE) {
                        made = (uchar)(value & ~(0xFF >> (int)own));
                    } else if (kind == SOLARIZE) {
                        made = (uchar)(value >= own ? VALUES - 1 - value : value);
                    } else if (kind == CONTRAST) {
                        made = blend(value, (real_t)facts[2] / UNIT_ELEMENTS, own);
                    } else if (kind == AUTOCONTRAST && facts[1] > facts[0]) {
                        made = (uchar)(max(value - (int)facts[0], 0) * (VALUES - 1)
                                       / (int)(facts[1] - facts[0]));
                    } else if (kind == EQUALIZE && facts[3] > 0) {
                        made = (uchar)min((histogram[value] + facts[3] / 2) / facts[3], (uint)(VALUES - 1));
                    }
                    table[value] = made;
                }
                MEET(CLK_LOCAL_MEM_FENCE);
                FOR_EACH(i, UNIT_ELEMENTS){LEAVE(unit * UNIT_ELEMENTS + i, table[plane[i]])} MEET(
                    CLK_LOCAL_MEM_FENCE);
            }
#if UNITS == 3
        } else if (kind == COLOR) {
            FOR_EACH(i, UNIT_ELEMENTS)
            {
                const real_t gray = gray_at(from, i);
                for (int unit = 0; unit < UNITS; unit++) {
                    LEAVE(unit * UNIT_ELEMENTS + i, blend(from[unit * UNIT_ELEMENTS + i], gray, own))
                }
            }
#endif
        } else if (kind == KEEP) {
            FOR_EACH(i, is_step ? ELEMENTS : 0)
            {
                LEAVE(i, from[i])
            }
        } else {
            bool is_exact = true;
            for (int i = 2; i < STEP_LENGTH; i++) {
                is_exact = is_exact && step[i] == rint(step[i]);
            }
            const bool is_sharpened = kind == SHARPNESS && PLANE_HEIGHT > 2 && PLANE_WIDTH > 2;
            for (int line = get_local_id(1); line < UNITS * DEPTH * PLANE_HEIGHT; line += LOCAL_HEIGHT) {
                const int y = line % PLANE_HEIGHT;
                const int first = line * PLANE_WIDTH;
                __global const uchar *plane = from + first - y * PLANE_WIDTH;
                const real_t outside = rint(ARRAY(mean)[first / UNIT_ELEMENTS]);
                const bool is_inner = is_sharpened && y > 0 && y < PLANE_HEIGHT - 1;
                for (int x = get_local_id(0); x < PLANE_WIDTH; x += LOCAL_WIDTH) {
                    uchar made = from[first + x];
                    if (is_inner && x > 0 && x < PLANE_WIDTH - 1) {
                        const int value = made;
                        made = whole(value + (blurred(from + first + x) - value) * (1 - own));
                    } else if (kind == MOVE) {
                        const real_t from_y = step[2] * y + step[3] * x + step[4];
                        const real_t from_x = step[5] * y + step[6] * x + step[7];
                        made =
                            whole(IS_INSIDE(from_y, from_x) ? rint(value_at(plane, from_y, from_x, is_exact))
                                                            : outside);
                    }
                    LEAVE(first + x, made)
                }
            }
        }
        MEET(CLK_GLOBAL_MEM_FENCE);
        from = is_end ? sample : is_step ? to : from;
        is_first = is_first && !is_end;
        next = is_step ? 1 - next : next;
    }
}
