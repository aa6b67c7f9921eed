/*
 * The loss of CenterNet for boxes of a sample (blobnet/losses/center_net.py has the formulas). The first units of the
 * output are logits of a heat map for each class, the last four the width, height and offsets x and y of a box whose
 * middle lies in a cell. Each cell looks for the boxes that concern it, so that targets are in no memory.
 *
 * Blobs:
 *   OUTPUT        read
 *   OUTPUT_DELTA  write
 * Arrays:
 *   LABELS  read  (COUNT, BOXES, 5): class, left, top, right, bottom as parts of the plane; behind the last a class < 0
 * Macros:
 *   BOXES          rows of a sample
 *   SIZE_WEIGHT    of the distances of widths and heights
 *   OFFSET_WEIGHT  of those of offsets
 */
#include "blob.h"
#include "loss/shared_classes.h"
#include "loss/parts.h"

#define CLASSES (OUTPUT_UNIT_COUNT - 4)
/* The share of their union that a box and one whose corners are a radius away have in common, at least. */
#define OVERLAP 0.7f
#define MIDDLE_X(box) (0.5f * ((box)[1] + (box)[3]) * OUTPUT_UNIT_WIDTH)
#define MIDDLE_Y(box) (0.5f * ((box)[2] + (box)[4]) * OUTPUT_UNIT_HEIGHT)
#define COLUMN(box) min((int)MIDDLE_X(box), OUTPUT_UNIT_WIDTH - 1)
#define ROW(box) min((int)MIDDLE_Y(box), OUTPUT_UNIT_HEIGHT - 1)
#define BOX_WIDTH(box) (((box)[3] - (box)[1]) * OUTPUT_UNIT_WIDTH)
#define BOX_HEIGHT(box) (((box)[4] - (box)[2]) * OUTPUT_UNIT_HEIGHT)

/* The smaller root of a r^2 - b r + c, or of -a r^2 - b r + c, without cancellation. */
#define ROOT(a, b, c) (2 * (c) / ((b) + sqrt((b) * (b) - 4 * (a) * (c))))

/* The standard deviation of a box's peak, in cells: a third of its radius and a half. */
INLINE real_t deviation_of(__global const real_t *box)
{
    const real_t sides = BOX_WIDTH(box) + BOX_HEIGHT(box);
    const real_t area = BOX_WIDTH(box) * BOX_HEIGHT(box);
    /* One corner inside and one outside; both inside; both outside. */
    const real_t shifted = ROOT(1.0f, sides, area * (1 - OVERLAP) / (1 + OVERLAP));
    const real_t inner = ROOT(4.0f, 2 * sides, area * (1 - OVERLAP));
    const real_t outer = ROOT(-4.0f * OVERLAP, 2 * OVERLAP * sides, area * (1 - OVERLAP));
    return (fmin(fmin(shifted, inner), outer) + 0.5f) / 3;
}

/* What the heat map should be in a cell: the highest of the peaks of a class that reach it. */
INLINE real_t heat_at(__global const real_t *boxes, const int count, const int z, const int y, const int x)
{
    real_t heat = 0;
    for (int i = 0; i < count; i++) {
        __global const real_t *box = boxes + 5 * i;
        if ((int)box[0] == z) {
            const real_t deviation = deviation_of(box);
            const real_t down = y - ROW(box);
            const real_t across = x - COLUMN(box);
            if (fmax(fabs(down), fabs(across)) <= 3 * deviation) {
                heat = fmax(heat, exp(-(down * down + across * across) / (2 * deviation * deviation)));
            }
        }
    }
    return heat;
}

/* Whether boxes reach a row of a unit at all. */
INLINE bool is_reached(__global const real_t *boxes, const int count, const int z, const int y)
{
    for (int i = 0; i < count; i++) {
        __global const real_t *box = boxes + 5 * i;
        const real_t down = y - ROW(box);
        if (z < CLASSES ? (int)box[0] == z && fabs(down) <= 3 * deviation_of(box) : down == 0) {
            return true;
        }
    }
    return false;
}

/* The penalty-reduced focal loss of a logit, and its slope. */
INLINE real_t heat_loss(const real_t logit, const real_t heat, real_t *slope)
{
    const real_t power = exp(-fabs(logit));
    const real_t tail = power / (1 + power);
    const real_t p = logit < 0 ? tail : 1 - tail;
    const real_t q = logit < 0 ? 1 - tail : tail;
    /* -log(p) and -log(1 - p) */
    const real_t lacks = fmax(-logit, 0.0f) + log1p(power);
    const real_t exceeds = fmax(logit, 0.0f) + log1p(power);
    if (heat == 1) {
        *slope = -q * q * (2 * p * lacks + q);
        return q * q * lacks;
    }
    const real_t rest = (1 - heat) * (1 - heat);
    *slope = rest * rest * p * p * (2 * q * exceeds + p);
    return rest * rest * p * p * exceeds;
}

/* The distances of a value from what the boxes with their middle in a cell want it to be, and their slope. */
INLINE real_t distance_at(const real_t value, __global const real_t *boxes, const int count, const int part,
                          const int y, const int x, real_t *slope)
{
    real_t sum = 0;
    for (int i = 0; i < count; i++) {
        __global const real_t *box = boxes + 5 * i;
        if (ROW(box) == y && COLUMN(box) == x) {
            const real_t wanted = part == 0   ? BOX_WIDTH(box)
                                  : part == 1 ? BOX_HEIGHT(box)
                                  : part == 2 ? MIDDLE_X(box) - x
                                              : MIDDLE_Y(box) - y;
            const real_t factor = part < 2 ? SIZE_WEIGHT : OFFSET_WEIGHT;
            const real_t difference = value - wanted;
            /* NOTE: sign() of NaN is 0. */
            *slope += factor * (isnan(difference) ? difference : sign(difference));
            sum += factor * fabs(difference);
        }
    }
    return sum;
}

__kernel __attribute__((reqd_work_group_size(LOCAL_WIDTH, 1, 1))) void
loss_center_net(SHARED_BLOB(output), MUTABLE_BLOB(output_delta), READ_ARRAY(real_t, labels),
                READ_ARRAY(real_t, sample_weights), WRITE_ARRAY(real_t, sample_metrics),
                READ_ARRAY(real_t, loss_scale), const float divisor)
{
    __local accumulator_t group[LOCAL_WIDTH];
    const int n = get_global_id(2);
    const real_t weight = ARRAY(sample_weights)[n];
    __global const real_t *boxes = ARRAY(labels) + (size_t)n * BOXES * 5;
    int count = 0;
    while (count < BOXES && boxes[5 * count] >= 0) {
        count++;
    }
    const real_t scale = weight / max(count, 1);
    accumulator_t sum = 0;
    for (int row = FIRST_ROW; row < END_ROW; row += ROW_STEP) {
        const int z = row / OUTPUT_UNIT_HEIGHT;
        const int y = row % OUTPUT_UNIT_HEIGHT;
        const int own = is_reached(boxes, count, z, y) ? count : 0;
        __global const output_t *values = output + BLOB_INDEX(OUTPUT, n, z, y, 0);
#if HAS_DELTA
        __global output_delta_t *deltas = output_delta + BLOB_INDEX(OUTPUT_DELTA, n, z, y, 0);
#endif
        accumulator_t row_sum = 0;
        for (int x = FIRST_COLUMN; x < OUTPUT_UNIT_WIDTH; x += ROW_ITEMS) {
            const real_t value = READ_VALUE(values, x);
            real_t slope = 0;
            row_sum += z < CLASSES ? heat_loss(value, heat_at(boxes, own, z, y, x), &slope)
                                   : distance_at(value, boxes, own, z - CLASSES, y, x, &slope);
#if HAS_DELTA
            WRITE_VALUE(deltas, x, slope * scale / DELTA_DIVISOR);
#endif
        }
        sum += row_sum;
    }
    const bool is_first = PART == 0 && get_local_id(0) == 0;
    accumulator_t sums[METRICS] = {sum * scale, is_first ? weight : 0.0f, 0, 0, is_first ? 1.0f : 0.0f};
    put_metrics(sums, ARRAY(sample_metrics), n, group);
}
