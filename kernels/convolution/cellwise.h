/*
 * Convolutions of units that are apart (depthwise) on blobs of cells: a cell of the result is made of cells of the same
 * units. A work-item makes RUN cells of a row, which share what they read. The filters of a group's units lie in local
 * memory: FILTER[v * FILTER_WIDTH + u] has those of the units for tap (v, u).
 */
#define TAPS (FILTER_HEIGHT * FILTER_WIDTH)

INLINE void load_filters(__local number_t *filters, READ_ARRAY(weight_t, weight), const int z)
{
    __local real_t *numbers = (__local real_t *)filters;
    for (int i = get_local_id(0); i < TAPS * CELL_UNITS; i += LOCAL_WIDTH) {
        numbers[i] = READ_VALUE(ARRAY(weight), (z * CELL_UNITS + i % CELL_UNITS) * TAPS + i / CELL_UNITS);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
