/*
 * The filter's taps along an axis where phases lie side by side (phase_positions.h): the tap at a way from filter cell 0,
 * taps being DILATION apart; -1 if there is none.
 */
#define TAP_AT(way, dilation, size) \
    ((way) >= 0 && (way) % (dilation) == 0 && (way) / (dilation) < (size) ? (way) / (dilation) : -1)
