/*
 * What a kernel does to a value before it stores it, for the layers after: FINISHED(value, unit), one expression.
 * blobnet/launch/elementwise.py writes it. Numbers of units that it has are arrays, after a kernel's own or its BIAS.
 *
 * Macros:
 *   FINISHED     the macro
 *   MORE_ARRAYS  the kernel's parameters for the arrays, each after a comma
 */
