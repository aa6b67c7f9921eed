/*
 * Copies of up to LANES cells that lie side by side, between kinds of memory, of any types of numbers.
 */
/* N numbers side by side, N of 4 and 8, wherever they lie. */
#ifdef NARROW_STORAGE
#define REAL_PARTS(space, N, LOAD, STORE)                                        \
    INLINE float##N OVERLOADED load_part##N(space const real_t *pointer)         \
    {                                                                            \
        return LOAD(0, pointer);                                                 \
    }                                                                            \
    INLINE void OVERLOADED store_part##N(const float##N value, space real_t *to) \
    {                                                                            \
        STORE(value, 0, to);                                                     \
    }
#define NARROW_PARTS(type, N)                                                     \
    INLINE float##N OVERLOADED load_part##N(__global const type *pointer)         \
    {                                                                             \
        return load_narrow##N(pointer);                                           \
    }                                                                             \
    INLINE void OVERLOADED store_part##N(const float##N value, __global type *to) \
    {                                                                             \
        store_narrow##N(value, to);                                               \
    }
REAL_PARTS(__global, 4, vload4, vstore4)
REAL_PARTS(__global, 8, vload8, vstore8)
REAL_PARTS(__local, 4, vload4, vstore4)
REAL_PARTS(__local, 8, vload8, vstore8)
NARROW_PARTS(half, 4)
NARROW_PARTS(half, 8)
NARROW_PARTS(bfloat_t, 4)
NARROW_PARTS(bfloat_t, 8)
#define LOAD_PART(N, LOAD, from) load_part##N(from)
#define STORE_PART(N, STORE, value, to) store_part##N(value, to)
#else
#define LOAD_PART(N, LOAD, from) LOAD(0, from)
#define STORE_PART(N, STORE, value, to) STORE(value, 0, to)
#endif

/* Copies the first and the last N of `length` cells, which may overlap. */
#define COPY_PARTS(N, LOAD, STORE, from, to, length)    \
    STORE_PART(N, STORE, LOAD_PART(N, LOAD, from), to); \
    STORE_PART(N, STORE, LOAD_PART(N, LOAD, (from) + (length) - N), (to) + (length) - N);

/*
 * Copies `length` cells, as a vector if they fill one, or as two shorter ones; a macro for either direction between the
 * kinds of memory.
 */
#define COPY_PIECE(from, to, length)                     \
    if ((length) == LANES) {                             \
        VECTOR_STORE(VECTOR_LOAD(from), to);             \
    } else if (LANES > 8 && (length) >= 8) {             \
        COPY_PARTS(8, vload8, vstore8, from, to, length) \
    } else if (LANES > 4 && (length) >= 4) {             \
        COPY_PARTS(4, vload4, vstore4, from, to, length) \
    } else {                                             \
        for (int i = 0; i < (length); i++) {             \
            WRITE_VALUE((to), i, READ_VALUE((from), i)); \
        }                                                \
    }
