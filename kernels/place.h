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
 *     READ_PLACE(type, blob, place, distance)  the number so far after a place
 *     READ_BEHIND(type, blob, place, distance) the same where the distance is not negative, which is added to a pointer:
 *                                              GPUs that add 64 bits themselves widen it ahead of the loop
 *     READ_DISTANCE(type, blob, distance)      the number so far after the beginning
 *
 *     SHARED_POINTERS                          1: loads add a work-item's place to a pointer that all have in common, as
 *                                              those of AMD's GPUs do: what they have in common, the pointer should have
 *
 * Distances may be negative. What is negative wraps around, and so does its sum with a place after it.
 *
 * With CHEAP_ADDRESSES there are also:
 *
 *     FIRST_ROWS(rows)  rows of the first step of several: those that would be left at the end, so that all that a loop
 *                       asks for are there
 *     DECLARE_TILES(name, first, second)  `name`_now, the tile that is multiplied, to begin with the first
 *     LATER(name)                         the other one, which is on its way
 *     SWAP_TILES(name)                    they change places
 */
#if CHEAP_ADDRESSES && defined(__AMDGCN__)
#define SHARED_POINTERS 1
#else
#define SHARED_POINTERS 0
#endif
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
/*
 * NOTE: where a number tells tiles apart, Intel's compiler adds it to each address of local memory on its own; AMD's takes
 * three instructions for two pointers that change places, and one for their difference.
 */
#ifdef __AMDGCN__
#define DECLARE_TILES(name, first, second) \
    __local real_t *name##_now = first;    \
    const uint name##_turn = (uint)(first) ^ (uint)(second)
#define LATER(name) (__local real_t *)((uint)name##_now ^ name##_turn)
#define SWAP_TILES(name) name##_now = LATER(name)
#else
#define DECLARE_TILES(name, first, second) __local real_t *name##_now = first, *name##_later = second
#define LATER(name) name##_later
#define SWAP_TILES(name)                   \
    do {                                   \
        __local real_t *tile = name##_now; \
        name##_now = name##_later;         \
        name##_later = tile;               \
    } while (0)
#endif
#else
/* clang-format off */
#define PLACE_OF(type) __global const type *
#define PLACE(type, blob, index) blob + index
#define DISTANCE(type, cells) cells
#define READ_PLACE(type, blob, place, distance) READ_VALUE(place, distance)
#define READ_DISTANCE(type, blob, distance) READ_VALUE(blob, distance)
/* clang-format on */
#endif
