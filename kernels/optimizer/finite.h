/* NOTE: the device finds out by itself, so that the host need not wait for every loss; nothing is changed from then on. */
#define LOSS_IS_FINITE isfinite(ARRAY(totals)[0])
