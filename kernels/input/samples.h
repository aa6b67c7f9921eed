/* Number i of samples of SAMPLE_TYPE, as a real number; halves can be loaded where nothing computes with them. */
#if HALF_SAMPLES
#define SAMPLE(from, i) vload_half(i, from)
#else
#define SAMPLE(from, i) ((real_t)(from)[i])
#endif
