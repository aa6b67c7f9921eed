/*
 * Kernels of which one launch may do the work of several (blobnet/planning/combining.py). Their work-items are all along
 * the width, and what differs from launch to launch are their arrays and sizes alone.
 *
 *     COMBINABLE void name(arrays, sizes OF_ITEM)  in place of __kernel void name(arrays, sizes)
 *     WORK_ITEM                                    in place of get_global_id(0)
 *
 * Of several (COMBINED) the kernel is one that calls it, with the arrays and sizes of a row of a table, whose first
 * column is the first work-group of each (KernelSource.of_several of blobnet/launch/kernel_source.py).
 */
#ifdef COMBINED
#define COMBINABLE INLINE
#define OF_ITEM , const int item
#define WORK_ITEM item

/* The row that this work-group is of. */
INLINE __global const int *row_of_group(__global const int *table, const int rows, const int columns)
{
    int first = 0;
    for (int end = rows; end - first > 1;) {
        const int middle = (first + end) / 2;
        if (table[middle * columns] <= (int)get_group_id(0)) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return table + first * columns;
}
#else
#define COMBINABLE __kernel
#define OF_ITEM
#define WORK_ITEM ((int)get_global_id(0))
#endif
