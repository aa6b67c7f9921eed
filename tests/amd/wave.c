/* Executes waves of LANES lanes, 32 or 64, of RDNA 3 machine code that was decoded before (tests/amd/decoder.py).

   Semantics: AMD, "RDNA3" Instruction Set Architecture Reference Guide (2023), chapter 16, in the modes that OpenCL's
   kernels run in; where it leaves errors to the hardware: tests/amd/instructions.py. The cases of the switch below are
   made from the tables there (tests/amd/machine.py). */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#pragma clang diagnostic ignored "-Wunused-variable"

/* A bit for each lane, in one scalar register or two. */
#if LANES == 64
typedef uint64_t mask_t;
#else
typedef uint32_t mask_t;
#endif
/* Scalar registers with a meaning. */
enum { VCC = 106, NONE = 124, M0 = 125, EXEC = 126 };
/* Where a source comes from. */
enum { CONSTANT, SCALAR_REGISTER, VECTOR_REGISTER };
/* Why a wave stops, or a launch; below 0 by a fault. */
enum { ENDED, AT_BARRIER, TURN_OVER };
enum { UNKNOWN = -1, OUTSIDE_BUFFERS = -2, TOO_LONG = -3, BARRIER_MISSED = -4, OUTSIDE_LOCAL = -5, OUTSIDE_SCRATCH = -6,
       OUTSIDE_CODE = -7, OUTSIDE_REGISTERS = -8 };
/* What memory and registers hold at first: floats that are not numbers, and show what they are. */
enum { GARBAGE_LOCAL = 0xffc0dead, GARBAGE_SCALAR = 0xffc0beef, GARBAGE_VECTOR = 0xffc0f00d };

/* The same as in tests/amd/machine.py. ``half``: of 16 bits the upper ones; ``is_half``: it is one, of FMA_MIX. */
typedef struct { int32_t kind, number; uint64_t value; uint32_t negative, absolute, half, is_half; } Source;
typedef struct {
  int32_t operation, d, d2, address, is_first, clamp, scale, base;
  int64_t immediate, immediate2;
  Source source[4];
} Instruction;
typedef struct {
  uint32_t s[128], v[256][LANES], late[LANES], condition, pc, state, late_d, is_late, scratch_bytes;
  uint8_t *scratch, *local;
} Wave;
typedef struct { uint64_t start, bytes; } Region;
/* What memory instructions cost, if asked for; the same in tests/amd/machine.py. */
typedef struct { uint64_t banks, line, loaded, stored, lines, local_clocks, conflicts; } Traffic;
typedef struct {
  uint64_t executed, most, code, fault_address, turn, random, sampled, groups;
  const Region *regions;
  const uint32_t *places; /* the instruction at each word of the code */
  uint64_t *counts;       /* how often each instruction was executed */
  Traffic *traffic;       /* or 0 */
  uint32_t region_count, place_count, local_bytes, fault_pc, fault_lane, last_region;
} Launch;

/* What many cases of the switch call: with copies of it in all of them that takes a compiler half a minute. */
#define CALLED static __attribute__((noinline))
static inline uint32_t bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float float_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline _Float16 half_of(uint32_t u) { uint16_t h = (uint16_t)u; _Float16 f; memcpy(&f, &h, 2); return f; }
static inline uint32_t bits_of_half(_Float16 f) { uint16_t h; memcpy(&h, &f, 2); return h; }

/* -- functions of a lane -- */

#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define MOST(a, b) ((a) > (b) ? (a) : (b))
static inline int32_t extended(uint32_t x, uint32_t bits) { return (int32_t)(x << (32 - bits)) >> (32 - bits); }
static inline uint32_t unsigned_field(uint32_t a, uint32_t b, uint32_t c) {
  return (a >> (b & 31)) & ((1u << (c & 31)) - 1);
}
static inline int32_t signed_field(uint32_t a, uint32_t b, uint32_t c) {
  return (c & 31) ? extended((uint32_t)((int32_t)a >> (b & 31)), c & 31) : 0;
}
/* Offset and size lie in one register. */
static inline uint32_t scalar_field(uint32_t a, uint32_t b) {
  uint32_t size = b >> 16 & 127, x = a >> (b & 31);
  return size < 32 ? x & ((1u << size) - 1) : x;
}
static inline int32_t scalar_signed_field(uint32_t a, uint32_t b) {
  uint32_t size = b >> 16 & 127;
  int32_t x = (int32_t)a >> (b & 31);
  return size == 0 ? 0 : size < 32 ? extended((uint32_t)x, size) : x;
}
static inline uint64_t wide_field(uint64_t a, uint32_t b) {
  uint32_t size = b >> 16 & 127;
  uint64_t x = a >> (b & 63);
  return size < 64 ? x & ((1ull << size) - 1) : x;
}
static inline int64_t wide_signed_field(uint64_t a, uint32_t b) {
  uint32_t size = b >> 16 & 127;
  int64_t x = (int64_t)a >> (b & 63);
  return size == 0 ? 0 : size < 64 ? (int64_t)((uint64_t)x << (64 - size)) >> (64 - size) : x;
}
static inline uint32_t permuted_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint64_t both = (uint64_t)a << 32 | b;
  uint32_t result = 0;
  for (int k = 0; k < 4; k++) {
    uint32_t which = selector >> 8 * k & 255, byte;
    if (which >= 13) byte = 255;
    else if (which == 12) byte = 0;
    else if (which >= 8) byte = both >> (16 * (which - 8) + 15) & 1 ? 255 : 0;
    else byte = both >> 8 * which & 255;
    result |= byte << 8 * k;
  }
  return result;
}
static inline int biased_exponent(float f) { return bits_of(f) >> 23 & 255; }
static inline int is_denormal(float f) { return biased_exponent(f) == 0 && (bits_of(f) & 0x7fffff); }
/* 0 of the same sign for denormals. */
static inline float flushed(float f) { return is_denormal(f) ? copysignf(0, f) : f; }
static inline float minimum(float a, float b) {
  if (a != a || b != b) return a != a ? b : a;
  return a < b || (a == b && signbit(a)) ? a : b;
}
static inline float maximum(float a, float b) {
  if (a != a || b != b) return a != a ? b : a;
  return a > b || (a == b && !signbit(a)) ? a : b;
}
static inline float median(float a, float b, float c) {
  if (a != a || b != b || c != c) return minimum(minimum(a, b), c);
  return maximum(minimum(a, b), minimum(maximum(a, b), c));
}
static inline float fraction(float a) {
  float f = a - floorf(a);
  return f > 0x1.fffffep-1f ? 0x1.fffffep-1f : f;
}
static inline float mantissa(float f) { int e; return isfinite(f) ? frexpf(f, &e) : f; }
static inline int exponent(float f) { int e = 0; if (isfinite(f)) frexpf(f, &e); return e; }
static inline int32_t signed_of(float f) {
  return f != f ? 0 : f >= 0x1p31f ? INT32_MAX : f <= -0x1p31f ? INT32_MIN : (int32_t)f;
}
static inline uint32_t unsigned_of(float f) {
  return f != f || f <= 0 ? 0 : f >= 0x1p32f ? UINT32_MAX : (uint32_t)f;
}
/* Division: what is large or small is scaled, b is the denominator and c the numerator, a one of them. */
static inline float division_scaled(float a, float b, float c, int *scaled) {
  *scaled = 0;
  if (b == 0 || c == 0) return NAN;
  if (biased_exponent(c) - biased_exponent(b) >= 96) { *scaled = 1; return a == b ? ldexpf(a, 64) : a; }
  if (is_denormal(b)) return ldexpf(a, 64);
  int small_reciprocal = fabs(1.0 / (double)b) < 0x1p-126, small_result = fabs((double)c / b) < 0x1p-126;
  if (small_reciprocal && small_result) { *scaled = 1; return a == b ? ldexpf(a, 64) : a; }
  if (small_reciprocal) return ldexpf(a, -64);
  if (small_result) { *scaled = 1; return a == c ? ldexpf(a, 64) : a; }
  return biased_exponent(c) <= 23 ? ldexpf(a, 64) : a;
}
static inline float scaled_up(float f) {
  return biased_exponent(f) > 127 ? ldexpf(f, 64) : ldexpf(f, -64);
}
/* A quotient a of c by b, mended for special cases. */
static inline float division_fixed(float a, float b, float c) {
  int negative = signbit(b) != signbit(c);
  float sign = negative ? -1 : 1;
  if (c != c) return float_of(bits_of(c) | 0x400000);
  if (b != b) return float_of(bits_of(b) | 0x400000);
  if ((b == 0 && c == 0) || (isinf(b) && isinf(c))) return float_of(0xffc00000);
  if (b == 0 || isinf(c)) return sign * INFINITY;
  if (isinf(b) || c == 0) return sign * 0.0f;
  if (biased_exponent(c) - biased_exponent(b) < -150) return sign * 0.0f;
  if (biased_exponent(b) == 255) return sign * INFINITY;
  return copysignf(a, sign);
}
static inline int is_of_class(float f, uint32_t mask) {
  uint32_t negative = bits_of(f) >> 31, bit;
  if (f != f) bit = bits_of(f) & 0x400000 ? 1 : 0;
  else if (isinf(f)) bit = negative ? 2 : 9;
  else if (f == 0) bit = negative ? 5 : 6;
  else if (is_denormal(f)) bit = negative ? 4 : 7;
  else bit = negative ? 3 : 8;
  return mask >> bit & 1;
}

/* -- registers -- */

/* A source in each lane: a register as it is, or a copy in t. */
CALLED const uint32_t *lanes(const Wave *w, const Source *x, uint32_t *t) {
  if (x->kind == VECTOR_REGISTER && !(x->negative | x->absolute)) return w->v[x->number];
  if (x->kind == VECTOR_REGISTER) memcpy(t, w->v[x->number], 4 * LANES);
  else {
    uint32_t value = x->kind == SCALAR_REGISTER ? w->s[x->number] : (uint32_t)x->value;
    for (int l = 0; l < LANES; l++) t[l] = value;
  }
  if (x->absolute) for (int l = 0; l < LANES; l++) t[l] &= 0x7fffffff;
  if (x->negative) for (int l = 0; l < LANES; l++) t[l] ^= 0x80000000;
  return t;
}
/* The same of 16 bits, in the lower half of t. */
CALLED const uint32_t *half_lanes(const Wave *w, const Source *x, uint32_t *t) {
  Source plain = *x;
  plain.negative = plain.absolute = 0;
  const uint32_t *from = lanes(w, &plain, t);
  for (int l = 0; l < LANES; l++) {
    uint32_t value = from[l] >> (x->half ? 16 : 0) & 0xffff;
    if (x->absolute) value &= 0x7fff;
    t[l] = x->negative ? value ^ 0x8000 : value;
  }
  return t;
}
static uint32_t scalar(const Wave *w, const Source *x) {
  return x->kind == SCALAR_REGISTER ? w->s[x->number] : (uint32_t)x->value;
}
static inline uint64_t pair(const Wave *w, int place) { return w->s[place] | (uint64_t)w->s[place + 1] << 32; }
static uint64_t scalar64(const Wave *w, const Source *x) {
  if (x->kind != SCALAR_REGISTER) return x->value;
  return x->number == NONE ? 0 : pair(w, x->number);
}
static void set_scalar64(Wave *w, int d, uint64_t value) { w->s[d] = (uint32_t)value; w->s[d + 1] = value >> 32; }
static inline mask_t mask_at(const Wave *w, int place) { return LANES == 64 ? pair(w, place) : w->s[place]; }
static mask_t mask(const Wave *w, const Source *x) { return LANES == 64 ? scalar64(w, x) : scalar(w, x); }
static void set_mask(Wave *w, int d, mask_t value) {
  w->s[d] = (uint32_t)value;
  if (LANES == 64) w->s[d + 1] = (uint64_t)value >> 32;
}
CALLED const uint64_t *wide_lanes(const Wave *w, const Source *x, uint64_t *t) {
  if (x->kind == VECTOR_REGISTER)
    for (int l = 0; l < LANES; l++) t[l] = w->v[x->number][l] | (uint64_t)w->v[x->number + 1][l] << 32;
  else {
    uint64_t value = scalar64(w, x);
    for (int l = 0; l < LANES; l++) t[l] = value;
  }
  return t;
}
/* Gives a register what the lanes at work have computed. */
CALLED void put(Wave *w, int d, const uint32_t *values) {
  uint32_t *to = w->v[d];
  mask_t active = mask_at(w, EXEC);
  if (active == (mask_t)-1) { memcpy(to, values, 4 * LANES); return; }
  for (int l = 0; l < LANES; l++) to[l] = active >> l & 1 ? values[l] : to[l];
}
/* The same for halves of a pair: both read before one of them writes. */
CALLED void put_of_pair(Wave *w, const Instruction *I, const uint32_t *values) {
  if (I->is_first) {
    memcpy(w->late, values, 4 * LANES);
    w->late_d = I->d, w->is_late = 1;
    return;
  }
  put(w, I->d, values);
  if (w->is_late) put(w, w->late_d, w->late);
  w->is_late = 0;
}
static inline float scaled_and_clamped(const Instruction *I, float f) {
  if (I->scale) f *= I->scale == 1 ? 2 : I->scale == 2 ? 4 : 0.5f;
  return I->clamp ? minimum(maximum(f, 0), 1) : f;
}
static int first_lane(const Wave *w) {
  mask_t active = mask_at(w, EXEC);
  return active ? __builtin_ctzll(active) : 0;
}
/* A multiply-add of floats whose sources may be halves. */
static void fma_mix(const Wave *w, const Instruction *I, uint32_t *t) {
  float x[3][LANES];
  for (int k = 0; k < 3; k++) {
    const Source *from = &I->source[k];
    const uint32_t *bits = from->is_half ? half_lanes(w, from, t) : lanes(w, from, t);
    for (int l = 0; l < LANES; l++) x[k][l] = from->is_half ? (float)half_of(bits[l]) : float_of(bits[l]);
  }
  for (int l = 0; l < LANES; l++) t[l] = bits_of(scaled_and_clamped(I, fmaf(x[0][l], x[1][l], x[2][l])));
}
/* Floats as halves into the lower or upper part of a register. */
static void put_half(Wave *w, int d, uint32_t *values, int shift) {
  for (int l = 0; l < LANES; l++)
    values[l] = bits_of_half((_Float16)float_of(values[l])) << shift | (w->v[d][l] & 0xffffu << (16 - shift));
  put(w, d, values);
}

/* -- memory -- */

static int fault(Launch *q, int why, uint32_t pc, uint64_t address, uint32_t lane) {
  q->fault_pc = pc, q->fault_address = address, q->fault_lane = lane;
  return why;
}
static int is_in_buffers(Launch *q, uint64_t address, uint32_t bytes) {
  for (uint32_t k = 0, at = q->last_region; k < q->region_count; k++, at = at + 1 < q->region_count ? at + 1 : 0) {
    const Region *r = &q->regions[at];
    if (address >= r->start && address + bytes <= r->start + r->bytes) { q->last_region = at; return 1; }
  }
  return 0;
}
/* The scalar that is added to an address; ``base`` is the source's number, or NONE. */
static uint64_t global_address(const Wave *w, const Instruction *I, int l) {
  uint64_t own = w->v[I->address][l];
  if (I->base == NONE) own |= (uint64_t)w->v[I->address + 1][l] << 32;
  else own += pair(w, I->base);
  return own + I->immediate;
}
CALLED uint8_t *global_memory(Wave *w, Launch *q, const Instruction *I, int l, int64_t unused, uint32_t bytes) {
  uint64_t address = global_address(w, I, l);
  q->fault_address = address;
  return is_in_buffers(q, address, bytes) ? (uint8_t *)address : 0;
}
CALLED uint8_t *scratch_memory(Wave *w, Launch *q, const Instruction *I, int l, int64_t unused, uint32_t bytes) {
  uint32_t address = (I->address < 0 ? 0 : w->v[I->address][l]) + (I->base == NONE ? 0 : w->s[I->base]);
  address += (uint32_t)I->immediate;
  q->fault_address = address;
  return (uint64_t)address + bytes <= w->scratch_bytes ? w->scratch + (size_t)l * w->scratch_bytes + address : 0;
}
CALLED uint8_t *ds_memory(Wave *w, Launch *q, const Instruction *I, int l, int64_t offset, uint32_t bytes) {
  uint32_t address = w->v[I->address][l] + (uint32_t)offset;
  q->fault_address = address;
  return (uint64_t)address + bytes <= q->local_bytes ? w->local + address : 0;
}
static int load_scalars(Wave *w, Launch *q, const Instruction *I, int words) {
  uint64_t offset = I->source[1].kind == SCALAR_REGISTER && I->source[1].number == NONE ? 0 : scalar(w, &I->source[1]);
  uint64_t address = (scalar64(w, &I->source[0]) + offset + I->immediate) & ~3ull;
  q->fault_address = address;
  if (!is_in_buffers(q, address, 4 * words)) return 0;
  memcpy(&w->s[I->d], (const void *)address, 4 * words);
  return 1;
}
/* What an access of lanes costs a first cache: the lines that they touch. */
static void count_global(const Wave *w, Launch *q, const Instruction *I, int stores, uint32_t bytes) {
  Traffic *t = q->traffic;
  uint64_t lines[2 * LANES];
  int count = 0;
  for (int l = 0; l < LANES; l++) {
    if (!(mask_at(w, EXEC) >> l & 1)) continue;
    uint64_t first = global_address(w, I, l), last = first + bytes - 1;
    for (uint64_t line = first / t->line; line <= last / t->line; line++) {
      int k = count;
      while (k && lines[k - 1] != line) k--;
      if (!k) lines[count++] = line;
    }
    *(stores ? &t->stored : &t->loaded) += bytes;
  }
  t->lines += count;
}
/* What it costs local memory: lanes are served as many at once as have a word for each bank, and a bank serves one
   word of theirs at a time, to whoever wants it. */
static void count_local(const Wave *w, Launch *q, const Instruction *I, int64_t offset, uint32_t bytes) {
  Traffic *t = q->traffic;
  uint32_t words = (bytes + 3) / 4, together = MOST(1, t->banks / (words == 3 ? 4 : words));
  for (uint32_t from = 0; from < LANES; from += together) {
    uint32_t wanted[4 * LANES], count = 0, clocks = 0;
    for (uint32_t l = from; l < LEAST(LANES, from + together); l++) {
      if (!(mask_at(w, EXEC) >> l & 1)) continue;
      uint32_t first = (w->v[I->address][l] + (uint32_t)offset) / 4;
      for (uint32_t word = first; word < first + words; word++) {
        uint32_t same_bank = 1, known = 0;
        for (uint32_t k = 0; k < count; k++) {
          known |= wanted[k] == word;
          same_bank += wanted[k] % t->banks == word % t->banks;
        }
        if (known) continue;
        wanted[count++] = word, clocks = MOST(clocks, same_bank);
      }
    }
    t->local_clocks += clocks, t->conflicts += clocks ? clocks - 1 : 0;
  }
}
static int jump(const Launch *q, uint64_t address, uint32_t *pc) {
  uint64_t place = (address - q->code) / 4;
  if (address < q->code || place >= q->place_count || q->places[place] == UINT32_MAX) return 0;
  *pc = q->places[place];
  return 1;
}

/* -- waves, groups and launches -- */

static uint32_t drawn(Launch *q, uint32_t below) {
  q->random = q->random * 6364136223846793005ull + 1442695040888963407ull;
  return (q->random >> 33) % below;
}
/* Until the wave's turn is over, where it has turns: after a random number of instructions. */
int run_wave(const Instruction *program, Wave *w, Launch *q) {
  uint32_t t0[LANES], t1[LANES], t2[LANES], R[LANES], R2[LANES], pc = w->pc;
  uint64_t w0[LANES], w1[LANES], w2[LANES], left = q->turn ? 1 + drawn(q, q->turn) : UINT64_MAX;
#define S w->condition
  for (;;) {
    if (!left-- && !w->is_late) { w->pc = pc; return TURN_OVER; }
    const Instruction *I = &program[pc];
    q->counts[pc++]++;
    if (++q->executed > q->most) return fault(q, TOO_LONG, pc - 1, 0, 0);
    w->s[NONE] = 0;
    switch (I->operation) {
    /* INSTRUCTIONS */
    default: return fault(q, UNKNOWN, pc - 1, 0, 0);
    }
  }
}
enum { RUNNING, DONE, WAITING };
static int run_group(const Instruction *program, Wave *waves, int count, Launch *q) {
  for (;;) {
    int done = 0, waiting = 0;
    for (int k = 0; k < count; k++) done += waves[k].state == DONE;
    for (int running = count - done; running;) {
      int k = drawn(q, count);
      if (!q->turn) for (k = 0; waves[k].state != RUNNING; k++) {}
      if (waves[k].state != RUNNING) continue;
      int why = run_wave(program, &waves[k], q);
      if (why < 0) return why;
      if (why == TURN_OVER) continue;
      running--;
      if (why == ENDED) { waves[k].state = DONE; done++; }
      else { waves[k].state = WAITING; waiting++; }
    }
    if (!waiting) return ENDED;
    if (done) return fault(q, BARRIER_MISSED, 0, 0, 0);
    for (int k = 0; k < count; k++) waves[k].state = RUNNING;
  }
}
/* As the kernel's descriptor has it: scalar registers with the packet (if any) and the arguments come first, then,
   behind all that its descriptor counts, the numbers of the group. */
typedef struct { uint64_t arguments, packet; uint32_t user_registers, group_numbers, scratch_bytes, unused; } Start;

static void start_wave(Wave *w, const Start *start, uint32_t first, const uint32_t *group, const uint32_t *size) {
  for (int k = 0; k < 128; k++) w->s[k] = GARBAGE_SCALAR;
  for (int k = 0; k < 256; k++) for (int l = 0; l < LANES; l++) w->v[k][l] = GARBAGE_VECTOR;
  w->condition = w->pc = w->state = w->is_late = 0;
  memset(w->scratch, 0xff, (size_t)LANES * w->scratch_bytes);
  uint32_t left = size[0] * size[1] * size[2] - first;
  w->s[EXEC + 1] = 0;
  set_mask(w, EXEC, left >= LANES ? (mask_t)-1 : ((mask_t)1 << left) - 1);
  int at = 0;
  if (start->packet) { set_scalar64(w, at, start->packet); at += 2; }
  set_scalar64(w, at, start->arguments);
  at = start->user_registers;
  for (int axis = 0; axis < 3; axis++) if (start->group_numbers >> axis & 1) w->s[at++] = group[axis];
  for (uint32_t l = 0; l < LANES; l++) {
    uint32_t item = first + l;
    w->v[0][l] = item % size[0] | item / size[0] % size[1] << 10 | item / size[0] / size[1] << 20;
  }
}
/* All groups one behind the other, or the first and a random one of so many ``sampled``; ``group`` says which one
   failed. */
int run_launch(const Instruction *program, Launch *q, const Start *start, const uint32_t *groups, const uint32_t *size,
               uint32_t *group) {
  uint32_t items = size[0] * size[1] * size[2];
  int count = (items + LANES - 1) / LANES, why = ENDED;
  Wave *waves = malloc(sizeof(Wave) * count);
  uint8_t *scratch = malloc((size_t)start->scratch_bytes * LANES * count + 1), *local = malloc(q->local_bytes + 4);
  for (group[2] = 0; group[2] < groups[2]; group[2]++)
    for (group[1] = 0; group[1] < groups[1]; group[1]++)
      for (group[0] = 0; group[0] < groups[0]; group[0]++) {
        if (q->sampled > 1 && q->groups && drawn(q, q->sampled)) continue;
        q->groups++;
        for (uint32_t k = 0; k < q->local_bytes / 4; k++) ((uint32_t *)local)[k] = GARBAGE_LOCAL;
        for (int k = 0; k < count; k++) {
          waves[k].scratch = scratch + (size_t)start->scratch_bytes * LANES * k;
          waves[k].scratch_bytes = start->scratch_bytes, waves[k].local = local;
          start_wave(&waves[k], start, LANES * k, group, size);
        }
        why = run_group(program, waves, count, q);
        if (why < 0) goto end;
      }
end:
  free(waves), free(scratch), free(local);
  return why;
}
