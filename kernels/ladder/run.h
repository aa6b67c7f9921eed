/*
 * `length` consecutive values into registers, in as few loads as there are vectors for: 9 are one of 8 and one of 1.
 * NOTE: vloadn promises no alignment, so a compiler may still split it (NVIDIA's does). An unroll pragma would make
 * PoCL warn of the copy that is never called; `length` is a constant wherever it is, so that compilers unroll anyway.
 */
INLINE void load_run(real_t *values, __global const real_t *from, const int length)
{
    for (int i = 0; i < length / 8; i++) {
        vstore8(vload8(i, from), i, values);
    }
    values += length / 8 * 8;
    from += length / 8 * 8;
    if (length & 4) {
        vstore4(vload4(0, from), 0, values);
        values += 4;
        from += 4;
    }
    if ((length & 3) == 3) {
        vstore3(vload3(0, from), 0, values);
    } else if ((length & 3) == 2) {
        vstore2(vload2(0, from), 0, values);
    } else if ((length & 3) == 1) {
        *values = *from;
    }
}
