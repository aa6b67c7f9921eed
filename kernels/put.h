/*
 * How a kernel stores a result, or with ACCUMULATE adds it to what is there: by PUT, or, if it loads all before it
 * stores anything, by OLD and PLUS_OLD.
 */
#if ACCUMULATE
#define OLD(pointer) VALUE_OF(pointer)
#define PLUS_OLD(value, old) ((old) + (value))
#define PUT(value, pointer) ADD_VALUE(value, pointer)
#else
#define OLD(pointer) 0
#define PLUS_OLD(value, old) (value)
#define PUT(value, pointer) SET_VALUE(value, pointer)
#endif
