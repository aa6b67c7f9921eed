/*
 * What a phase of a convolution's backward pass to its input reads and computes, for convolution/tiled.h and
 * convolution/tensor.h.
 */
#define DEPTH GROUP_OUTPUT_UNITS
#define RESULT_HEIGHT ((INPUT_DELTA_UNIT_HEIGHT - PHASE_Y + STRIDE_Y - 1) / STRIDE_Y)
#define RESULT_WIDTH ((INPUT_DELTA_UNIT_WIDTH - PHASE_X + STRIDE_X - 1) / STRIDE_X)
#define SOURCE_PITCH OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#define SOURCE_ORIGIN                                                        \
    (OUTPUT_DELTA_UNIT_MEMORY_HEIGHT_OFFSET * OUTPUT_DELTA_UNIT_MEMORY_WIDTH \
     + OUTPUT_DELTA_UNIT_MEMORY_WIDTH_OFFSET)
