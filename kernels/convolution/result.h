/*
 * The epilogue of kernels whose RESULT is the output forward, and the input's delta backward, where there is none.
 */
#define OUTPUT_UNIT_DEPTH RESULT_UNIT_DEPTH
#define OUTPUT_UNIT_DEPTH_MULTIPLIER RESULT_UNIT_DEPTH_MULTIPLIER
#define OUTPUT_UNIT_DEPTH_SHIFT RESULT_UNIT_DEPTH_SHIFT
#define OUTPUT_UNIT_HEIGHT RESULT_UNIT_HEIGHT
#define OUTPUT_UNIT_WIDTH RESULT_UNIT_WIDTH
#include "convolution/epilogue.h"
