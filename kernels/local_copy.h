/*
 * Copies from global to local memory that need no registers and go on beside everything else: those of NVIDIA GPUs, as
 * inline PTX, if they have them (blobnet/device/device.py defines COPIES_IN_BACKGROUND); elsewhere plain ones.
 *
 * Numbers of other types are widened on the way, which needs registers (storage.h).
 *
 * Groups of copies end by END_COPIES. AWAIT_COPIES(MOST) waits until all but the last MOST groups have arrived, for this
 * work-item: others need a barrier after it.
 */

/* Plain copies of numbers of a type, of which LOAD_FOUR loads four; what they do is said below. */
#define PLAIN_COPIES(type, LOAD_FOUR)                                                                     \
    INLINE void OVERLOADED copy_value(__local real_t *to, __global const type *from, const bool is_there) \
    {                                                                                                     \
        *to = is_there ? VALUE_OF(from) : 0;                                                              \
    }                                                                                                     \
    INLINE void OVERLOADED copy_quad(__local real_t *to, __global const type *from, const bool is_there)  \
    {                                                                                                     \
        vstore4(is_there ? LOAD_FOUR(0, from) : 0, 0, to);                                                \
    }                                                                                                     \
    INLINE void OVERLOADED copy_quad_once(__local real_t *to, __global const type *from,                  \
                                          const bool is_there)                                            \
    {                                                                                                     \
        copy_quad(to, from, is_there);                                                                    \
    }

#if defined(COPIES_IN_BACKGROUND) && defined(__NV_CL_C_VERSION)

#define LOCAL_ADDRESS(pointer) ((uint)(size_t)(pointer))
#define END_COPIES() __asm__ volatile("cp.async.commit_group;" : : : "memory")
#define AWAIT_COPIES(MOST) __asm__ volatile("cp.async.wait_group %0;" : : "n"(MOST) : "memory")

#define COPY_BYTES(CACHE, BYTES, to, from, is_there)                                    \
    __asm__ volatile("cp.async." CACHE ".shared.global [%0], [%1], " #BYTES ", %2;"     \
                     :                                                                  \
                     : "r"(LOCAL_ADDRESS(to)), "l"(from), "r"((is_there) ? (BYTES) : 0) \
                     : "memory")

/* Begins to copy a value, or puts 0 where there is none. */
INLINE void OVERLOADED copy_value(__local real_t *to, __global const real_t *from, const bool is_there)
{
    COPY_BYTES("ca", 4, to, from, is_there);
}

/* The same for four values, aligned as float4. */
INLINE void OVERLOADED copy_quad(__local real_t *to, __global const real_t *from, const bool is_there)
{
    COPY_BYTES("cg", 16, to, from, is_there);
}

/* The same through the L1 cache: faster where values are copied once, and slower where several groups copy them. */
INLINE void OVERLOADED copy_quad_once(__local real_t *to, __global const real_t *from, const bool is_there)
{
    COPY_BYTES("ca", 16, to, from, is_there);
}

#else

#define END_COPIES()
#define AWAIT_COPIES(MOST)
PLAIN_COPIES(real_t, vload4)

#endif

#ifdef NARROW_STORAGE
#define LOAD_FOUR_NARROW(offset, pointer) load_narrow_aligned4((pointer) + (offset))
PLAIN_COPIES(half, LOAD_FOUR_NARROW)
PLAIN_COPIES(bfloat_t, LOAD_FOUR_NARROW)
#endif

/* Copies RUN values: 1, or 4 in a quad. */
#define COPY_RUN(RUN, to, from, is_there) \
    ((RUN) == 4 ? copy_quad(to, from, is_there) : copy_value(to, from, is_there))
#define COPY_RUN_ONCE(RUN, to, from, is_there) \
    ((RUN) == 4 ? copy_quad_once(to, from, is_there) : copy_value(to, from, is_there))
