/* What forward kernels add before they apply the activation. */
#if HAS_RESIDUAL
#define PLUS_RESIDUAL(value, term) ((value) + (term))
#else
#define PLUS_RESIDUAL(value, term) (value)
#endif
