/*
 * Convolution, backward, gradient of the weights, through local memory: gradient[o][k] = sum over samples and positions
 * of delta[o] * input at the shift of column k = (input unit, filter row, filter column). A work-group makes TILE_UNITS
 * x TILE_COLUMNS sums, a work-item ITEM_UNITS x ITEM_COLUMNS of them; TILE_DEPTH positions (cells (n, y, x) of the
 * delta, any stride) of all rows and columns lie in local memory while the next ones are on their way.
 * Splits of the positions go to a partial sum each; gradient/reduce.cl adds them in a fixed order.
 *
 * Blobs:
 *   INPUT        read  its halo is the padding
 *   OUTPUT_DELTA read data alone
 * Arrays:
 *   PARTIALS write  (SPLITS, OIHW)
 * Scalars:
 *   COUNT  samples in this batch
 * Macros:
 *   GROUP_INPUT_UNITS
 *   GROUP_OUTPUT_UNITS
 *   GROUPS
 *   FILTER_HEIGHT
 *   FILTER_WIDTH
 *   STRIDE_Y
 *   STRIDE_X
 *   DILATION_Y
 *   DILATION_X
 *   PAD_TOP
 *   PAD_LEFT
 *   SPLITS
 *   TILE_UNITS      output units a work-group
 *   TILE_COLUMNS    columns a work-group
 *   TILE_DEPTH      positions in local memory
 *   ITEM_UNITS      output units a work-item
 *   ITEM_COLUMNS    columns a work-item
 *   CHEAP_ADDRESSES 1: in few instructions, see place.h
 * Global:
 *   width   work-items a tile * tiles
 *   height  SPLITS
 *   units   groups
 */
#include "blob.h"
#include "place.h"

#define COLUMNS (GROUP_INPUT_UNITS * FILTER_HEIGHT * FILTER_WIDTH)
#define UNIT_TILES ((GROUP_OUTPUT_UNITS + TILE_UNITS - 1) / TILE_UNITS)
#define POSITIONS (OUTPUT_DELTA_UNIT_HEIGHT * OUTPUT_DELTA_UNIT_WIDTH)
/* Positions come in as rows and lie as columns: a pitch that keeps quads aligned and stores in different banks. */
#define UNIT_PITCH (TILE_UNITS + 4)
#define COLUMN_PITCH (TILE_COLUMNS + 4)
#define ITEM (int)get_local_id(0)
#include "convolution/local_product.h"
/*
 * A work-item loads every RUN-th position of every ROW_STEP-th unit and column. NOTE: those of AMD and Intel, where they
 * have few sums to make up for what a position takes, and registers left, load one position each. Of AMD's 32 store at
 * once, to a bank each if they are of 8 positions. Intel's keep distances as they are added to pointers.
 */
#if CHEAP_ADDRESSES && ITEM_UNITS * ITEM_COLUMNS <= 16
#define RUN TILE_DEPTH
#define READ READ_BEHIND
#else
#define RUN 8
#define READ READ_PLACE
#endif
#define ROW_STEP (ITEMS / RUN)
#define RUNS (TILE_DEPTH / RUN)
#define UNIT_LOADS ((TILE_UNITS + ROW_STEP - 1) / ROW_STEP)
#define COLUMN_LOADS ((TILE_COLUMNS + ROW_STEP - 1) / ROW_STEP)
#if SHARED_POINTERS
#define POSITION_OF(item) ((item) % 8 + (item) / (ROW_STEP * 8) * 8)
#define ROW_OF(item) ((item) / 8 % ROW_STEP)
#else
/* clang-format off */
#define POSITION_OF(item) item % RUN
#define ROW_OF(item) item / RUN
/* clang-format on */
#endif

typedef struct {
    real_t deltas[RUNS][UNIT_LOADS];
    real_t inputs[RUNS][COLUMN_LOADS];
} prefetch_t;

/*
 * With CHEAP_ADDRESSES all positions of a step are there, but for the first step's; `planes` and `shifts` are where the
 * first position of units and columns lies, and others at a distance from there.
 */
#if CHEAP_ADDRESSES
#define IS_POSITION(position) (positions == TILE_DEPTH || (position) - first < positions)
#define FROM_ORIGIN(ROLE, cells) (BLOB_INDEX(ROLE, 0, 0, 0, 0) + (cells))
/*
 * few * by, and p / by, for those that come up here. NOTE: AMD's GPUs multiply 24 bits, which few has, in one instruction,
 * and add if neither factor is in the instruction; and p, which has 31, needs no more than a multiplication and a shift
 * (Granlund and Montgomery, 1994): for 32 the compiler takes up to five instructions.
 */
#ifdef __AMDGCN__
#define IS_SHIFT(by) (((by) & ((by) - 1)) == 0)
#define TIMES(few, by)                                                        \
    (IS_SHIFT(by) || (by) < -(1 << 23) || (by) >= 1 << 23 ? (int)(few) * (by) \
                                                          : mul24((int)(few), in_scalar_register(by)))
INLINE int in_scalar_register(int by)
{
    __asm__("" : "+s"(by));
    return by;
}

INLINE uint position_quotient(const uint p, const uint by)
{
    const uint shift = 31 - clz(by - 1);
    uint whole = IS_SHIFT(by) ? p / by : mul_hi(p, (uint)((1UL << (32 + shift)) / by + 1)) >> shift;
    /* Else it moves the bits to where mul24 takes them from, by a second shift. */
    __asm__("" : "+v"(whole));
    return whole;
}
#else
/* clang-format off */
#define TIMES(few, by) ((int)(few) * (by))
/* clang-format on */
/* Intel's compiler takes as few where a factor of 32 bits is enough for all numbers. */
INLINE uint position_quotient(const uint p, const uint by)
{
    const uint shift = 31 - clz(by - 1);
    const ulong power = (ulong)1 << (32 + shift);
    return (by & (by - 1)) == 0 || by - power % by <= (uint)1 << shift
               ? p / by
               : mul_hi(p, (uint)(power / by + 1)) >> shift;
}
#endif
/* How many bytes position p, of sample n and row `all_y` of all samples, is from the first one, by what each adds. */
#define BYTES_TO(of_sample, of_row, of_cell) (TIMES(n, of_sample) + TIMES(all_y, of_row) + p * (of_cell))
#define OF_SAMPLE(type, sample, row) ((int)sizeof(type) * ((sample) - OUTPUT_DELTA_UNIT_HEIGHT * (row)))
#define OF_ROW(type, row, cell) ((int)sizeof(type) * ((row) - OUTPUT_DELTA_UNIT_WIDTH * (cell)))
#define INPUT_OF_SAMPLE OF_SAMPLE(input_t, INPUT_MEMORY_ELEMENTS, STRIDE_Y *INPUT_UNIT_MEMORY_WIDTH)
#define INPUT_OF_ROW OF_ROW(input_t, STRIDE_Y *INPUT_UNIT_MEMORY_WIDTH, STRIDE_X)
#define INPUT_OF_CELL ((int)sizeof(input_t) * STRIDE_X)
#define DELTA_OF_SAMPLE \
    OF_SAMPLE(output_delta_t, OUTPUT_DELTA_MEMORY_ELEMENTS, OUTPUT_DELTA_UNIT_MEMORY_WIDTH)
#define DELTA_OF_ROW OF_ROW(output_delta_t, OUTPUT_DELTA_UNIT_MEMORY_WIDTH, 1)
#define DELTA_OF_CELL (int)sizeof(output_delta_t)
#else
#define IS_POSITION(position) position < positions
#define FROM_ORIGIN(ROLE, cells) cells
#endif

/*
 * Where units and columns lie, as parameters and arguments of functions. With SHARED_POINTERS the ROW_STEP units that are
 * loaded at once have one, if they are all there or none of them, and so have columns of filters of one tap; a work-item
 * has one distance for all of them then. So that they are all there, the last tile begins where it is whole; what it makes
 * once more are the same numbers.
 */
#if SHARED_POINTERS
#define FIRST_OF_TILE(first, tile, all) ((all) >= (tile) ? min((int)(first), (all) - (tile)) : (int)(first))
#define ARE_IN_COMMON(all, tile) ((all) >= (tile) || (all) % ROW_STEP == 0)
#define UNITS_IN_COMMON ARE_IN_COMMON(GROUP_OUTPUT_UNITS, TILE_UNITS)
#define COLUMNS_IN_COMMON \
    (FILTER_HEIGHT * FILTER_WIDTH == 1 && ARE_IN_COMMON(GROUP_INPUT_UNITS, TILE_COLUMNS))
#define LOAD_PARAMETERS                                                                           \
    __global const output_delta_t *const unit_pointers[UNIT_LOADS], const int planes[UNIT_LOADS], \
        __global const input_t *const column_pointers[COLUMN_LOADS], const int shifts[COLUMN_LOADS]
#define LOAD_ARGUMENTS unit_pointers, planes, column_pointers, shifts
#define READ_DELTA(i) READ_PLACE(output_delta_t, unit_pointers[i], deltas, planes[i])
#define READ_INPUT(i) READ_PLACE(input_t, column_pointers[i], inputs, shifts[i])
#else
#define FIRST_OF_TILE(first, tile, all) first
#define LOAD_PARAMETERS const int planes[UNIT_LOADS], const int shifts[COLUMN_LOADS]
#define LOAD_ARGUMENTS planes, shifts
#define READ_DELTA(i) READ(output_delta_t, output_delta, deltas, planes[i])
#define READ_INPUT(i) READ(input_t, input, inputs, shifts[i])
#endif

/* Positions from `first` on: as many, or those of them that are less than `positions`. */
INLINE void fetch(prefetch_t *next, const int first, const int positions, READ_BLOB(output_delta),
                  READ_BLOB(input), LOAD_PARAMETERS)
{
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        /* Positions past the last one repeat it, times 0. */
        const int position = first + POSITION_OF((int)get_local_id(0)) + run * RUN;
#if CHEAP_ADDRESSES
        int p = positions == TILE_DEPTH ? position : min(position, first + positions - 1);
#if SHARED_POINTERS
        /* NOTE: else the compiler has several numbers go along with it, and divides each. */
        __asm__("" : "+v"(p));
#endif
        const uint n = position_quotient((uint)p, POSITIONS);
        const uint all_y = position_quotient((uint)p, OUTPUT_DELTA_UNIT_WIDTH);
#if SHARED_POINTERS
        uint deltas = BYTES_TO(DELTA_OF_SAMPLE, DELTA_OF_ROW, DELTA_OF_CELL);
        uint inputs = BYTES_TO(INPUT_OF_SAMPLE, INPUT_OF_ROW, INPUT_OF_CELL);
        /* NOTE: else the compiler makes sums of a part of this and each of `shifts` ahead, and adds the rest to all. */
        __asm__("" : "+v"(deltas), "+v"(inputs));
#else
        const uint inputs = BYTES_TO(INPUT_OF_SAMPLE, INPUT_OF_ROW, INPUT_OF_CELL);
        /* By how much farther they are: of filters at a stride of 1 a cell adds nothing to that. */
        const uint deltas = inputs
                            + BYTES_TO(DELTA_OF_SAMPLE - INPUT_OF_SAMPLE, DELTA_OF_ROW - INPUT_OF_ROW,
                                       DELTA_OF_CELL - INPUT_OF_CELL);
#endif
#else
        const int p = min(position, positions - 1);
        const int n = p / POSITIONS;
        const int y = p % POSITIONS / OUTPUT_DELTA_UNIT_WIDTH;
        const int x = p % OUTPUT_DELTA_UNIT_WIDTH;
        PLACE_OF(output_delta_t)
        deltas = PLACE(output_delta_t, output_delta, BLOB_INDEX(OUTPUT_DELTA, n, 0, y, x));
        PLACE_OF(input_t)
        inputs = PLACE(input_t, input, BLOB_INDEX(INPUT, n, 0, y * STRIDE_Y, x * STRIDE_X));
#endif
#pragma unroll
        for (int i = 0; i < UNIT_LOADS; i++) {
            next->deltas[run][i] = IS_POSITION(position) ? READ_DELTA(i) : 0;
        }
#pragma unroll
        for (int i = 0; i < COLUMN_LOADS; i++) {
            next->inputs[run][i] = READ_INPUT(i);
        }
    }
}

INLINE void put(const prefetch_t *next, __local real_t *deltas, __local real_t *inputs)
{
    const int row = ROW_OF(get_local_id(0));
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        const int position = POSITION_OF(get_local_id(0)) + run * RUN;
#pragma unroll
        for (int i = 0; i < UNIT_LOADS; i++) {
            if (TILE_UNITS % ROW_STEP == 0 || row + i * ROW_STEP < TILE_UNITS) {
                deltas[position * UNIT_PITCH + row + i * ROW_STEP] = next->deltas[run][i];
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMN_LOADS; i++) {
            if (TILE_COLUMNS % ROW_STEP == 0 || row + i * ROW_STEP < TILE_COLUMNS) {
                inputs[position * COLUMN_PITCH + row + i * ROW_STEP] = next->inputs[run][i];
            }
        }
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
convolution_backward_weight_tiled(READ_BLOB(input), READ_BLOB(output_delta), WRITE_ARRAY(real_t, partials),
                                  const int count)
{
    __local real_t local_deltas[2][TILE_DEPTH * UNIT_PITCH] __attribute__((aligned(128)));
    __local real_t local_inputs[2][TILE_DEPTH * COLUMN_PITCH] __attribute__((aligned(128)));
    const int item = get_local_id(0);
    const int first_unit =
        FIRST_OF_TILE(get_group_id(0) % UNIT_TILES * TILE_UNITS, TILE_UNITS, GROUP_OUTPUT_UNITS);
    const int first_column =
        FIRST_OF_TILE(get_group_id(0) / UNIT_TILES * TILE_COLUMNS, TILE_COLUMNS, COLUMNS);
    const int split = GLOBAL_ID_OF_GROUP(1);
    const int group = GLOBAL_ID_OF_GROUP(2);

    int planes[UNIT_LOADS];
    int shifts[COLUMN_LOADS];
    /* Units and columns past the last one repeat it; their sums are not stored. */
#pragma unroll
    for (int i = 0; i < UNIT_LOADS; i++) {
        int unit = first_unit + ROW_OF(item) + i * ROW_STEP;
        unit = GROUP_OUTPUT_UNITS % TILE_UNITS == 0 ? unit : min(unit, GROUP_OUTPUT_UNITS - 1);
        planes[i] =
            DISTANCE(output_delta_t, FROM_ORIGIN(OUTPUT_DELTA, (group * GROUP_OUTPUT_UNITS + unit)
                                                                   * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS));
    }
#pragma unroll
    for (int i = 0; i < COLUMN_LOADS; i++) {
        int k = first_column + ROW_OF(item) + i * ROW_STEP;
        k = COLUMNS % TILE_COLUMNS == 0 ? k : min(k, COLUMNS - 1);
        shifts[i] = DISTANCE(
            input_t, FROM_ORIGIN(INPUT, (group * GROUP_INPUT_UNITS + k / (FILTER_HEIGHT * FILTER_WIDTH))
                                                * INPUT_UNIT_MEMORY_ELEMENTS
                                            + (k / FILTER_WIDTH % FILTER_HEIGHT * DILATION_Y - PAD_TOP)
                                                  * INPUT_UNIT_MEMORY_WIDTH
                                            + k % FILTER_WIDTH * DILATION_X - PAD_LEFT));
    }
#if SHARED_POINTERS
    /* NOTE: a compiler that knew what pointers are of would add what they have in common to the work-item's part. */
    __global const output_delta_t *unit_pointers[UNIT_LOADS];
    __global const input_t *column_pointers[COLUMN_LOADS];
#pragma unroll
    for (int i = 0; i < UNIT_LOADS; i++) {
        unit_pointers[i] = output_delta;
        if (UNITS_IN_COMMON) {
            const int first = min(first_unit + i * ROW_STEP, GROUP_OUTPUT_UNITS - ROW_STEP);
            unit_pointers[i] += FROM_ORIGIN(OUTPUT_DELTA, (group * GROUP_OUTPUT_UNITS + first)
                                                              * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS);
            planes[i] = DISTANCE(output_delta_t, ROW_OF(item) * OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS);
            __asm__("" : "+s"(unit_pointers[i]));
        }
    }
#pragma unroll
    for (int i = 0; i < COLUMN_LOADS; i++) {
        column_pointers[i] = input;
        if (COLUMNS_IN_COMMON) {
            const int first = min(first_column + i * ROW_STEP, GROUP_INPUT_UNITS - ROW_STEP);
            column_pointers[i] +=
                FROM_ORIGIN(INPUT, (group * GROUP_INPUT_UNITS + first) * INPUT_UNIT_MEMORY_ELEMENTS
                                       - PAD_TOP * INPUT_UNIT_MEMORY_WIDTH - PAD_LEFT);
            shifts[i] = DISTANCE(input_t, ROW_OF(item) * INPUT_UNIT_MEMORY_ELEMENTS);
            __asm__("" : "+s"(column_pointers[i]));
        }
    }
#endif
    real_t sums[ITEM_UNITS][ITEM_COLUMNS];
    clear(sums);

    const int positions = count * POSITIONS;
    const int all_steps = (positions + TILE_DEPTH - 1) / TILE_DEPTH;
    const int first_step = (int)((long)all_steps * split / SPLITS);
    const int steps = (int)((long)all_steps * (split + 1) / SPLITS) - first_step;
    if (steps > 0) {
        int position = first_step * TILE_DEPTH;
        prefetch_t next;
#if CHEAP_ADDRESSES
        const int end = min(position + steps * TILE_DEPTH, positions);
        const int rows = FIRST_ROWS(end - position);
        fetch(&next, position, rows, output_delta, output_delta_unit_offset, input, input_unit_offset,
              LOAD_ARGUMENTS);
        put(&next, local_deltas[0], local_inputs[0]);
        barrier(CLK_LOCAL_MEM_FENCE);
        DECLARE_TILES(deltas, local_deltas[0], local_deltas[1]);
        DECLARE_TILES(inputs, local_inputs[0], local_inputs[1]);
        for (position += rows; position < end; position += TILE_DEPTH) {
            fetch(&next, position, TILE_DEPTH, output_delta, output_delta_unit_offset, input,
                  input_unit_offset, LOAD_ARGUMENTS);
            multiply(sums, deltas_now, inputs_now);
            put(&next, LATER(deltas), LATER(inputs));
            barrier(CLK_LOCAL_MEM_FENCE);
            SWAP_TILES(deltas);
            SWAP_TILES(inputs);
        }
        multiply(sums, deltas_now, inputs_now);
#else
        fetch(&next, position, positions, output_delta, output_delta_unit_offset, input, input_unit_offset,
              LOAD_ARGUMENTS);
        put(&next, local_deltas[0], local_inputs[0]);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = 0; step < steps - 1; step++) {
            position += TILE_DEPTH;
            fetch(&next, position, positions, output_delta, output_delta_unit_offset, input,
                  input_unit_offset, LOAD_ARGUMENTS);
            multiply(sums, local_deltas[step % 2], local_inputs[step % 2]);
            put(&next, local_deltas[(step + 1) % 2], local_inputs[(step + 1) % 2]);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        multiply(sums, local_deltas[(steps - 1) % 2], local_inputs[(steps - 1) % 2]);
#endif
    }

    __global real_t *results =
        ARRAY(partials) + ((size_t)split * GROUPS + group) * GROUP_OUTPUT_UNITS * COLUMNS;
    store_matrix(results, sums, GROUP_OUTPUT_UNITS, COLUMNS, first_unit, first_column);
}
