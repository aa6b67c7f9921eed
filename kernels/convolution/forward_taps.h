/*
 * The taps of a forward convolution, for convolution/direct.h, tiled.h and tensor.h: all of the filter's, in its order, from
 * the padding on.
 */
#define DEPTH GROUP_INPUT_UNITS
#define TAPS_Y FILTER_HEIGHT
#define TAPS_X FILTER_WIDTH
#define TAP_Y_FIRST 0
#define TAP_Y_STEP 1
#define TAP_X_FIRST 0
#define TAP_X_STEP 1
#define ROW_FIRST (-PAD_TOP)
#define ROW_STEP DILATION_Y
#define COLUMN_FIRST (-PAD_LEFT)
#define COLUMN_STEP DILATION_X
#define RESULT_HEIGHT OUTPUT_UNIT_HEIGHT
#define RESULT_WIDTH OUTPUT_UNIT_WIDTH
#define SOURCE_PITCH INPUT_UNIT_MEMORY_WIDTH
#define SOURCE_PLANE INPUT_UNIT_MEMORY_ELEMENTS
#define SOURCE_ORIGIN \
    (INPUT_UNIT_MEMORY_HEIGHT_OFFSET * INPUT_UNIT_MEMORY_WIDTH + INPUT_UNIT_MEMORY_WIDTH_OFFSET)
