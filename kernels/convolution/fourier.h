/*
 * Convolution by discrete Fourier transforms of patches of SIDE x SIDE cells (Mathieu et al. 2014, arXiv 1312.5851): at
 * each point k of the spectra
 *
 *     result(k) = sum over units of source(k) * conjugate(weight(k)),
 *
 * of which CELLS x CELLS cells are those of the convolution. Likewise
 *
 *     gradient(k) = sum over patches of source(k) * conjugate(delta(k)).
 *
 * Cells are real, so that point -k is the conjugate of point k: spectra are kept at half of the points, those that are
 * IS_POINT(y, x). NOTE: two patches as one complex one would cost half of the transforms, but then the bits of a sample
 * would depend on its neighbour's, and a NaN there be its own.
 *
 * Products are of real numbers: (r, i) in the left factor are two rows, in the right one the rows (r, i) and (i, -r) of
 * two columns.
 */
#define SIDE 32
#define HALF (SIDE / 2)
/* Columns 0 and HALF are their own opposites, of which half is enough. */
#define POINTS (SIDE * HALF + 2)
#define IS_POINT(y, x) ((x) % HALF ? (x) < HALF : (y) <= HALF)
#define POINT(y, x) ((x) % HALF ? ((x) - 1) * SIDE + (y) : (HALF - 1) * SIDE + (x) / HALF * (HALF + 1) + (y))
#define OPPOSITE(i) ((SIDE - (i)) % SIDE)

__constant real_t COSINES[SIDE] = {
    1,  0.98078528f,  0.92387953f,  0.83146961f,  0.70710678f,  0.55557023f,  0.38268343f,  0.19509032f,
    0,  -0.19509032f, -0.38268343f, -0.55557023f, -0.70710678f, -0.83146961f, -0.92387953f, -0.98078528f,
    -1, -0.98078528f, -0.92387953f, -0.83146961f, -0.70710678f, -0.55557023f, -0.38268343f, -0.19509032f,
    0,  0.19509032f,  0.38268343f,  0.55557023f,  0.70710678f,  0.83146961f,  0.92387953f,  0.98078528f};
#define COSINE(turn) COSINES[(turn) % SIDE]
#define SINE(turn) COSINES[((turn) + SIDE * 3 / 4) % SIDE]

/* One of the five steps of a transform, by halving (Cooley & Tukey 1965): results end up in reversed order of bits. */
INLINE void butterflies(real_t real[SIDE], real_t imaginary[SIDE], const int apart)
{
#pragma unroll
    for (int i = 0; i < SIDE / 2; i++) {
        const int a = i / apart * 2 * apart + i % apart;
        const int b = a + apart;
        const int turn = i % apart * (SIDE / 2 / apart);
        const real_t r = real[a] - real[b];
        const real_t s = imaginary[a] - imaginary[b];
        real[a] += real[b];
        imaginary[a] += imaginary[b];
        real[b] = r * COSINE(turn) + s * SINE(turn);
        imaginary[b] = s * COSINE(turn) - r * SINE(turn);
    }
}

/* The transform of SIDE numbers; the inverse one, times SIDE, if real and imaginary parts change places. */
INLINE void transform(real_t real[SIDE], real_t imaginary[SIDE])
{
    butterflies(real, imaginary, SIDE / 2);
    butterflies(real, imaginary, 8);
    butterflies(real, imaginary, 4);
    butterflies(real, imaginary, 2);
    butterflies(real, imaginary, 1);
}

/* Where a transform leaves result i. */
#define REVERSED(i) (((i) & 1) << 4 | ((i) & 2) << 2 | ((i) & 4) | ((i) & 8) >> 2 | ((i) & 16) >> 4)

/*
 * A work-group transforms LANES patches. A work-item has a column of one of them, COLUMN_LANE and COLUMN, with neighbours
 * side by side in the plane; then a row, ROW_LANE and ROW, with neighbours in other patches, which lie side by side in the
 * spectrum. From one to the other values go through local memory, at pitches for which neighbours meet different banks.
 */
#define LANES 8
#define ITEM (int)get_local_id(0)
#define ITEMS (LANES * SIDE)
#define COLUMN_LANE (ITEM / SIDE)
#define COLUMN (ITEM % SIDE)
#define ROW_LANE (ITEM % LANES)
#define ROW (ITEM / LANES)
#define STAGED ((SIDE * (SIDE + 1) + 4) * LANES)
#define STAGED_AT(lane, y, x) (((lane) * SIDE + (y)) * (SIDE + 1) + (lane) * 4 + (x))

/* Where values lie between, and how far from one another: those of a column, and those of a row. */
#define OF_COLUMN STAGED_AT(COLUMN_LANE, 0, COLUMN), (SIDE + 1)
#define OF_ROW STAGED_AT(ROW_LANE, ROW, 0), 1

/* What transform() left changes hands: exchange(values, staged, OF_COLUMN, OF_ROW) brings a work-item its row. */
INLINE void exchange(real_t values[SIDE], __local real_t *staged, const int from, const int from_step,
                     const int to, const int to_step)
{
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        staged[from + i * from_step] = values[REVERSED(i)];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        values[i] = staged[to + i * to_step];
    }
}

/* The column of the real part of a patch; the imaginary part's is LANES away. */
#define PATCH_COLUMN(patch) ((patch) / LANES * (2 * LANES) + (patch) % LANES)
