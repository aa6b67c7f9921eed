/*
 * What deltas are multiplied by where they are kept in a type of a small range, in which many would be 0: a power of
 * two, which the device chooses (optimizer/clip_scale). The optimizer divides by it; losses themselves are not scaled.
 *
 * Arrays:
 *   LOSS_SCALE  read  not touched without HAS_LOSS_SCALE
 * Macros:
 *   HAS_LOSS_SCALE
 */
#if HAS_LOSS_SCALE
#define DELTA_DIVISOR (divisor / ARRAY(loss_scale)[0])
#else
#define DELTA_DIVISOR divisor
#endif
