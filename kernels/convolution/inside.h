/* Of `count` cells, `start` and each `step` after the last: those from 0 to size - 1, as (first, end). */
INLINE int2 inside(const int start, const int step, const int count, const int size)
{
    int2 range = (int2)(0, count);
    while (range.x < range.y && (start + range.x * step < 0 || start + range.x * step >= size)) {
        range.x++;
    }
    while (range.x < range.y && (start + (range.y - 1) * step < 0 || start + (range.y - 1) * step >= size)) {
        range.y--;
    }
    return range;
}
