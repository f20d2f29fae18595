// Kernels of the workload programs.
//
// Every result is the same bit for bit on any device and in the programs' CPU
// references: words are unsigned 32-bit integers that wrap, floats are IEEE single
// precision without contraction, and each output element is computed by one thread in
// one fixed order. There are no atomics and no shared memory.
//
// Built by ./build, without CUDA's headers, into kernels.ptx.

#define GLOBAL extern "C" __attribute__((global))
#define DEVICE static __attribute__((device)) inline __attribute__((always_inline))

typedef unsigned int u32;
typedef unsigned long long u64;

// Index of this thread in a one-dimensional launch.
DEVICE u64 thread_index() {
  return (u64)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() +
         __nvvm_read_ptx_sreg_tid_x();
}

// The word that stands at `index` of the pseudo-random sequence `seed`.
DEVICE u32 hash_word(u32 index, u32 seed) {
  u32 x = index * 0x9E3779B9u + seed;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  return x;
}

// A float in [-1, 1) from the upper 24 bits of a word: exact.
DEVICE float unit_float(u32 word) {
  return (float)((int)(word >> 8) - 8388608) * 0x1p-23f;
}

// out[i] = word `first + i` of sequence `seed`; the index wraps at 2^32.
GLOBAL void fill_u32(u32 *out, u64 count, u32 first, u32 seed) {
  u64 i = thread_index();
  if (i < count)
    out[i] = hash_word(first + (u32)i, seed);
}

// out[i] = scale * float of word `first + i` of sequence `seed`.
GLOBAL void fill_f32(float *out, u64 count, u32 first, u32 seed, float scale) {
  u64 i = thread_index();
  if (i < count)
    out[i] = unit_float(hash_word(first + (u32)i, seed)) * scale;
}

// state[i] = (state[i] * a + b) ^ c
GLOBAL void sweep_step(u32 *state, u64 count, u32 a, u32 b, u32 c) {
  u64 i = thread_index();
  if (i < count)
    state[i] = (state[i] * a + b) ^ c;
}

// Many rounds of arithmetic on each word: bound by compute, not by memory.
GLOBAL void mix_rounds(u32 *state, u64 count, u32 rounds, u32 key) {
  u64 i = thread_index();
  if (i >= count)
    return;
  u32 x = state[i];
  for (u32 r = 0; r < rounds; ++r)
    x = (x ^ (x >> 15)) * 0x2C1B3C6Du + (key + r);
  state[i] = x;
}

// Each slot reads `per_slot` rows of 16 words at places that only the hash knows, and
// folds them into its 16 words of `out`. One thread for each word of `out`.
GLOBAL void gather_rows(const u32 *table, u32 *out, u32 rows, u32 slots, u32 per_slot, u32 key) {
  u64 i = thread_index();
  if (i >= (u64)slots * 16)
    return;
  u32 slot = (u32)(i >> 4), lane = (u32)i & 15;
  u32 acc = out[i];
  for (u32 j = 0; j < per_slot; ++j) {
    u32 row = (u32)(((u64)hash_word(slot * per_slot + j, key) * rows) >> 32);
    acc = (acc ^ (acc >> 15)) * 0x9E3779B1u + table[(u64)row * 16 + lane];
  }
  out[i] = acc;
}

// C += A x B on one tile, words wrapping. A is m rows of k words. B and C are stored in
// panels of 16 columns: B is n/16 panels of k rows, C is n/16 panels of m rows.
// One thread for each word of C.
GLOBAL void gemm_tile(const u32 *a, const u32 *b, u32 *c, u32 m, u32 k, u32 n) {
  u64 i = thread_index();
  if (i >= (u64)m * n)
    return;
  u32 column = (u32)i & 15;
  u64 row = (i >> 4) % m, panel = (i >> 4) / m;
  const u32 *line = a + row * k;
  const u32 *strip = b + panel * k * 16 + column;
  u32 acc = c[i];
  for (u32 p = 0; p < k; ++p)
    acc += line[p] * strip[(u64)p * 16];
  c[i] = acc;
}

// The multilayer perceptron. A layer has `groups` groups of 32 features, each with its
// own 32 x 32 weights, and a batch of 8. Activations are stored feature by feature, the
// batch innermost. Groups are shifted by half a group from layer to layer, so that
// features mix; a layer adds to its input:
//
//   pre[f] = sum_k w[f][k] * x[shift(k)],   y[f] = x[shift(f)] + pre[f] / (1 + |pre[f]|)

#define WIDTH 32u
#define BATCH 8u

// Row of a layer's input that feeds its feature `feature`.
DEVICE u32 shifted(u32 feature, u32 groups) {
  u32 row = feature + WIDTH / 2;
  return row >= groups * WIDTH ? row - groups * WIDTH : row;
}

// One thread for each feature and sample.
GLOBAL void mlp_forward(const float *w, const float *x, float *pre, float *y, u32 groups) {
  u64 i = thread_index();
  if (i >= (u64)groups * (WIDTH * BATCH))
    return;
  u32 feature = (u32)(i / BATCH), sample = (u32)i % BATCH;
  u32 base = feature / WIDTH * WIDTH;
  const float *line = w + (u64)feature * WIDTH;
  float acc = 0.0f;
  for (u32 k = 0; k < WIDTH; ++k)
    acc = acc + line[k] * x[(u64)shifted(base + k, groups) * BATCH + sample];
  pre[i] = acc;
  y[i] = x[(u64)shifted(feature, groups) * BATCH + sample] +
         acc / (1.0f + __builtin_fabsf(acc));
}

// dy = x - target, target being the float sequence `seed`. The first thread of each
// group also sums the group's squares in order. One thread for each feature and sample.
GLOBAL void mlp_loss(const float *x, float *dy, float *partial, u32 groups, u32 seed) {
  u64 i = thread_index();
  if (i >= (u64)groups * (WIDTH * BATCH))
    return;
  dy[i] = x[i] - unit_float(hash_word((u32)i, seed));
  if (i % (WIDTH * BATCH) != 0)
    return;
  float acc = 0.0f;
  for (u32 k = 0; k < WIDTH * BATCH; ++k) {
    float d = x[i + k] - unit_float(hash_word((u32)i + k, seed));
    acc = acc + d * d;
  }
  partial[i / (WIDTH * BATCH)] = acc;
}

// dpre = dy / (1 + |pre|)^2
GLOBAL void mlp_activation_grad(const float *pre, const float *dy, float *dpre, u64 count) {
  u64 i = thread_index();
  if (i >= count)
    return;
  float s = 1.0f + __builtin_fabsf(pre[i]);
  dpre[i] = dy[i] / (s * s);
}

// dx[shift(f)] = dy[f] + sum_o w[o][f] * dpre[o]. One thread for each feature and sample.
GLOBAL void mlp_input_grad(const float *w, const float *dpre, const float *dy, float *dx,
                           u32 groups) {
  u64 i = thread_index();
  if (i >= (u64)groups * (WIDTH * BATCH))
    return;
  u32 feature = (u32)(i / BATCH), sample = (u32)i % BATCH;
  u32 base = feature / WIDTH * WIDTH, k = feature % WIDTH;
  float acc = 0.0f;
  for (u32 o = 0; o < WIDTH; ++o)
    acc = acc + w[(u64)(base + o) * WIDTH + k] * dpre[(u64)(base + o) * BATCH + sample];
  dx[(u64)shifted(feature, groups) * BATCH + sample] = dy[i] + acc;
}

// dw[f][k] = sum over the batch of dpre[f] * x[shift(k)]. One thread for each weight.
GLOBAL void mlp_weight_grad(const float *dpre, const float *x, float *dw, u32 groups) {
  u64 i = thread_index();
  if (i >= (u64)groups * (WIDTH * WIDTH))
    return;
  u32 feature = (u32)(i / WIDTH), k = (u32)i % WIDTH;
  u32 row = shifted(feature / WIDTH * WIDTH + k, groups);
  float acc = 0.0f;
  for (u32 b = 0; b < BATCH; ++b)
    acc = acc + dpre[(u64)feature * BATCH + b] * x[(u64)row * BATCH + b];
  dw[i] = acc;
}

// One step of Adam; `rate` carries the bias corrections.
GLOBAL void adam_step(float *w, float *m, float *v, const float *g, u64 count, float rate,
                      float beta1, float beta2, float epsilon) {
  u64 i = thread_index();
  if (i >= count)
    return;
  float gi = g[i];
  float mi = beta1 * m[i] + (1.0f - beta1) * gi;
  float vi = beta2 * v[i] + (1.0f - beta2) * (gi * gi);
  m[i] = mi;
  v[i] = vi;
  w[i] = w[i] - rate * mi / (__nvvm_sqrt_rn_f(vi) + epsilon);
}
