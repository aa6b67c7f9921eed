/*
 * Activation functions. ACTIVATION names one of the macros below: NAME(x) is the function, NAME_SLOPE(x, y) its
 * derivative; those in the first group need only the output y, those in the second only the input x.
 * At kinks the derivative is the one from the left, except for leaky ReLU and ELU at 0 as in PyTorch.
 *
 * Macros:
 *   ACTIVATION            the function
 *   ACTIVATION_PARAMETER  the number that it has beside its argument, if it has one: a slope, a limit
 */
#define ACTIVATION_linear(x) (x)
#define ACTIVATION_linear_SLOPE(x, y) 1.0f
#define ACTIVATION_relu(x) ((x) < 0 ? 0.0f : (x))
#define ACTIVATION_relu_SLOPE(x, y) ((y) > 0 ? 1.0f : 0.0f)
#define ACTIVATION_relu6(x) ((x) < 0 ? 0.0f : (x) > 6 ? 6.0f : (x))
#define ACTIVATION_relu6_SLOPE(x, y) ((y) > 0 && (y) < 6 ? 1.0f : 0.0f)
#define ACTIVATION_limited_relu(x) ((x) < 0 ? 0.0f : (x) > ACTIVATION_PARAMETER ? ACTIVATION_PARAMETER : (x))
#define ACTIVATION_limited_relu_SLOPE(x, y) ((y) > 0 && (y) < ACTIVATION_PARAMETER ? 1.0f : 0.0f)
#define ACTIVATION_leaky_relu(x) ((x) > 0 ? (x) : ACTIVATION_PARAMETER * (x))
#define ACTIVATION_leaky_relu_SLOPE(x, y) ((y) > 0 ? 1.0f : ACTIVATION_PARAMETER)
#define ACTIVATION_elu(x) ((x) > 0 ? (x) : expm1(x))
#define ACTIVATION_elu_SLOPE(x, y) ((y) > 0 ? 1.0f : (y) + 1)
#define ACTIVATION_sigmoid(x) (1 / (1 + exp(-(x))))
#define ACTIVATION_sigmoid_SLOPE(x, y) ((y) * (1 - (y)))
#define ACTIVATION_hard_sigmoid(x) ((x) < -3 ? 0.0f : (x) > 3 ? 1.0f : (x) * 0.16666667f + 0.5f)
#define ACTIVATION_hard_sigmoid_SLOPE(x, y) ((y) > 0 && (y) < 1 ? 0.16666667f : 0.0f)
#define ACTIVATION_tanh(x) tanh(x)
#define ACTIVATION_tanh_SLOPE(x, y) (1 - (y) * (y))
#define ACTIVATION_softplus(x) (fmax((x), 0.0f) + log1p(exp(-fabs(x))))
#define ACTIVATION_softplus_SLOPE(x, y) (-expm1(-(y)))

#define ACTIVATION_silu(x) ((x) / (1 + exp(-(x))))
#define ACTIVATION_silu_SLOPE(x, y) (ACTIVATION_sigmoid(x) * (1 + (x) * (1 - ACTIVATION_sigmoid(x))))
#define ACTIVATION_gelu(x) (0.5f * (x) * (1 + erf((x) * M_SQRT1_2_F)))
#define ACTIVATION_gelu_SLOPE(x, y) \
    (0.5f * (1 + erf((x) * M_SQRT1_2_F)) + (x) * 0.39894228f * exp(-0.5f * (x) * (x)))
#define ACTIVATION_hard_swish(x) ((x) * ACTIVATION_hard_sigmoid(x))
#define ACTIVATION_hard_swish_SLOPE(x, y) ((x) < -3 ? 0.0f : (x) > 3 ? 1.0f : (x) * 0.33333334f + 0.5f)
/* tanh(softplus(x)) = n / (n + 2) with n = e^2 + 2e, e = exp(x): 1 long before e overflows. */
#define ACTIVATION_mish_POWER(x) exp(fmin((x), 20.0f))
#define ACTIVATION_mish_N(x) (ACTIVATION_mish_POWER(x) * (ACTIVATION_mish_POWER(x) + 2))
#define ACTIVATION_mish_TANH(x) (ACTIVATION_mish_N(x) / (ACTIVATION_mish_N(x) + 2))
#define ACTIVATION_mish(x) ((x) * ACTIVATION_mish_TANH(x))
#define ACTIVATION_mish_SLOPE(x, y) \
    (ACTIVATION_mish_TANH(x)        \
     + (x) * (1 - ACTIVATION_mish_TANH(x)) * (1 + ACTIVATION_mish_TANH(x)) * ACTIVATION_sigmoid(x))

#define ACTIVATION_JOIN_(a, b) a##b
#define ACTIVATION_JOIN(a, b) ACTIVATION_JOIN_(a, b)
/* The functions of the build's ACTIVATION, e.g. -DACTIVATION=ACTIVATION_relu. */
#define ACTIVATE(x) ACTIVATION(x)
#define ACTIVATION_SLOPE(x, y) ACTIVATION_JOIN(ACTIVATION, _SLOPE)(x, y)
