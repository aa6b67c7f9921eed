/*
 * Where a number of a blob lies, for kernels that read it and others at distances that they know: a pointer, or, with
 * CHEAP_ADDRESSES, the bytes from the beginning of its buffer in 32 bits. Then no blob may be larger than 4 GB. GPUs of
 * AMD and Intel add those to the beginning as they load; a pointer takes them two to six instructions more.
 *
 *     PLACE_OF(type)                          the type of a place
 *     PLACE(type, blob, index)                that of number `index`
 *     DISTANCE(type, cells)                   from one place to another
 *     READ_PLACE(type, blob, place, distance) the number so far behind a place
 *
 * Distances may be negative. What is negative wraps around, and so does its sum with a place behind it.
 */
#if CHEAP_ADDRESSES
#define PLACE_OF(type) uint
#define PLACE(type, blob, index) (uint)(index) * (uint)sizeof(type)
#define DISTANCE(type, cells) (int)((uint)(cells) * (uint)sizeof(type))
#define READ_PLACE(type, blob, place, distance) \
    VALUE_OF((__global const type *)((__global const char *)(blob) + ((place) + (uint)(distance))))
#else
/* clang-format off */
#define PLACE_OF(type) __global const type *
#define PLACE(type, blob, index) blob + index
#define DISTANCE(type, cells) cells
#define READ_PLACE(type, blob, place, distance) READ_VALUE(place, distance)
/* clang-format on */
#endif
