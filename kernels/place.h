/*
 * How products of tiles find their numbers, with CHEAP_ADDRESSES in few instructions: for GPUs whose compilers make the
 * inner loop's addresses in many. NVIDIA's makes them in few by itself, and takes other registers for such programs.
 *
 * Where a number of a blob lies, for kernels that read it and others at distances that they know: a pointer, or, with
 * CHEAP_ADDRESSES, the bytes from the beginning of its buffer in 32 bits. Then no blob may be larger than 4 GB. GPUs of
 * AMD and Intel add those to the beginning as they load; a pointer takes them two to six instructions more.
 *
 *     PLACE_OF(type)                           the type of a place
 *     PLACE(type, blob, index)                 that of number `index`
 *     DISTANCE(type, cells)                    from one place to another
 *     READ_PLACE(type, blob, place, distance)  the number so far behind a place
 *     READ_BEHIND(type, blob, place, distance) the same where the distance is not negative, which is added to a pointer:
 *                                              GPUs that add 64 bits themselves widen it ahead of the loop
 *     READ_DISTANCE(type, blob, distance)      the number so far behind the beginning
 *
 * Distances may be negative. What is negative wraps around, and so does its sum with a place behind it.
 *
 * With CHEAP_ADDRESSES there are also:
 *
 *     FIRST_ROWS(rows)        rows of the first step of several: those that would be left at the end, so that all that
 *                             a loop asks for are there
 *     SWAP_TILES(now, later)  what is multiplied and what is on its way change places
 */
#if CHEAP_ADDRESSES
#define PLACE_OF(type) uint
#define PLACE(type, blob, index) (uint)(index) * (uint)sizeof(type)
#define DISTANCE(type, cells) (int)((uint)(cells) * (uint)sizeof(type))
#define READ_PLACE(type, blob, place, distance) READ_DISTANCE(type, blob, (place) + (uint)(distance))
#define READ_BEHIND(type, blob, place, distance) \
    READ_DISTANCE(type, (__global const char *)(blob) + (place), distance)
#define READ_DISTANCE(type, blob, distance) \
    VALUE_OF((__global const type *)((__global const char *)(blob) + (uint)(distance)))
#define FIRST_ROWS(rows) ((rows) - ((rows) - 1) / TILE_DEPTH * TILE_DEPTH)
/* NOTE: where a number tells tiles apart, Intel's compiler adds it to each address of local memory on its own. */
#define SWAP_TILES(now, later)      \
    do {                            \
        __local real_t *tile = now; \
        now = later;                \
        later = tile;               \
    } while (0)
#else
/* clang-format off */
#define PLACE_OF(type) __global const type *
#define PLACE(type, blob, index) blob + index
#define DISTANCE(type, cells) cells
#define READ_PLACE(type, blob, place, distance) READ_VALUE(place, distance)
#define READ_DISTANCE(type, blob, distance) READ_VALUE(blob, distance)
/* clang-format on */
#endif
