/*
 * What a phase of a convolution's backward pass to its input reads, for convolution/tiled.h and convolution/tensor.h.
 */
#define DEPTH GROUP_OUTPUT_UNITS
#define SOURCE_PITCH OUTPUT_DELTA_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE OUTPUT_DELTA_UNIT_MEMORY_ELEMENTS
#define SOURCE_WIDTH OUTPUT_DELTA_UNIT_WIDTH
#define SOURCE_ELEMENTS OUTPUT_DELTA_UNIT_ELEMENTS
#define SOURCE_ORIGIN                                                        \
    (OUTPUT_DELTA_UNIT_MEMORY_HEIGHT_OFFSET * OUTPUT_DELTA_UNIT_MEMORY_WIDTH \
     + OUTPUT_DELTA_UNIT_MEMORY_WIDTH_OFFSET)
