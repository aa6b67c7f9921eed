/*
 * Samples that are mixed (blobnet/augment/): each with its partner, which is the next one of the batch, or the first
 * one after the last.
 *
 * Arrays:
 *   PARTNER_SHARES  read  (COUNT): the share of the partner's label, 0 in a sample that is not mixed
 */
#define PARTNER(n) (((n) + 1) % (int)get_global_size(2))
