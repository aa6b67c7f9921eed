/*
 * Copies from global to local memory that need no registers and go on beside everything else: those of NVIDIA GPUs
 * (compute capability 8.0) as inline PTX; elsewhere plain ones.
 *
 * Groups of copies end by END_COPIES. AWAIT_COPIES(MOST) waits until all but the last MOST groups have arrived, for this
 * work-item: others need a barrier behind it.
 */
#ifdef __NV_CL_C_VERSION

#define LOCAL_ADDRESS(pointer) ((uint)(size_t)(pointer))
#define END_COPIES() __asm__ volatile("cp.async.commit_group;" : : : "memory")
#define AWAIT_COPIES(MOST) __asm__ volatile("cp.async.wait_group %0;" : : "n"(MOST) : "memory")

/* Begins to copy a value, or puts 0 where there is none. */
INLINE void copy_value(__local real_t *to, __global const real_t *from, const bool is_there)
{
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :
                     : "r"(LOCAL_ADDRESS(to)), "l"(from), "r"(is_there ? 4 : 0)
                     : "memory");
}

/* The same for four values, aligned as float4. */
INLINE void copy_quad(__local real_t *to, __global const real_t *from, const bool is_there)
{
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(LOCAL_ADDRESS(to)), "l"(from), "r"(is_there ? 16 : 0)
                     : "memory");
}

#else

#define END_COPIES()
#define AWAIT_COPIES(MOST)

INLINE void copy_value(__local real_t *to, __global const real_t *from, const bool is_there)
{
    *to = is_there ? *from : 0;
}

INLINE void copy_quad(__local real_t *to, __global const real_t *from, const bool is_there)
{
    vstore4(is_there ? vload4(0, from) : 0, 0, to);
}

#endif

/* Copies RUN values: 1, or 4 in a quad. */
#define COPY_RUN(RUN, to, from, is_there) \
    ((RUN) == 4 ? copy_quad(to, from, is_there) : copy_value(to, from, is_there))
