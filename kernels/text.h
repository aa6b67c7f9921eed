/* What a macro stands for as text, for assembly. */
#define AS_TEXT(number) #number
#define TEXT_OF(number) AS_TEXT(number)
