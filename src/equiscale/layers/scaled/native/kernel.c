/* The scaled convolution in the frequency domain: whole forward and backward passes on the CPU.

   The steps are those of docs/fast-layer.md and of the PyTorch code in ../spectral. They are done
   here for one *item* at a time: one vector of output channels and a few samples. An item goes
   through all kernel sizes with its working set in the cache, and items share nothing that they
   write, so that a pass is two parallel loops. Every sum is taken in the same order whatever the
   number of threads.

   build.py compiles this file once per number type (REAL, and WHOLE of the same width) and
   instruction set (BYTES of a vector), each time under another NAME. EXPORTED marks what is
   visible outside. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES ((size)(BYTES / sizeof(REAL)))
#define INLINE static inline __attribute__((always_inline))
/* Bring what is needed next into the first or the second cache. Any address will do. */
#define FETCH(at) __builtin_prefetch(at, 0, 3)
#define FETCH_SECOND(at) __builtin_prefetch(at, 0, 2)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

#if BYTES == 64 /* 32 registers */
#define TILE 8 /* samples or channels of a tile of complex products */
#define ROWS 6
#define COLUMNS 4 /* a tile of ROWS × COLUMNS vectors of `multiply` */
#define ACROSS 6 /* pixels of a tile of `synthesise` */
#else /* 16 registers */
#define TILE 4
#define ROWS 4
#define COLUMNS 3
#define ACROSS 3
#endif

#define SLOTS 4 /* column frequencies that are processed at once */
#define PARTS (2 * SLOTS) /* of a product: real and imaginary */

typedef ptrdiff_t size;
typedef REAL real;
typedef real lanes __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef WHOLE mask __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

enum { STACK, PIXEL, SLICE, GLOBAL, CHOSEN }; /* pooling; CHOSEN: the scale of each map is given */

/* One pass at one period. `Pass` of native/__init__.py has the same fields in the same order.
   Padded maps of small kernels need shorter transforms than those of large ones, so that a whole
   pass is an array of these. They differ in `begin`, `end`, the frequencies and what depends on
   them; periods increase. */
typedef struct {
    size samples, groups, channels, outputs; /* channels and outputs of one group */
    size height, width;                      /* of the input */
    size row_stride, column_stride;
    size scales, begin, end;                 /* of all periods; of this one: from begin to end */
    size functions, even;                    /* functions: even ones first */
    size row_frequencies, column_frequencies;
    size pool, track, threads;
    const size *row_extents, *column_extents; /* [S] of the maps */
    const size *row_reach, *column_reach;     /* [H'], [W']: how many maps have this row or column */
    const real *row_analysis;                 /* [2U, H] */
    const real *column_analysis;              /* [W, 2V] */
    const real *row_waves, *column_waves;     /* [2, h + 1, U], [2, w + 1, V] */
    const real *row_kernels, *column_kernels; /* [end - begin, U, r], [end - begin, V, r] */
    const real *x;                            /* [N, G C, H, W] */
    const real *weight;                       /* [q, r, G, C, O] in the basis of functions */
    const real *bias;                         /* [G O] or NULL */
    real *values;                             /* [N, G O, (S,) H'/s, W'/s] or [N, G O] */
    void *choice;                             /* int16 [N, G O, (H'/s, W'/s)]; int64 for GLOBAL */
    const real *grad;                         /* backward: gradient of `values` */
    real *weight_grad, *x_grad;               /* as `weight` and `x`; x_grad may be NULL */
    char *scratch;
    size scratch_bytes;
} Pass;

INLINE size least(size a, size b) { return a < b ? a : b; }
INLINE size most(size a, size b) { return a > b ? a : b; }
INLINE size ceiling(size a, size b) { return (a + b - 1) / b; }
/* Distances of a map's pixels from its centre, which is pixel extent / 2. */
INLINE size half(size extent) { return extent / 2 + 1; }

/* One axis of the maps of a kernel size; margin: of their frames. */
typedef struct {
    size extent, margin, stride;
} Axis;

INLINE Axis down(const Pass *p, size scale)
{
    const size extent = p->row_extents[scale];
    return (Axis){extent, (p->row_extents[0] - extent) / 2, p->row_stride};
}

INLINE Axis across(const Pass *p, size scale)
{
    const size extent = p->column_extents[scale];
    return (Axis){extent, (p->column_extents[0] - extent) / 2, p->column_stride};
}

INLINE size strided_length(Axis a) { return ceiling(a.extent, a.stride); }

/* The pixel at distance y on the side δ ≥ 0 or δ < 0, counted in the strided result; -1: none. */
INLINE size pixel_of(Axis a, size y, int negative)
{
    if (negative ? y == 0 : 2 * y == a.extent)
        return -1;
    const size pixel = a.margin + a.extent / 2 + (negative ? -y : y);
    if (a.stride == 1)
        return pixel;
    return pixel % a.stride ? -1 : pixel / a.stride;
}

/* Whether there are pixels at even (parity 0) or odd distances (1). */
INLINE int has_parity(Axis a, size parity)
{
    return a.stride % 2 || (a.margin + a.extent / 2 + parity) % 2 == 0;
}

INLINE lanes splat(real x) { return x - (lanes){0}; }

INLINE mask fill(size x) { return (WHOLE)x - (mask){0}; }

INLINE lanes choose(mask which, lanes yes, lanes no)
{
    return (lanes)(((mask)yes & which) | ((mask)no & ~which));
}

INLINE mask pick(mask which, mask yes, mask no) { return (yes & which) | (no & ~which); }

INLINE int any(mask which)
{
    for (size i = 0; i < LANES; i++)
        if (which[i])
            return 1;
    return 0;
}

/* Where a candidate replaces the best so far: not where they are equal, and NaN stays. */
INLINE mask wins(lanes candidate, lanes best) { return ~(candidate <= best) & (best == best); }

/* ---- Products of matrices; the second factor and the result consist of vectors. ---- */

/* A matrix whose entry (i, j) is at[i * row + j * column]. */
typedef struct {
    const real *at;
    size row, column;
} Numbers;

typedef struct {
    lanes *at;
    size row, column;
} Vectors;

INLINE void multiply_tile(int rows, int columns, size depth, Numbers a, Vectors b, Vectors out)
{
    lanes sum[ROWS][COLUMNS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            sum[i][j] = splat(0);
    for (size p = 0; p < depth; p++)
        for (int i = 0; i < rows; i++) {
            const lanes factor = splat(a.at[i * a.row + p * a.column]);
            for (int j = 0; j < columns; j++)
                sum[i][j] += factor * b.at[p * b.row + j * b.column];
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            out.at[i * out.row + j * out.column] = sum[i][j];
}

INLINE void multiply_rows(int columns, size height, size depth, Numbers a, Vectors b, Vectors out)
{
    for (; height >= ROWS; height -= ROWS, a.at += ROWS * a.row, out.at += ROWS * out.row)
        multiply_tile(ROWS, columns, depth, a, b, out);
    switch (height) {
    case 1: multiply_tile(1, columns, depth, a, b, out); break;
    case 2: multiply_tile(2, columns, depth, a, b, out); break;
    case 3: multiply_tile(3, columns, depth, a, b, out); break;
    case 4: multiply_tile(least(4, ROWS), columns, depth, a, b, out); break;
    case 5: multiply_tile(least(5, ROWS), columns, depth, a, b, out); break;
    }
}

/* [height, depth] [depth, length] -> [height, length]. */
static void multiply(size height, size depth, size length, Numbers a, Vectors b, Vectors out)
{
    for (; length >= COLUMNS; length -= COLUMNS) {
        multiply_rows(COLUMNS, height, depth, a, b, out);
        b.at += COLUMNS * b.column;
        out.at += COLUMNS * out.column;
    }
    for (; length > 0; length--, b.at += b.column, out.at += out.column)
        multiply_rows(1, height, depth, a, b, out);
}

/* ---- Scratch memory: an arena that is measured first and then handed out. ---- */

typedef struct {
    char *base; /* NULL while measuring */
    size used;
} Arena;

static void *take(Arena *arena, size count, size bytes)
{
    void *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count * bytes + 63) / 64 * 64;
    return memory;
}

#define TAKE(arena, type, count) ((type *)take(arena, count, sizeof(type)))

/* ---- How a pass is cut into items. ---- */

typedef struct {
    size output_blocks, sample_blocks, block; /* block: samples of an item */
    size strip, strips; /* backward: output blocks of a group that one thread goes through; of them */
} Cut;

#define CACHE (4 << 20) /* bytes */
#define BACKWARD 8      /* samples of an item at most, so that many threads have work */
#define STRIPS 8        /* of a group at most: each has a gradient of the spectrum of its own */

/* As many samples as a cache holds, but enough of them to share the kernels' spectra. */
INLINE size samples_of_item(const Pass *p)
{
    const size h = half(p->row_extents[0]), w = half(p->column_extents[0]), C = p->channels;
    const size spectrum = 4 * p->row_frequencies * p->column_frequencies * C;
    const size rows = 4 * h * p->column_frequencies, pixels = p->pool == PIXEL ? 8 * h * w : 0;
    const size sample = spectrum * (size)sizeof(real) + (rows + pixels) * BYTES;
    const size samples = most(1, most(CACHE / sample, 32 * C * p->functions / (6 * C + 4 * h)));
    return samples > 2 ? ceiling(samples, TILE / 2) * (TILE / 2) : samples; /* whole tiles */
}

/* Sums over samples must not depend on the number of threads, so neither does a backward pass. */
INLINE Cut cut(const Pass *p)
{
    const size output_blocks = p->groups * ceiling(p->outputs, LANES), fitting = samples_of_item(p);
    const size blocks = p->grad ? ceiling(p->samples, least(fitting, BACKWARD))
                                : least(p->samples, most(ceiling(p->samples, fitting),
                                                         ceiling(p->threads, output_blocks)));
    const size block = ceiling(p->samples, blocks);
    const size per_group = output_blocks / p->groups, strip = ceiling(per_group, STRIPS);
    return (Cut){output_blocks, ceiling(p->samples, block), block, strip, ceiling(per_group, strip)};
}

/* ---- Step 1: the input's spectrum. ---- */

INLINE size pitch_of(const Pass *p) { return ceiling(2 * p->column_frequencies, LANES); }

/* A complex product takes three real ones, and three numbers of the kernel:
   (a + ib) (k - il) = (m - bd) + i (m - as), with m = (a + b) k, s = k + l, d = k - l.

   Numbers of the spectrum of a group and a block of samples: [V, U, ±, C, n, (a, b)]. */
INLINE size spectrum_size(const Pass *p, size block)
{
    return p->column_frequencies * p->row_frequencies * 4 * p->channels * block;
}

typedef struct {
    lanes *rows, *planes;
} Analysis;

static Analysis take_analysis(const Pass *p, size block, Arena *arena)
{
    const size pitch = pitch_of(p);
    return (Analysis){TAKE(arena, lanes, p->height * pitch),
                      TAKE(arena, lanes, block * 2 * p->row_frequencies * pitch)};
}

/* One channel of a block of samples. */
static void analyse(const Pass *p, lanes *column_waves, Analysis a, Cut cut, size channel, size index,
                    real *spectrum)
{
    const size H = p->height, W = p->width, U = p->row_frequencies, V = p->column_frequencies;
    const size C = p->channels, pitch = pitch_of(p), plane = 2 * U * pitch * LANES;
    const size first = index * cut.block, count = least(cut.block, p->samples - first);
    const size other = 2 * C * cut.block;
    spectrum += (channel / C * cut.sample_blocks + index) * spectrum_size(p, cut.block);
    for (size n = 0; n < count; n++) {
        const real *image = p->x + ((first + n) * p->groups * C + channel) * H * W;
        const Vectors rows = {a.rows, pitch, 1}, planes = {a.planes + n * 2 * U * pitch, pitch, 1};
        multiply(H, W, pitch, (Numbers){image, W, 1}, (Vectors){column_waves, pitch, 1}, rows);
        multiply(2 * U, H, pitch, (Numbers){p->row_analysis, H, 1}, rows, planes);
    }
    for (size u = 0; u < U; u++)
        for (size v = 0; v < V; v++) {
            const real *even = (const real *)a.planes + u * pitch * LANES + v;
            const real *odd = even + U * pitch * LANES;
            real *to = spectrum + (v * U + u) * 2 * other + channel % C * cut.block * 2;
            for (size n = 0; n < count; n++, even += plane, odd += plane, to += 2) {
                const real cc = even[0], cs = even[V], sc = odd[0], ss = odd[V];
                to[0] = cc - ss;
                to[1] = -(sc + cs);
                to[other] = cc + ss;
                to[other + 1] = sc - cs;
            }
        }
}

/* ---- An item. ---- */

typedef struct {
    const Pass *p;
    const real *spectrum;   /* of its group and samples */
    size group, output, first, count, width; /* outputs from `output`, samples from `first` */
    size block;             /* samples between channels of the spectrum */
    lanes *weight;          /* [q, r, C] */
    lanes *columns;         /* [slot, r, R, C] */
    lanes *kernels;         /* [±, C, (k, k + l, k - l)] */
    lanes *products;        /* [sum or difference of -u and u, U, slot, R, n] */
    lanes *rows;            /* [h + 2, v, even or odd in y, slot, R, n] */
    lanes *best;            /* [h, n, w, 4] */
    mask *choice;
    lanes *record;          /* [n] */
    mask *winner, *place;
    lanes shift;            /* the bias */
} Item;

/* Vectors of four column frequencies of a row of maps; odd, to spread over the sets of the cache. */
INLINE size panel_size(size samples) { return 2 * PARTS * samples + 1; }

INLINE size row_size(const Pass *p, size samples)
{
    return ceiling(p->column_frequencies, 4) * panel_size(samples);
}

static Item take_item(const Pass *p, size block, Arena *arena)
{
    const size r = p->functions, C = p->channels, U = p->row_frequencies;
    const size h = half(p->row_extents[0]), w = half(p->column_extents[0]);
    const int keeps = p->pool == PIXEL || p->pool == SLICE || p->pool == CHOSEN;
    Item item = {.p = p};
    item.weight = TAKE(arena, lanes, r * r * C);
    item.columns = TAKE(arena, lanes, SLOTS * r * 2 * C);
    item.kernels = TAKE(arena, lanes, 6 * C);
    item.products = TAKE(arena, lanes, 2 * PARTS * U * block);
    item.rows = TAKE(arena, lanes, (h + 2) * row_size(p, block));
    item.best = TAKE(arena, lanes, keeps ? h * block * w * 4 : 0);
    item.choice = TAKE(arena, mask, p->pool == PIXEL && p->track ? h * block * w * 4 : 0);
    item.record = TAKE(arena, lanes, block);
    item.winner = TAKE(arena, mask, block);
    item.place = TAKE(arena, mask, block);
    return item;
}

static void start_item(Item *item, Cut c, size index)
{
    const Pass *p = item->p;
    const size r = p->functions, C = p->channels, O = p->outputs;
    const size blocks = ceiling(O, LANES), channels = index / c.sample_blocks;
    item->group = channels / blocks;
    item->output = channels % blocks * LANES;
    item->width = least(LANES, O - item->output);
    item->first = index % c.sample_blocks * c.block;
    item->count = least(c.block, p->samples - item->first);
    item->block = c.block;
    memset(item->weight, 0, r * r * C * sizeof(lanes));
    for (size f = 0; f < r * r; f++)
        for (size c_ = 0; c_ < C; c_++)
            memcpy(item->weight + f * C + c_,
                   p->weight + ((f * p->groups + item->group) * C + c_) * O + item->output,
                   item->width * sizeof(real));
    item->shift = splat(0);
    if (p->bias)
        memcpy(&item->shift, p->bias + item->group * O + item->output, item->width * sizeof(real));
}

/* Go on with another period: its constants, and the input's spectrum. */
INLINE void enter_period(Item *item, const Pass *p, const real *spectra, Cut c)
{
    const size block = item->group * c.sample_blocks + item->first / c.block;
    item->p = p;
    item->spectrum = spectra + block * spectrum_size(p, c.block);
}

/* Step 2: spectra of the kernels. A function's transform is real or imaginary as it is even or odd.
   `r` functions, `E` of them even; constants keep the waves in registers. */
INLINE void sum_functions(size r, size E, const real *waves, const lanes *from, size step, lanes *even,
                          lanes *odd)
{
    *even = *odd = splat(0);
    for (size q = 0; q < E; q++)
        *even += splat(waves[q]) * from[q * step];
    for (size q = E; q < r; q++)
        *odd += splat(waves[q]) * from[q * step];
}

#define BY_FUNCTIONS(call)                                                                              \
    do {                                                                                                \
        if (p->functions == 3 && p->even == 2)                                                          \
            call(3, 2);                                                                                 \
        else if (p->functions == 7 && p->even == 4)                                                     \
            call(7, 4);                                                                                 \
        else                                                                                            \
            call(p->functions, p->even);                                                                \
    } while (0)

/* Column frequencies are processed in fours. */
INLINE size frequency_of(size V, size v, size slot)
{
    const size frequencies[SLOTS] = {v, V - 1 - v, V / 2 - 1 - v, V / 2 + v};
    return frequencies[slot];
}

/* Along the columns: weight [q, r, length] -> columns [slot, r, R, length]. The weight exceeds the
   first cache, so that all four frequencies are made from one reading of it. */
INLINE void columns_of(size r, size E, const real *const waves[SLOTS], const lanes *weight,
                       size length, lanes *columns)
{
    for (size row = 0; row < r; row++)
        for (size i = 0; i < length; i++) {
            lanes even[SLOTS], odd[SLOTS];
            for (int slot = 0; slot < SLOTS; slot++)
                even[slot] = odd[slot] = splat(0);
            for (size q = 0; q < r; q++)
                for (int slot = 0; slot < SLOTS; slot++)
                    *(q < E ? even + slot : odd + slot) +=
                        splat(waves[slot][q]) * weight[(q * r + row) * length + i];
            for (int slot = 0; slot < SLOTS; slot++) {
                lanes *to = columns + (slot * r + row) * 2 * length + i;
                to[0] = row < E ? even[slot] : odd[slot];
                to[length] = row < E ? odd[slot] : even[slot];
            }
        }
}

static void make_columns(const Pass *p, size scale, size v, const lanes *weight, size length,
                         lanes *columns)
{
    const size V = p->column_frequencies;
    const real *waves[SLOTS];
    for (int slot = 0; slot < SLOTS; slot++)
        waves[slot] =
            p->column_kernels + ((scale - p->begin) * V + frequency_of(V, v, slot)) * p->functions;
#define COLUMNS_OF(r, E) columns_of(r, E, waves, weight, length, columns)
    BY_FUNCTIONS(COLUMNS_OF);
}

/* Write k, k + l and k - l. */
INLINE void write_kernel(lanes *to, size step, lanes k, lanes l)
{
    to[0] = k;
    to[step] = k + l;
    to[2 * step] = k - l;
}

/* At row frequencies -u and u: columns [r, R, (a, b)] -> kernels [±, a, 3, b], with b = `inner`. */
INLINE void kernels_of(size r, size E, const real *waves, const lanes *columns, size length,
                       size inner, lanes *kernels)
{
    for (size a = 0; a < length / inner; a++)
        for (size b = 0; b < inner; b++) {
            const lanes *from = columns + a * inner + b;
            lanes even, odd, even_imag, odd_imag, *to = kernels + a * 3 * inner + b;
            sum_functions(r, E, waves, from, 2 * length, &even, &odd);
            sum_functions(r, E, waves, from + length, 2 * length, &even_imag, &odd_imag);
            write_kernel(to, inner, even - odd, even_imag - odd_imag);
            write_kernel(to + 3 * length, inner, even + odd, even_imag + odd_imag);
        }
}

static void make_kernels(const Pass *p, size scale, size u, const lanes *columns, size length,
                         size inner, lanes *kernels)
{
    const real *waves = p->row_kernels + ((scale - p->begin) * p->row_frequencies + u) * p->functions;
#define KERNELS_OF(r, E) kernels_of(r, E, waves, columns, length, inner, kernels)
    BY_FUNCTIONS(KERNELS_OF);
}

/* Step 3: products of input and kernels at one or both of the frequencies -u and u. */
INLINE void accumulate(int signs, int count, size C, size N, const real *x, const lanes *kernels,
                       lanes real_[][TILE], lanes imag[][TILE])
{
    lanes m[2][TILE], bd[2][TILE], as[2][TILE];
    for (int sign = 0; sign < signs; sign++)
        for (int n = 0; n < count; n++)
            m[sign][n] = bd[sign][n] = as[sign][n] = splat(0);
    for (size c = 0; c < C; c++)
        for (int sign = 0; sign < signs; sign++) {
            const lanes *kernel = kernels + (sign * C + c) * 3;
            const real *at = x + (sign * C + c) * N * 2;
            FETCH(at + 4 * C * N); /* the next u */
            for (int n = 0; n < count; n++) {
                const lanes a = splat(at[2 * n]), b = splat(at[2 * n + 1]);
                as[sign][n] += a * kernel[1];
                bd[sign][n] += b * kernel[2];
                m[sign][n] += (a + b) * kernel[0];
            }
        }
    for (int sign = 0; sign < signs; sign++)
        for (int n = 0; n < count; n++) {
            real_[sign][n] = m[sign][n] - bd[sign][n];
            imag[sign][n] = m[sign][n] - as[sign][n];
        }
}

/* Their sum and difference: to [sum or difference, …, R, n], with these steps between the first two
   and between R. The registers hold both frequencies of half a tile. */
INLINE void mix_tile(int count, size C, size N, const real *x, const lanes *kernels, lanes *to,
                     size kind, size part)
{
    lanes real_[2][TILE], imag[2][TILE];
    if (2 * count <= TILE) {
        accumulate(2, count, C, N, x, kernels, real_, imag);
    } else {
        accumulate(1, count, C, N, x, kernels, real_, imag);
        accumulate(1, count, C, N, x + C * N * 2, kernels + C * 3, real_ + 1, imag + 1);
    }
    for (int n = 0; n < count; n++) {
        to[n] = real_[0][n] + real_[1][n];
        to[part + n] = imag[0][n] + imag[1][n];
        to[kind + n] = real_[0][n] - real_[1][n];
        to[kind + part + n] = imag[0][n] - imag[1][n];
    }
}

INLINE const real *spectrum_at(const Item *item, size v, size u)
{
    const Pass *p = item->p;
    return item->spectrum + (v * p->row_frequencies + u) * 4 * p->channels * item->block;
}

static void mix(Item *item, size v, size u, lanes *to)
{
    const Pass *p = item->p;
    const size C = p->channels, N = item->block, count = item->count;
    const size kind = p->row_frequencies * PARTS * count;
    const real *x = spectrum_at(item, v, u);
    size n = 0;
    for (; n + TILE <= count; n += TILE)
        mix_tile(TILE, C, N, x + 2 * n, item->kernels, to + n, kind, count);
    for (; n + TILE / 2 <= count; n += TILE / 2)
        mix_tile(TILE / 2, C, N, x + 2 * n, item->kernels, to + n, kind, count);
    for (; n < count; n++)
        mix_tile(1, C, N, x + 2 * n, item->kernels, to + n, kind, count);
}

/* The same for a single sample, without writing kernels that would be used once. */
INLINE void mix_alone(size r, size E, const real *waves, const lanes *columns, size C, size N,
                      const real *x, lanes *to, size kind)
{
    lanes m[2], as[2], bd[2];
    m[0] = as[0] = bd[0] = m[1] = as[1] = bd[1] = splat(0);
    for (size c = 0; c < C; c++) {
        lanes even, odd, even_imag, odd_imag;
        sum_functions(r, E, waves, columns + c, 2 * C, &even, &odd);
        sum_functions(r, E, waves, columns + C + c, 2 * C, &even_imag, &odd_imag);
        for (int sign = 0; sign < 2; sign++) {
            const lanes k = sign ? even + odd : even - odd;
            const lanes l = sign ? even_imag + odd_imag : even_imag - odd_imag;
            const real *at = x + (sign * C + c) * N * 2;
            as[sign] += splat(at[0]) * (k + l);
            bd[sign] += splat(at[1]) * (k - l);
            m[sign] += splat(at[0] + at[1]) * k;
        }
    }
    const lanes minus = m[0] - bd[0], plus = m[1] - bd[1];
    const lanes minus_imag = m[0] - as[0], plus_imag = m[1] - as[1];
    to[0] = minus + plus;
    to[1] = minus_imag + plus_imag;
    to[kind] = minus - plus;
    to[kind + 1] = minus_imag - plus_imag;
}

static void make_products_alone(const Item *item, size scale, size v, const lanes *columns,
                                lanes *to)
{
    const Pass *p = item->p;
    const size U = p->row_frequencies, C = p->channels;
    const real *waves = p->row_kernels + (scale - p->begin) * U * p->functions;
#define MIX_ALONE(r, E)                                                                                 \
    for (size u = 0; u < U; u++)                                                                        \
    mix_alone(r, E, waves + u * (r), columns, C, item->block, spectrum_at(item, v, u),                    \
              to + u * PARTS, U * PARTS)
    BY_FUNCTIONS(MIX_ALONE);
}

INLINE void butterfly(lanes *a, lanes *b, size count)
{
    for (size i = 0; i < count; i++) {
        const lanes sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum;
        b[i] = difference;
    }
}

/* Cosine and sine of a frequency, from a table of waves: [2, rows, length] with a factor. */
typedef struct {
    real c, s;
} Turn;

INLINE Turn turn_of(const real *waves, size rows, size length, size frequency)
{
    return (Turn){waves[length + frequency] / waves[0],
                  waves[(rows + 1) * length + frequency] / waves[0]};
}

/* Rows of the tables of waves: one more than distances. */
INLINE size wave_rows(size extent) { return half(extent) + 1; }

/* Both inverse transforms take a quarter of the frequencies, of which there is an even number.

   Frequencies ω and π - ω have the same cosines and opposite sines at even distances, and the
   reverse at odd ones. So the cosine series at even distances takes the sums of such pairs, at odd
   ones the differences, and the sine series the others. At even distances this repeats itself for
   2ω: distances 4l and 4l + 2 take sums and differences of ω and π/2 - ω. At odd distances

       Σ a cos((4l ± 1) ω) = Σ (a cos ω) cos 4lω ∓ Σ (a sin ω) sin 4lω
       Σ b sin((4l ± 1) ω) = Σ (b cos ω) sin 4lω ± Σ (b sin ω) cos 4lω,

   and at 4l the pairs add up again; cos and sin of π/2 - ω are sin and cos of ω. These are
   butterflies and a reflection. Both are symmetric, so that the backward pass does the same in
   reverse order. */

/* Four frequencies ω, π - ω, π/2 - ω, π/2 + ω of a cosine or sine series, `step` apart. The sums of
   the first step stand first and third. */
INLINE void fold_four(lanes *x, size step, int is_sine, Turn t, int adjoint)
{
    lanes a = x[0], b = x[step], c = x[2 * step], d = x[3 * step];
    for (int round = 0; round < 2; round++)
        if (round == adjoint) {
            const lanes sum = a + b, partner_sum = c + d;
            b = a - b;
            d = c - d;
            a = sum;
            c = partner_sum;
        } else {
            const lanes even = is_sine ? b + d : a + c, even_partner = is_sine ? b - d : a - c;
            const lanes first = is_sine ? a : b, second = is_sine ? c : d;
            const lanes turn = splat(is_sine ? t.s : t.c), other = splat(is_sine ? t.c : t.s);
            const lanes odd = turn * first + other * second;
            const lanes odd_partner = other * first - turn * second;
            a = is_sine ? odd : even;
            b = is_sine ? even : odd;
            c = is_sine ? odd_partner : even_partner;
            d = is_sine ? even_partner : odd_partner;
        }
    x[0] = a;
    x[step] = b;
    x[2 * step] = c;
    x[3 * step] = d;
}

/* Four row times four column frequencies of one part: rows[slot * step]. `alone`: the last two rows
   are the first two. */
INLINE void fold_part(lanes *const rows[4], size n, size step, int rows_are_sine, int columns_are_sine,
                      Turn of_rows, Turn of_columns, int alone, int adjoint)
{
    for (size i = 0; i < n; i++) {
        lanes x[16];
        for (int row = 0; row < 4; row++)
            for (int slot = 0; slot < 4; slot++)
                x[row * 4 + slot] = alone && row > 1 ? splat(0) : rows[row][slot * step + i];
        for (int row = 0; row < 4; row++)
            fold_four(x + row * 4, 1, columns_are_sine, of_columns, adjoint);
        for (int slot = 0; slot < 4; slot++)
            fold_four(x + slot, 4, rows_are_sine, of_rows, adjoint);
        for (int row = 0; row < (alone ? 2 : 4); row++)
            for (int slot = 0; slot < 4; slot++)
                rows[row][slot * step + i] = x[row * 4 + slot];
    }
}

/* Fold products [kind, U, slot, R, n] along both axes. Rows of kind 0 are cosine series, those of
   kind 1 sine series. Along the columns it is the part R = kind that has cosines. */
INLINE void fold(lanes *products, const Pass *p, size v, size n, int adjoint)
{
    const size U = p->row_frequencies, V = p->column_frequencies, D = U / 2;
    const Turn of_columns = turn_of(p->column_waves, wave_rows(p->column_extents[0]), V, v);
    for (size u = 0; u < ceiling(D, 2); u++) {
        const Turn of_rows = turn_of(p->row_waves, wave_rows(p->row_extents[0]), U, u);
        const size order[4] = {u, U - 1 - u, D - 1 - u, D + u};
        for (int kind = 0; kind < 2; kind++)
            for (int part = 0; part < 2; part++) {
                lanes *rows[4];
                for (int i = 0; i < 4; i++)
                    rows[i] = products + ((kind * U + order[i]) * PARTS + part) * n;
                fold_part(rows, n, 2 * n, kind, part != kind, of_rows, of_columns, u == D - 1 - u,
                          adjoint);
            }
    }
}

/* Everything that a product of waves along the rows needs. */
typedef struct {
    size height, depth;
    Numbers waves;
    Vectors folded, rows;
} Series;

/* Distances that a series is for: 4l, 4l + 2, and two that make up 4l ± 1, by cos 4lω and sin 4lω.
   The latter two stand in rows 4l + 1 and 4l - 1 until `join_rows`. */
enum { FOURS, TWOS, ODD_COSINES, ODD_SINES, SERIES };

/* Of a cosine (kind 0) or sine series (1). */
INLINE Series series(const Item *item, size scale, size v, size n, lanes *products, size kind,
                     size which)
{
    const Pass *p = item->p;
    const size U = p->row_frequencies, D = U / 2, h = half(p->row_extents[scale]), step = PARTS * n;
    const size line = row_size(p, item->count);
    static const size first_row[SERIES] = {0, 2, 1, 3}, first_wave[SERIES] = {0, 2, 0, 4};
    const size heights[SERIES] = {(h + 3) / 4, (h + 1) / 4, h > 1 ? h / 4 + 1 : 0, h / 4};
    const int is_odd = which >= ODD_COSINES, is_sine = is_odd ? which == ODD_SINES : kind == 1;
    /* Sums of pairs stand first, differences last and in reverse order. */
    const int is_sum = which == TWOS ? is_sine : !is_sine, forward = (kind == 1) == is_odd;
    lanes *folded = products + (kind * U + (forward ? 0 : U - 1)) * step;
    const size stride = forward ? step : -step;
    lanes *rows = item->rows + first_row[which] * line + v * panel_size(item->count) + kind * step;
    return (Series){
        has_parity(down(p, scale), is_odd) ? heights[which] : 0,
        is_sum ? ceiling(D, 2) : D / 2,
        {p->row_waves + (is_sine * wave_rows(p->row_extents[0]) + first_wave[which]) * U, 4 * U, 1},
        is_sum ? (Vectors){folded, stride, 1} : (Vectors){folded + (D - 1) * stride, -stride, 1},
        {rows, 4 * line, 1},
    };
}

/* Rows 4l ± 1 from the sums over cos 4lω and sin 4lω; or the transpose of this. */
static void join_rows(const Item *item, size scale, size v, size n, int adjoint)
{
    const Pass *p = item->p;
    const size h = half(p->row_extents[scale]), line = row_size(p, item->count), step = PARTS * n;
    if (!has_parity(down(p, scale), 1))
        return;
    for (size l = 1; l <= h / 4; l++) {
        lanes *plus = item->rows + (4 * l + 1) * line + v * panel_size(item->count);
        lanes *minus = plus - 2 * line;
        if (adjoint && 4 * l + 1 >= h)
            memset(plus, 0, 2 * step * sizeof(lanes));
        for (size i = 0; i < 2 * step; i++) {
            const lanes a = plus[i], b = minus[i];
            const int is_first = (i < step) != adjoint; /* a cosine series, or transposed a sine's */
            plus[i] = is_first ? a - b : a + b;
            minus[i] = is_first ? a + b : b - a;
        }
    }
}

/* Where V / 2 is odd, the last two slots of the last four are empty. */
INLINE size slots_of(size V, size v) { return v == V / 2 - 1 - v ? 2 : 4; }

/* Steps 2 to 4 for all maps of a kernel size: rows δy ≥ 0, still transformed along the columns. */
static void make_rows(Item *item, size scale)
{
    const Pass *p = item->p;
    const size U = p->row_frequencies, V = p->column_frequencies, C = p->channels, n = item->count;
    for (size v = 0; v < ceiling(V, 4); v++) {
        if (slots_of(V, v) < 4)
            memset(item->products, 0, 2 * PARTS * U * n * sizeof(lanes));
        make_columns(p, scale, v, item->weight, C, item->columns);
        for (size slot = 0; slot < slots_of(V, v); slot++) {
            const size frequency = frequency_of(V, v, slot);
            const lanes *columns = item->columns + slot * p->functions * 2 * C;
            if (n == 1)
                make_products_alone(item, scale, frequency, columns, item->products + slot * 2);
            for (size u = 0; u < U && n > 1; u++) {
                make_kernels(p, scale, u, columns, C, 1, item->kernels);
                mix(item, frequency, u, item->products + (u * PARTS + slot * 2) * n);
            }
        }
        fold(item->products, p, v, n, 0);
        for (size kind = 0; kind < 2; kind++)
            for (size which = 0; which < SERIES; which++) {
                const Series s = series(item, scale, v, n, item->products, kind, which);
                multiply(s.height, s.depth, PARTS * n, s.waves, s.folded, s.rows);
            }
        join_rows(item, scale, v, n, 0);
    }
}

/* Waves along the columns at every fourth distance. */
typedef struct {
    size depth, step; /* step: between pixels */
    const real *cosine, *sine;
} Wave;

INLINE Wave column_wave(const Pass *p, size first)
{
    const size V = p->column_frequencies;
    const real *cosine = p->column_waves + first * V;
    return (Wave){ceiling(V, 4), 4 * V, cosine, cosine + wave_rows(p->column_extents[0]) * V};
}

/* Which parts of a panel a series takes: the cosine and sine series of what is even in y, then of
   what is odd in y. See `fold_columns`. */
static const size parts_of[SERIES][4] = {{0, 7, 9, 14}, {4, 3, 13, 10}, {2, 1, 11, 8}, {6, 5, 15, 12}};

/* Pixels at (+, +), (+, -), (-, +), (-, -) of (δy, δx) from the four series. */
INLINE void make_quadrants(const lanes sum[4], lanes pixels[4])
{
    const lanes right = sum[0] - sum[1], left = sum[0] + sum[1];
    const lanes odd_right = sum[2] + sum[3], odd_left = sum[2] - sum[3];
    pixels[0] = right - odd_right;
    pixels[1] = left - odd_left;
    pixels[2] = right + odd_right;
    pixels[3] = left + odd_left;
}

/* Step 5: a few pixels δx = 4l or 4l + 2 of one row. The first few fetch the row visited next. */
INLINE void synthesise(int count, Wave w, size l, size which, size samples, const lanes *panel,
                       size ahead, lanes pixels[][4])
{
    lanes sum[ACROSS][4];
    const size *parts = parts_of[which];
    for (int i = 0; i < count; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = splat(0);
    for (size v = 0; v < w.depth; v++, panel += panel_size(samples)) {
        for (int part = 0; part < 4 && l == 0; part++)
            FETCH_SECOND(panel + parts[part] * samples + ahead);
        for (int i = 0; i < count; i++) {
            const lanes c = splat(w.cosine[(l + i) * w.step + v]);
            const lanes s = splat(w.sine[(l + i) * w.step + v]);
            sum[i][0] += c * panel[parts[0] * samples];
            sum[i][1] += s * panel[parts[1] * samples];
            sum[i][2] += c * panel[parts[2] * samples];
            sum[i][3] += s * panel[parts[3] * samples];
        }
    }
    for (int i = 0; i < count; i++)
        make_quadrants(sum[i], pixels[i]);
}

/* The same for pairs of pixels 4l + 1 and 4l - 1. */
INLINE void synthesise_odd(int count, Wave w, size l, size samples, const lanes *panel,
                           size ahead, lanes pixels[][4])
{
    lanes cosines[ACROSS / 2][4], sines[ACROSS / 2][4];
    const size *of_cosine = parts_of[ODD_COSINES], *of_sine = parts_of[ODD_SINES];
    for (int i = 0; i < count; i++)
        for (int part = 0; part < 4; part++)
            cosines[i][part] = sines[i][part] = splat(0);
    for (size v = 0; v < w.depth; v++, panel += panel_size(samples)) {
        for (int part = 0; part < 4 && l == 0; part++) {
            FETCH_SECOND(panel + of_cosine[part] * samples + ahead);
            FETCH_SECOND(panel + of_sine[part] * samples + ahead);
        }
        for (int i = 0; i < count; i++) {
            const lanes c = splat(w.cosine[(l + i) * w.step + v]);
            const lanes s = splat(w.sine[(l + i) * w.step + v]);
            for (int part = 0; part < 4; part++) {
                cosines[i][part] += c * panel[of_cosine[part] * samples];
                sines[i][part] += s * panel[of_sine[part] * samples];
            }
        }
    }
    for (int i = 0; i < count; i++) {
        lanes plus[4], minus[4];
        for (int part = 0; part < 4; part += 2) { /* a cosine series, then a sine series */
            plus[part] = cosines[i][part] - sines[i][part];
            minus[part] = cosines[i][part] + sines[i][part];
            plus[part + 1] = sines[i][part + 1] + cosines[i][part + 1];
            minus[part + 1] = sines[i][part + 1] - cosines[i][part + 1];
        }
        make_quadrants(plus, pixels[2 * i]);
        make_quadrants(minus, pixels[2 * i + 1]);
    }
}

/* Apart from `visit_row`, which is compiled once per visitor. */
static __attribute__((noinline)) void synthesise_some(int count, Wave w, size l, size which,
                                                      size samples, const lanes *panel,
                                                      size ahead, lanes pixels[][4])
{
    if (which >= ODD_COSINES)
        switch (count) {
        case 1: synthesise_odd(1, w, l, samples, panel, ahead, pixels); return;
#if ACROSS > 3
        case 2: synthesise_odd(2, w, l, samples, panel, ahead, pixels); return;
        case 3: synthesise_odd(3, w, l, samples, panel, ahead, pixels); return;
#endif
        }
    switch (count) {
    case 1: synthesise(1, w, l, which, samples, panel, ahead, pixels); break;
    case 2: synthesise(2, w, l, which, samples, panel, ahead, pixels); break;
    case 3: synthesise(3, w, l, which, samples, panel, ahead, pixels); break;
#if ACROSS > 3
    case 4: synthesise(4, w, l, which, samples, panel, ahead, pixels); break;
    case 5: synthesise(5, w, l, which, samples, panel, ahead, pixels); break;
    case 6: synthesise(6, w, l, which, samples, panel, ahead, pixels); break;
#endif
    }
}

INLINE size place_of(const Item *item, size y, size n)
{
    return (y * item->count + n) * half(item->p->column_extents[0]) * 4;
}

/* `ahead` where the samples of a row are visited in turn. */
INLINE size next_map(const Item *item, size n)
{
    return n + 1 < item->count ? 1 : row_size(item->p, item->count) - n;
}

/* Called with each pixel of a row δy ≥ 0: its index and its four values. `ahead`: from these rows to
   those visited next. */
typedef void Visitor(void *context, size x, const lanes pixels[4]);

INLINE void visit_row(const Item *item, size scale, size y, size n, size ahead, Visitor *visit,
                      void *context)
{
    const Axis rows = down(item->p, scale), columns = across(item->p, scale);
    const lanes *panel = item->rows + y * row_size(item->p, item->count) + n;
    const lanes none = splat(-__builtin_inf());
    const int lower = pixel_of(rows, y, 0) >= 0, upper = pixel_of(rows, y, 1) >= 0;
    if (!lower && !upper)
        return;
    for (size which = 0; which <= ODD_COSINES; which++) {
        const int is_odd = which == ODD_COSINES;
        const size width = half(columns.extent), at_once = is_odd ? ACROSS / 2 : ACROSS;
        const size counts[3] = {(width + 3) / 4, (width + 1) / 4, width > 1 ? width / 4 + 1 : 0};
        const Wave w = column_wave(item->p, which == TWOS ? 2 : 0);
        for (size l = 0; l < counts[which] && has_parity(columns, is_odd); l += at_once) {
            lanes pixels[ACROSS][4];
            const int count = (int)least(at_once, counts[which] - l);
            synthesise_some(count, w, l, which, item->count, panel, ahead, pixels);
            for (int i = 0; i < count * (1 + is_odd); i++) {
                const size column =
                    is_odd ? 4 * (l + i / 2) + (i % 2 ? -1 : 1) : 4 * (l + i) + (which == TWOS ? 2 : 0);
                if (column < 0 || column >= width)
                    continue;
                if (!lower)
                    pixels[i][0] = pixels[i][1] = none;
                if (!upper)
                    pixels[i][2] = pixels[i][3] = none;
                if (pixel_of(columns, column, 0) < 0)
                    pixels[i][0] = pixels[i][2] = none;
                if (pixel_of(columns, column, 1) < 0)
                    pixels[i][1] = pixels[i][3] = none;
                visit(context, column, pixels[i]);
            }
        }
    }
}

/* ---- Step 6: pooling. ---- */

typedef struct {
    lanes *best;
    mask *choice, which; /* which: of `keep` */
    size scale, length;  /* length: to the row visited next */
} Row;

INLINE void challenge_pixel(void *context, size x, const lanes pixels[4])
{
    const Row *row = context;
    for (int q = 0; q < 4; q++) {
        const size at = x * 4 + q;
        FETCH_SECOND(row->best + at + row->length);
        if (row->choice)
            FETCH_SECOND(row->choice + at + row->length);
        const mask won = wins(pixels[q], row->best[at]);
        row->best[at] = choose(won, pixels[q], row->best[at]);
        if (row->choice)
            row->choice[at] = pick(won, fill(row->scale), row->choice[at]);
    }
}

/* Let the pixels of a kernel size replace what they exceed. */
static void challenge(Item *item, size scale)
{
    const size length = place_of(item, 0, 1);
    for (size y = 0; y < half(item->p->row_extents[scale]); y++)
        for (size n = 0; n < item->count; n++) {
            const size at = place_of(item, y, n), ahead = next_map(item, n);
            Row row = {item->best + at, NULL, {0}, scale, length};
            if (!item->choice) {
                visit_row(item, scale, y, n, ahead, challenge_pixel, &row);
                continue;
            }
            row.choice = item->choice + at;
            visit_row(item, scale, y, n, ahead, challenge_pixel, &row);
        }
}

INLINE void keep_pixel(void *context, size x, const lanes pixels[4])
{
    const Row *row = context;
    for (int q = 0; q < 4; q++)
        row->best[x * 4 + q] = choose(row->which, pixels[q], row->best[x * 4 + q]);
}

/* Write the pixels of some maps (lanes of `which`) into `best`. */
static void keep_maps(Item *item, size scale, size n, mask which)
{
    for (size y = 0; y < half(item->p->row_extents[scale]); y++) {
        Row row = {item->best + place_of(item, y, n), NULL, which, scale, 0};
        visit_row(item, scale, y, n, row_size(item->p, item->count), keep_pixel, &row);
    }
}

/* One peak per quadrant: a single one would wait for itself at every pixel. */
INLINE void peak_pixel(void *context, size x, const lanes pixels[4])
{
    lanes *peaks = context;
    (void)x;
    for (int q = 0; q < 4; q++)
        peaks[q] = choose(wins(pixels[q], peaks[q]), pixels[q], peaks[q]);
}

typedef struct {
    lanes peak;
    mask place;
    size first; /* number of the row's first pixel */
} Peak;

INLINE void place_pixel(void *context, size x, const lanes pixels[4])
{
    Peak *at = context;
    for (int q = 0; q < 4; q++) {
        const mask won = wins(pixels[q], at->peak);
        at->peak = choose(won, pixels[q], at->peak);
        at->place = pick(won, fill((at->first + x) * 4 + q), at->place);
    }
}

/* The maximum of each map of a sample. */
static lanes find_peak(const Item *item, size scale, size n)
{
    lanes peaks[4];
    peaks[0] = peaks[1] = peaks[2] = peaks[3] = splat(-__builtin_inf());
    for (size y = 0; y < half(item->p->row_extents[scale]); y++)
        visit_row(item, scale, y, n, row_size(item->p, item->count), peak_pixel, peaks);
    for (int q = 1; q < 4; q++)
        peaks[0] = choose(wins(peaks[q], peaks[0]), peaks[q], peaks[0]);
    return peaks[0];
}

/* The first pixel that holds the maximum, as a number made of y, x and quadrant. */
static mask find_place(const Item *item, size scale, size n)
{
    const size width = half(item->p->column_extents[scale]);
    Peak at = {splat(-__builtin_inf()), {0}, 0};
    for (size y = 0; y < half(item->p->row_extents[scale]); y++, at.first += width)
        visit_row(item, scale, y, n, row_size(item->p, item->count), place_pixel, &at);
    return at.place;
}

INLINE int is_framed(const Pass *p, size scale)
{
    return p->row_extents[scale] != p->row_extents[0] ||
           p->column_extents[scale] != p->column_extents[0];
}

/* Slice pooling: keep the whole map that holds the maximum. */
static void compete(Item *item, size scale)
{
    for (size n = 0; n < item->count; n++) {
        lanes peak = find_peak(item, scale, n) + item->shift;
        if (is_framed(item->p, scale))
            peak = choose(peak < 0, splat(0), peak);
        const mask won = scale ? (mask)(peak > item->record[n]) : fill(-1);
        item->record[n] = choose(won, peak, item->record[n]);
        item->winner[n] = pick(won, fill(scale), item->winner[n]);
        if (any(won))
            keep_maps(item, scale, n, won);
    }
}

/* Global pooling: keep the maximum and, if it is tracked, its place; -1 is a zero of the frame. */
static void compete_globally(Item *item, size scale)
{
    for (size n = 0; n < item->count; n++) {
        const lanes peak = find_peak(item, scale, n) + item->shift;
        const mask won = scale ? wins(peak, item->record[n]) : fill(-1);
        if (item->p->track && any(won)) {
            item->place[n] = pick(won, find_place(item, scale, n), item->place[n]);
            item->winner[n] = pick(won, fill(scale), item->winner[n]);
        }
        lanes record = choose(won, peak, item->record[n]);
        if (is_framed(item->p, scale)) {
            const mask zero = record < 0;
            record = choose(zero, splat(0), record);
            item->winner[n] = pick(zero, fill(scale), item->winner[n]);
            item->place[n] = pick(zero, fill(-1), item->place[n]);
        }
        item->record[n] = record;
    }
}

/* ---- From quadrants to maps. ---- */

INLINE size map_of(const Item *item, size n, size lane)
{
    const Pass *p = item->p;
    return ((item->first + n) * p->groups + item->group) * p->outputs + item->output + lane;
}

/* Write one vector of pixels into the maps of its lanes. */
INLINE void scatter(const Item *item, size n, size offset, size map, lanes value, const mask *choice)
{
    const Pass *p = item->p;
    for (size lane = 0; lane < item->width; lane++) {
        const size at = map_of(item, n, lane) * map + offset;
        p->values[at] = value[lane];
        if (choice)
            ((int16_t *)p->choice)[at] = (int16_t)(*choice)[lane];
    }
}

static void finish_maps(Item *item)
{
    const Pass *p = item->p;
    const Axis rows = down(p, 0), columns = across(p, 0);
    const size H = strided_length(rows), W = strided_length(columns);
    const int keeps = p->pool != PIXEL;
    for (size y = 0; y < half(rows.extent); y++)
        for (size n = 0; n < item->count; n++)
            for (size x = 0; x < half(columns.extent); x++) {
                for (int q = 0; q < 4; q++) {
                    const size row = pixel_of(rows, y, q / 2), column = pixel_of(columns, x, q % 2);
                    if (row < 0 || column < 0)
                        continue;
                    const size reached = least(p->row_reach[row * rows.stride],
                                               p->column_reach[column * columns.stride]);
                    const mask index = fill(reached);
                    const size at = place_of(item, y, n) + x * 4 + q;
                    lanes value = item->best[at] + item->shift;
                    mask choice = item->choice ? item->choice[at] : (mask){0};
                    if (keeps) {
                        value = choose(item->winner[n] < index, value, splat(0));
                    } else if (reached < p->scales) {
                        const mask zero = wins(splat(0), value);
                        value = choose(zero, splat(0), value);
                        choice = pick(zero, index, choice);
                    }
                    scatter(item, n, row * W + column, H * W, value,
                            item->choice ? &choice : NULL);
                }
            }
}

typedef struct {
    const Item *item;
    size scale, y, n;
} Writing;

INLINE void write_pixel(void *context, size x, const lanes pixels[4])
{
    const Writing *at = context;
    const Pass *p = at->item->p;
    const Axis rows = down(p, at->scale), columns = across(p, at->scale);
    const size H = strided_length(down(p, 0)), W = strided_length(across(p, 0));
    for (int q = 0; q < 4; q++) {
        const size row = pixel_of(rows, at->y, q / 2), column = pixel_of(columns, x, q % 2);
        if (row >= 0 && column >= 0)
            scatter(at->item, at->n, (at->scale * H + row) * W + column, p->scales * H * W,
                    pixels[q] + at->item->shift, NULL);
    }
}

static void write_stack(const Item *item, size scale)
{
    for (size y = 0; y < half(item->p->row_extents[scale]); y++)
        for (size n = 0; n < item->count; n++) {
            Writing at = {item, scale, y, n};
            visit_row(item, scale, y, n, next_map(item, n), write_pixel, &at);
        }
}

static void finish_numbers(Item *item)
{
    const Pass *p = item->p;
    const size H = p->row_extents[0], W = p->column_extents[0];
    for (size n = 0; n < item->count; n++)
        for (size lane = 0; lane < item->width; lane++) {
            const size map = map_of(item, n, lane), scale = item->winner[n][lane];
            p->values[map] = item->record[n][lane];
            if (!p->track)
                continue;
            size flat = 0;
            if (item->place[n][lane] >= 0) {
                const size place = item->place[n][lane], q = place % 4;
                const Axis rows = down(p, scale), columns = across(p, scale);
                const size y = place / 4 / half(columns.extent), x = place / 4 % half(columns.extent);
                const size row = pixel_of(rows, y, q / 2) * rows.stride;
                flat = row * W + pixel_of(columns, x, q % 2) * columns.stride;
            }
            ((int64_t *)p->choice)[map] = scale * H * W + flat;
        }
}

/* ---- A pass. ---- */

static void read_winners(Item *item)
{
    memset(item->winner, 0, item->count * sizeof(mask));
    for (size n = 0; n < item->count; n++)
        for (size lane = 0; lane < item->width; lane++)
            item->winner[n][lane] = ((int16_t *)item->p->choice)[map_of(item, n, lane)];
}

static int is_chosen(const Item *item, size scale)
{
    for (size n = 0; n < item->count; n++)
        if (any(item->winner[n] == fill(scale)))
            return 1;
    return 0;
}

static void start_maps(Item *item)
{
    const Pass *p = item->p;
    const size pixels = place_of(item, half(p->row_extents[0]), 0);
    memset(item->winner, 0, item->count * sizeof(mask));
    memset(item->place, 0, item->count * sizeof(mask));
    if (p->pool == PIXEL)
        for (size i = 0; i < pixels; i++)
            item->best[i] = splat(-__builtin_inf());
    if (p->pool == CHOSEN)
        read_winners(item);
}

/* All kernel sizes of a period. */
static void run_period(Item *item)
{
    const Pass *p = item->p;
    for (size scale = p->begin; scale < p->end; scale++) {
        if (p->pool == CHOSEN && !is_chosen(item, scale))
            continue;
        make_rows(item, scale);
        switch (p->pool) {
        case STACK: write_stack(item, scale); break;
        case PIXEL: challenge(item, scale); break;
        case SLICE: compete(item, scale); break;
        case GLOBAL: compete_globally(item, scale); break;
        case CHOSEN:
            for (size n = 0; n < item->count; n++)
                if (any(item->winner[n] == fill(scale)))
                    keep_maps(item, scale, n, item->winner[n] == fill(scale));
        }
    }
}

static void finish_item(Item *item)
{
    const Pass *p = item->p;
    if (p->pool == GLOBAL)
        finish_numbers(item);
    else if (p->pool != STACK)
        finish_maps(item);
    if (p->pool == SLICE)
        for (size n = 0; n < item->count; n++)
            for (size lane = 0; lane < item->width; lane++)
                ((int16_t *)p->choice)[map_of(item, n, lane)] = (int16_t)item->winner[n][lane];
}

/* ---- Step 7: the backward pass, the transpose of every step in reverse. ---- */

/* Of an item, on top of what the forward pass has. */
typedef struct {
    Item item;
    lanes *pixels;        /* [h, n, w, 4] gradient of the pooled maps, or of one kernel size */
    mask *scales;         /* the scale of each of them */
    lanes *all_rows;      /* rows of all maps; slices only */
    size *active;         /* samples that a kernel size has a gradient of */
    lanes *line;          /* [w, 4] */
    lanes *odd_line;      /* [w / 4 + 1, 8], see `synthesise_odd` */
    lanes *products;      /* [±, U, slot, R, n] gradient of the products */
    lanes *sums;          /* [±, n] of real and imaginary parts */
    lanes *kernel_grad;   /* [even or odd, U, R, C] */
    lanes *column_grad;   /* [r, R, C] */
    lanes *weight_grad;   /* [q, r, C] */
    lanes *turned_weight; /* [q, r, O, C] with vectors of input channels */
    lanes *turned_columns, *turned_kernels; /* [slot, r, R, O, C], [±, O, 3, C] */
    real *spectrum_grad;  /* of its strip: [V, U, ±, N, R, C] */
} Adjoint;

INLINE size channel_vectors(const Pass *p) { return ceiling(p->channels, LANES); }

/* Reals of the spectrum's gradient that belong to one strip. */
INLINE size spectrum_grad_size(const Pass *p)
{
    return p->column_frequencies * p->row_frequencies * 4 * p->samples * channel_vectors(p) * LANES;
}

static Adjoint take_adjoint(const Pass *p, size block, Arena *arena)
{
    const size r = p->functions, C = p->channels, U = p->row_frequencies;
    const size h = half(p->row_extents[0]), w = half(p->column_extents[0]);
    const size Cv = p->x_grad ? channel_vectors(p) : 0;
    Adjoint a = {.item = {.p = p}};
    a.item.weight = TAKE(arena, lanes, r * r * C);
    a.item.rows = TAKE(arena, lanes, (h + 2) * row_size(p, block));
    a.item.winner = TAKE(arena, mask, block);
    a.pixels = TAKE(arena, lanes, h * block * w * 4);
    a.scales = TAKE(arena, mask, p->pool == PIXEL ? h * block * w * 4 : 0);
    a.all_rows = TAKE(arena, lanes, p->pool == CHOSEN ? h * row_size(p, block) : 0);
    a.active = TAKE(arena, size, block);
    a.line = TAKE(arena, lanes, w * 4);
    a.odd_line = TAKE(arena, lanes, (w / 4 + 1) * 8);
    a.products = TAKE(arena, lanes, 2 * PARTS * U * block);
    a.sums = TAKE(arena, lanes, 2 * block);
    a.kernel_grad = TAKE(arena, lanes, 4 * U * C);
    a.column_grad = TAKE(arena, lanes, r * 2 * C);
    a.weight_grad = TAKE(arena, lanes, r * r * C);
    a.turned_weight = TAKE(arena, lanes, r * r * LANES * Cv);
    a.turned_columns = TAKE(arena, lanes, SLOTS * r * 2 * LANES * Cv);
    a.turned_kernels = TAKE(arena, lanes, 6 * LANES * Cv);
    return a;
}

/* Read gradients, and the scales they belong to, of the maps of this item as quadrants. */
static void gather(Adjoint *a, size scale)
{
    const Item *item = &a->item;
    const Pass *p = item->p;
    const Axis rows = down(p, scale), columns = across(p, scale);
    const size H = strided_length(down(p, 0)), W = strided_length(across(p, 0));
    const size scales = p->pool == STACK ? p->scales : 1;
    const int16_t *choice = p->choice;
    for (size y = 0; y < half(rows.extent); y++)
        for (size n = 0; n < item->count; n++)
            for (size x = 0; x < half(columns.extent); x++)
                for (int q = 0; q < 4; q++) {
                    const size row = pixel_of(rows, y, q / 2), column = pixel_of(columns, x, q % 2);
                    const size to = place_of(item, y, n) + x * 4 + q;
                    lanes value = splat(0);
                    mask index = {0};
                    if (row >= 0 && column >= 0)
                        for (size lane = 0; lane < item->width; lane++) {
                            const size map = map_of(item, n, lane) * scales + scale;
                            const size at = (map * H + row) * W + column;
                            value[lane] = p->grad[at];
                            if (p->pool == PIXEL)
                                index[lane] = choice[at];
                        }
                    a->pixels[to] = value;
                    if (p->pool == PIXEL)
                        a->scales[to] = index;
                }
}

/* Transpose of `synthesise` for a few column frequencies: line [l, 4] -> panel. */
INLINE void synthesise_adjoint(int count, Wave w, size width, size v, size which, size samples,
                               const lanes *line, size step, lanes *panel)
{
    lanes sum[ACROSS][4];
    for (int i = 0; i < count; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = splat(0);
    for (size l = 0; l < width; l++, line += step)
        for (int i = 0; i < count; i++) {
            const lanes c = splat(w.cosine[l * w.step + v + i]), s = splat(w.sine[l * w.step + v + i]);
            /* Odd distances take cosines or sines alone. */
            sum[i][0] += (which == ODD_SINES ? s : c) * line[0];
            sum[i][1] += (which == ODD_COSINES ? c : s) * line[1];
            sum[i][2] += (which == ODD_SINES ? s : c) * line[2];
            sum[i][3] += (which == ODD_COSINES ? c : s) * line[3];
        }
    for (int i = 0; i < count; i++)
        for (int part = 0; part < 4; part++)
            panel[(v + i) * panel_size(samples) + parts_of[which][part] * samples] = sum[i][part];
}

INLINE void synthesise_all_adjoint(Wave w, size width, size which, size samples, const lanes *line,
                                   size step, lanes *panel)
{
    size v = 0;
    for (; v + ACROSS <= w.depth; v += ACROSS)
        synthesise_adjoint(ACROSS, w, width, v, which, samples, line, step, panel);
    for (; v + 3 <= w.depth; v += 3)
        synthesise_adjoint(3, w, width, v, which, samples, line, step, panel);
    for (; v < w.depth; v++)
        synthesise_adjoint(1, w, width, v, which, samples, line, step, panel);
}

/* Transpose of the last step of `synthesise_odd`: line [w, 4] -> odd_line [l, 8]. */
static void pair_line(const Adjoint *a, size width)
{
    for (size l = 0; l <= width / 4; l++)
        for (int part = 0; part < 4; part++) {
            const size right = 4 * l + 1;
            const lanes plus = right < width ? a->line[right * 4 + part] : splat(0);
            const lanes minus = l ? a->line[(right - 2) * 4 + part] : splat(0);
            a->odd_line[l * 8 + part] = part % 2 ? plus - minus : plus + minus;
            a->odd_line[l * 8 + 4 + part] = part % 2 ? plus + minus : minus - plus;
        }
}

/* The part of a row of pixels that belongs to a kernel size, prepared for the sums over x. */
static int prepare_line(const Adjoint *a, size scale, size y, size n, size width)
{
    const size from = place_of(&a->item, y, n);
    const int masked = a->item.p->pool == PIXEL;
    mask some = {0};
    for (size x = 0; x < width; x++) {
        lanes g[4];
        for (int q = 0; q < 4; q++) {
            g[q] = a->pixels[from + x * 4 + q];
            if (masked)
                g[q] = choose(a->scales[from + x * 4 + q] == fill(scale), g[q], splat(0));
            some |= g[q] != 0;
        }
        const lanes right = g[0] + g[2], left = g[1] + g[3];
        const lanes odd_right = g[2] - g[0], odd_left = g[3] - g[1];
        a->line[x * 4] = right + left;
        a->line[x * 4 + 1] = left - right;
        a->line[x * 4 + 2] = odd_right + odd_left;
        a->line[x * 4 + 3] = odd_right - odd_left;
    }
    return any(some);
}

/* Step 5 transposed: rows of all maps of a kernel size from their pixels. */
static int make_rows_adjoint(Adjoint *a, size scale, lanes *rows)
{
    const Pass *p = a->item.p;
    const size samples = a->item.count, panel = panel_size(samples), line = row_size(p, samples);
    int some = 0;
    for (size y = 0; y < half(p->row_extents[scale]); y++)
        for (size n = 0; n < samples && has_parity(down(p, scale), y % 2); n++) {
            lanes *to = rows + y * line + n;
            const size width = half(p->column_extents[scale]);
            const int any_here = prepare_line(a, scale, y, n, width);
            some |= any_here;
            if (!any_here || p->column_stride % 2 == 0)
                for (size v = 0; v < ceiling(p->column_frequencies, 4); v++)
                    for (size part = 0; part < 2 * PARTS; part++)
                        to[v * panel + part * samples] = splat(0);
            if (any_here && has_parity(across(p, scale), 0)) {
                const Wave fours = column_wave(p, 0), twos = column_wave(p, 2);
                synthesise_all_adjoint(fours, (width + 3) / 4, FOURS, samples, a->line, 16, to);
                synthesise_all_adjoint(twos, (width + 1) / 4, TWOS, samples, a->line + 8, 16, to);
            }
            if (any_here && has_parity(across(p, scale), 1)) {
                const Wave w = column_wave(p, 0);
                const size pairs = width / 4 + 1;
                pair_line(a, width);
                synthesise_all_adjoint(w, pairs, ODD_COSINES, samples, a->odd_line, 8, to);
                synthesise_all_adjoint(w, pairs, ODD_SINES, samples, a->odd_line + 4, 8, to);
            }
        }
    return some;
}

/* Of slices every kernel size takes the rows of the maps that it has won. */
static size select_rows(Adjoint *a, size scale)
{
    const Item *item = &a->item;
    const size samples = item->count, panel = panel_size(samples);
    const size length = half(item->p->row_extents[scale]) * row_size(item->p, samples);
    size count = 0;
    for (size n = 0; n < samples; n++)
        if (any(item->winner[n] == fill(scale)))
            a->active[count++] = n;
    for (size at = 0; at < length; at += panel)
        for (size part = 0; part < 2 * PARTS; part++)
            for (size i = 0; i < count; i++) {
                const size n = a->active[i];
                item->rows[at + part * count + i] = choose(
                    item->winner[n] == fill(scale), a->all_rows[at + part * samples + n], splat(0));
            }
    return count;
}

/* Step 4 transposed, and the gradients of the products at -u and u from sum and difference. */
static void make_products(Adjoint *a, size scale, size v, size count)
{
    const Pass *p = a->item.p;
    const size U = p->row_frequencies, kind = U * PARTS * count;
    join_rows(&a->item, scale, v, count, 1);
    for (size k = 0; k < 2; k++)
        for (size which = 0; which < SERIES; which++) {
            const Series s = series(&a->item, scale, v, count, a->products, k, which);
            const Numbers waves = {s.waves.at, 1, s.waves.row};
            multiply(s.depth, s.height, PARTS * count, waves, s.rows, s.folded);
        }
    fold(a->products, p, v, count, 1);
    butterfly(a->products, a->products + kind, kind);
}

/* Step 3 transposed for the kernels: a few input channels, at -u or u. */
INLINE void mix_kernels(int count, size samples, const size *active, size N, const real *x,
                        const lanes *products, lanes real_[], lanes imag[])
{
    lanes m[TILE], bd[TILE], as[TILE];
    for (int c = 0; c < count; c++)
        m[c] = bd[c] = as[c] = splat(0);
    for (size i = 0; i < samples; i++) {
        const lanes g = products[i], g_imag = products[samples + i];
        const lanes sum = g + g_imag, difference = g - g_imag;
        for (int c = 0; c < count; c++) {
            const real *at = x + (c * N + active[i]) * 2;
            const lanes a = splat(at[0]), b = splat(at[1]);
            as[c] += a * sum;
            bd[c] += b * difference;
            m[c] += (a + b) * g;
        }
    }
    for (int c = 0; c < count; c++) {
        real_[c] = m[c] - bd[c];
        imag[c] = m[c] - as[c];
    }
}

INLINE void add_kernels(Adjoint *a, const lanes *products, int count, size c, size v, size u,
                        size samples)
{
    const Item *item = &a->item;
    const Pass *p = item->p;
    const size C = p->channels, N = item->block, U = p->row_frequencies;
    const real *x = spectrum_at(item, v, u) + c * N * 2;
    lanes real_[2][TILE], imag[2][TILE];
    for (size line = 0; line < 2 * count; line++)
        FETCH(x + (4 * C + line / count * C + line % count) * N * 2); /* the next u */
    for (size sign = 0; sign < 2; sign++)
        mix_kernels(count, samples, a->active, N, x + sign * C * N * 2,
                    products + sign * U * PARTS * samples, real_[sign], imag[sign]);
    lanes *even = a->kernel_grad + u * 2 * C + c, *odd = even + U * 2 * C;
    for (int i = 0; i < count; i++) {
        even[i] = real_[0][i] + real_[1][i];
        even[C + i] = imag[0][i] + imag[1][i];
        odd[i] = real_[1][i] - real_[0][i];
        odd[C + i] = imag[1][i] - imag[0][i];
    }
}

/* Step 2 transposed: from kernels to the weight. */
static void add_weight(Adjoint *a, size scale, size v)
{
    const Pass *p = a->item.p;
    const size r = p->functions, E = p->even, C = p->channels, U = p->row_frequencies;
    const real *rows = p->row_kernels + (scale - p->begin) * U * r;
    const real *waves = p->column_kernels + ((scale - p->begin) * p->column_frequencies + v) * r;
    const Vectors even = {a->kernel_grad, 2 * C, 1}, odd = {a->kernel_grad + U * 2 * C, 2 * C, 1};
    multiply(E, U, 2 * C, (Numbers){rows, 1, r}, even, (Vectors){a->column_grad, 2 * C, 1});
    multiply(r - E, U, 2 * C, (Numbers){rows + E, 1, r}, odd,
             (Vectors){a->column_grad + E * 2 * C, 2 * C, 1});
    for (size q = 0; q < r; q++)
        for (size row = 0; row < r; row++) {
            const lanes *from = a->column_grad + (row * 2 + ((q < E) != (row < E))) * C;
            lanes *to = a->weight_grad + (q * r + row) * C;
            for (size c = 0; c < C; c++)
                to[c] += splat(waves[q]) * from[c];
        }
}

/* Step 3 transposed for the input: a few samples, one vector of channels, at -u or u. */
INLINE void mix_input(int count, size samples, size outputs, size Cv, const real *products,
                      const real *sums, const lanes *kernels, lanes *to[])
{
    lanes m[TILE], imag_s[TILE], real_d[TILE];
    for (int n = 0; n < count; n++)
        m[n] = imag_s[n] = real_d[n] = splat(0);
    for (size o = 0; o < outputs; o++) {
        const lanes *kernel = kernels + o * 3 * Cv;
        for (int n = 0; n < count; n++) {
            m[n] += splat(sums[n * LANES + o]) * kernel[0];
            imag_s[n] += splat(products[(samples + n) * LANES + o]) * kernel[Cv];
            real_d[n] += splat(products[n * LANES + o]) * kernel[2 * Cv];
        }
    }
    for (int n = 0; n < count; n++) {
        to[n][0] += m[n] - imag_s[n];
        to[n][Cv] += m[n] - real_d[n];
    }
}

INLINE void add_samples(Adjoint *a, const lanes *products, int count, size i, size samples, size v,
                        size u, size sign)
{
    const Item *item = &a->item;
    const Pass *p = item->p;
    const size N = p->samples, Cv = channel_vectors(p);
    real *grad = a->spectrum_grad + ((v * p->row_frequencies + u) * 2 + sign) * N * 2 * Cv * LANES;
    for (size c = 0; c < Cv; c++) {
        lanes *to[TILE];
        for (int n = 0; n < count; n++)
            to[n] = (lanes *)grad + (item->first + a->active[i + n]) * 2 * Cv + c;
        for (int n = 0; n < 2 * count; n++)
            FETCH(to[n / 2] + 4 * N * Cv + n % 2 * Cv); /* the next u */
        mix_input(count, samples, item->width, Cv, (const real *)(products + i),
                  (const real *)(a->sums + i), a->turned_kernels + sign * 3 * LANES * Cv + c, to);
    }
}

static void add_input(Adjoint *a, const lanes *products, size v, size u, size samples)
{
    for (size sign = 0; sign < 2; sign++, products += a->item.p->row_frequencies * PARTS * samples) {
        size i = 0;
        for (size n = 0; n < samples; n++)
            a->sums[n] = products[n] + products[samples + n];
        for (; i + TILE <= samples; i += TILE)
            add_samples(a, products, TILE, i, samples, v, u, sign);
        for (; i < samples; i++)
            add_samples(a, products, 1, i, samples, v, u, sign);
    }
}

/* Steps 3 and 2 transposed, at one column frequency. */
static void add_frequency(Adjoint *a, const lanes *products, const lanes *columns, size scale, size v,
                          size samples)
{
    const Pass *p = a->item.p;
    const size U = p->row_frequencies, C = p->channels, vectors = channel_vectors(p);
    for (size u = 0; u < U; u++) {
        size c = 0;
        for (; c + TILE <= C; c += TILE)
            add_kernels(a, products + u * PARTS * samples, TILE, c, v, u, samples);
        for (; c < C; c++)
            add_kernels(a, products + u * PARTS * samples, 1, c, v, u, samples);
    }
    add_weight(a, scale, v);
    if (!p->x_grad)
        return;
    for (size u = 0; u < U; u++) {
        make_kernels(p, scale, u, columns, LANES * vectors, vectors, a->turned_kernels);
        add_input(a, products + u * PARTS * samples, v, u, samples);
    }
}

static void add_scale(Adjoint *a, size scale, size samples)
{
    const Pass *p = a->item.p;
    const size V = p->column_frequencies, length = LANES * channel_vectors(p);
    for (size v = 0; v < ceiling(V, 4); v++) {
        make_products(a, scale, v, samples);
        if (p->x_grad)
            make_columns(p, scale, v, a->turned_weight, length, a->turned_columns);
        for (size slot = 0; slot < slots_of(V, v); slot++)
            add_frequency(a, a->products + slot * 2 * samples,
                          a->turned_columns + slot * p->functions * 2 * length, scale,
                          frequency_of(V, v, slot), samples);
    }
}

static void turn_weight(Adjoint *a)
{
    const Pass *p = a->item.p;
    const size r = p->functions, C = p->channels, Cv = channel_vectors(p);
    memset(a->turned_weight, 0, r * r * LANES * Cv * sizeof(lanes));
    for (size f = 0; f < r * r; f++)
        for (size c = 0; c < C; c++)
            for (size o = 0; o < a->item.width; o++)
                ((real *)(a->turned_weight + (f * LANES + o) * Cv))[c] = a->item.weight[f * C + c][o];
}

/* Samples of other items stand between those of this one. */
static void clear_spectrum_grad(Adjoint *a)
{
    const Pass *p = a->item.p;
    const size line = 2 * channel_vectors(p) * LANES;
    for (size i = 0; i < p->column_frequencies * p->row_frequencies * 2; i++)
        memset(a->spectrum_grad + (i * p->samples + a->item.first) * line, 0,
               a->item.count * line * sizeof(real));
}

/* [W, 2V] -> [2V, W] in rows of vectors. */
static void turn_waves(const Pass *p, lanes *to)
{
    const size V2 = 2 * p->column_frequencies, Wv = ceiling(p->width, LANES);
    memset(to, 0, V2 * Wv * sizeof(lanes));
    for (size v = 0; v < V2; v++)
        for (size x = 0; x < p->width; x++)
            ((real *)(to + v * Wv))[x] = p->column_analysis[x * V2 + v];
}

static void start_adjoint(Adjoint *a)
{
    Item *item = &a->item;
    const Pass *p = item->p;
    memset(a->weight_grad, 0, p->functions * p->functions * p->channels * sizeof(lanes));
    for (size n = 0; n < item->count; n++)
        a->active[n] = n;
    if (p->x_grad)
        turn_weight(a);
    if (p->pool != STACK)
        gather(a, 0);
    if (p->pool == CHOSEN)
        read_winners(item);
}

static void run_adjoint_period(Adjoint *a)
{
    Item *item = &a->item;
    const Pass *p = item->p;
    if (p->pool == CHOSEN)
        make_rows_adjoint(a, 0, a->all_rows);
    for (size scale = p->begin; scale < p->end; scale++) {
        size samples = item->count;
        if (p->pool == STACK)
            gather(a, scale);
        if (p->pool == CHOSEN)
            samples = select_rows(a, scale);
        else if (!make_rows_adjoint(a, scale, item->rows))
            continue;
        if (samples)
            add_scale(a, scale, samples);
    }
}

/* Step 1 transposed: the input's gradient for one sample and one vector of channels. The first
   period writes it, the others add to it. */
static void analyse_adjoint(const Pass *p, lanes *column_waves, lanes *planes, lanes *rows,
                            const real *spectrum_grad, size strips, size group, size n, size c)
{
    const size H = p->height, W = p->width, U = p->row_frequencies, V = p->column_frequencies;
    const size C = p->channels, Cv = channel_vectors(p), pitch = pitch_of(p), Wv = ceiling(W, LANES);
    const size strip = spectrum_grad_size(p) / LANES;
    const size width = least(LANES, C - c * LANES), sign = p->samples * 2 * Cv;
    const lanes *from = (const lanes *)spectrum_grad + group * strips * strip;
    for (size u = 0; u < U; u++)
        for (size v = 0; v < V; v++) {
            const lanes *at = from + (v * U + u) * 2 * sign + n * 2 * Cv + c;
            lanes minus = at[0], minus_imag = at[Cv], plus = at[sign], plus_imag = at[sign + Cv];
            for (size s = 1; s < strips; s++) {
                minus += at[s * strip];
                minus_imag += at[s * strip + Cv];
                plus += at[s * strip + sign];
                plus_imag += at[s * strip + sign + Cv];
            }
            const lanes cc = minus + plus, ss = plus - minus;
            const lanes sc = plus_imag - minus_imag, cs = -plus_imag - minus_imag;
            for (size lane = 0; lane < width; lane++) {
                real *even = (real *)(planes + (lane * 2 * U + u) * pitch) + v;
                real *odd = even + U * pitch * LANES;
                even[0] = cc[lane];
                even[V] = cs[lane];
                odd[0] = sc[lane];
                odd[V] = ss[lane];
            }
        }
    for (size lane = 0; lane < width; lane++) {
        const Vectors plane = {planes + lane * 2 * U * pitch, pitch, 1};
        lanes *image = rows + H * pitch;
        multiply(H, 2 * U, pitch, (Numbers){p->row_analysis, 1, H}, plane, (Vectors){rows, pitch, 1});
        multiply(H, 2 * V, Wv, (Numbers){(real *)rows, pitch * LANES, 1},
                 (Vectors){column_waves, Wv, 1}, (Vectors){image, Wv, 1});
        real *to = p->x_grad + ((n * p->groups + group) * C + c * LANES + lane) * H * W;
        for (size y = 0; y < H; y++)
            for (size x = 0; x < W; x++)
                to[y * W + x] = ((real *)(image + y * Wv))[x] + (p->begin ? to[y * W + x] : 0);
    }
}

/* ---- Whole passes. ---- */

#ifdef _OPENMP
int omp_get_thread_num(void);
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

typedef struct {
    lanes *column_waves; /* [W, 2V] */
    real *spectrum;
    lanes *turned_waves; /* backward: [2V, W] */
    real *spectrum_grad;
} Period;

typedef struct {
    Cut cut;
    lanes *weight_grads; /* [samples, outputs, q, r, C] by blocks */
    char *rest;
    size per_thread;
} Layout;

typedef struct {
    lanes *planes, *rows;
} Images;

static Images take_images(const Pass *p, Arena *arena)
{
    const size pitch = pitch_of(p), Wv = ceiling(p->width, LANES);
    return (Images){TAKE(arena, lanes, LANES * 2 * p->row_frequencies * pitch),
                    TAKE(arena, lanes, p->height * (pitch + Wv))};
}

/* The last period is the longest. */
static Layout lay_out(const Pass *p, size periods, Period *to, Arena *arena)
{
    const Pass *longest = p + periods - 1;
    const Cut c = cut(longest);
    Arena analysis = {0}, item = {0}, images = {0};
    Layout l = {.cut = c};
    for (; p <= longest; p++, to++) {
        to->column_waves = TAKE(arena, lanes, p->width * pitch_of(p));
        to->spectrum = TAKE(arena, real, p->groups * c.sample_blocks * spectrum_size(p, c.block));
        if (p->grad && p->x_grad) {
            const size Wv = ceiling(p->width, LANES);
            to->turned_waves = TAKE(arena, lanes, 2 * p->column_frequencies * Wv);
            to->spectrum_grad = TAKE(arena, real, p->groups * c.strips * spectrum_grad_size(p));
        }
    }
    take_analysis(longest, c.block, &analysis);
    if (longest->grad) {
        l.weight_grads = TAKE(arena, lanes, c.output_blocks * c.sample_blocks * longest->functions *
                                                longest->functions * longest->channels);
        take_adjoint(longest, c.block, &item);
        take_images(longest, &images);
    } else
        take_item(longest, c.block, &item);
    l.per_thread = most(most(analysis.used, item.used), images.used);
    l.rest = take(arena, longest->threads, l.per_thread);
    return l;
}

/* Copy rows of reals into rows of vectors, filled up with zeros. */
static void pad_rows(size count, size length, const real *from, lanes *to)
{
    const size vectors = ceiling(length, LANES);
    memset(to, 0, count * vectors * sizeof(lanes));
    for (size i = 0; i < count; i++)
        memcpy(to + i * vectors, from + i * length, length * sizeof(real));
}

/* Analyse all images; to be called by all threads of a team. */
static void analyse_all(const Pass *p, Cut c, Period to, char *own)
{
    Arena arena = {own, 0};
    const Analysis a = take_analysis(p, c.block, &arena);
    const size channels = p->groups * p->channels;
#pragma omp for schedule(dynamic)
    for (size i = 0; i < channels * c.sample_blocks; i++)
        analyse(p, to.column_waves, a, c, i / c.sample_blocks, i % c.sample_blocks, to.spectrum);
}

/* What the caller checks and counts with: bytes of a `Pass`, numbers in a vector. */
EXPORTED size JOIN(NAME, _pass_bytes)(void) { return sizeof(Pass); }
EXPORTED size JOIN(NAME, _lanes)(void) { return LANES; }

/* Bytes of scratch memory that a pass needs; it must be aligned to 64 bytes. The first of the
   passes holds it. */
EXPORTED size JOIN(NAME, _scratch)(const Pass *p, size periods)
{
    Arena arena = {0};
    Period at[periods];
    lay_out(p, periods, at, &arena);
    return arena.used;
}

/* Both return 0, or 1 if the scratch memory is too small. */
EXPORTED int JOIN(NAME, _forward)(const Pass *p, size periods)
{
    Arena arena = {p->scratch, 0};
    Period at[periods];
    const Layout l = lay_out(p, periods, at, &arena);
    const Cut c = l.cut;
    if (arena.used > p->scratch_bytes)
        return 1;
    for (size i = 0; i < periods; i++)
        pad_rows(p->width, 2 * p[i].column_frequencies, p[i].column_analysis, at[i].column_waves);
#pragma omp parallel num_threads((int)p->threads)
    {
        char *own = l.rest + THREAD * l.per_thread;
        for (size i = 0; i < periods; i++)
            analyse_all(p + i, c, at[i], own);
        Arena arena = {own, 0};
        Item item = take_item(p + periods - 1, c.block, &arena);
        if (p->pool != PIXEL || !p->track)
            item.choice = NULL;
#pragma omp for schedule(dynamic)
        for (size index = 0; index < c.output_blocks * c.sample_blocks; index++) {
            start_item(&item, c, index);
            start_maps(&item);
            for (size i = 0; i < periods; i++) {
                enter_period(&item, p + i, at[i].spectrum, c);
                run_period(&item);
            }
            finish_item(&item);
        }
    }
    return 0;
}

/* Add up the weight's gradient over the blocks of samples. */
static void write_weight_grad(const Pass *p, Cut c, const lanes *grads)
{
    const size functions = p->functions * p->functions, C = p->channels, O = p->outputs;
    const size blocks = ceiling(O, LANES), length = functions * C;
    for (size index = 0; index < c.output_blocks; index++)
        for (size f = 0; f < functions; f++)
            for (size ch = 0; ch < C; ch++) {
                const size group = index / blocks, output = index % blocks * LANES;
                const lanes *from = grads + index * c.sample_blocks * length + f * C + ch;
                lanes sum = from[0];
                for (size b = 1; b < c.sample_blocks; b++)
                    sum += from[b * length];
                memcpy(p->weight_grad + ((f * p->groups + group) * C + ch) * O + output, &sum,
                       least(LANES, O - output) * sizeof(real));
            }
}

EXPORTED int JOIN(NAME, _backward)(const Pass *p, size periods)
{
    Arena arena = {p->scratch, 0};
    Period at[periods];
    const Layout l = lay_out(p, periods, at, &arena);
    const Cut c = l.cut;
    if (arena.used > p->scratch_bytes)
        return 1;
    const size strips = p->groups * c.strips, per_group = c.output_blocks / p->groups;
    const size length = p->functions * p->functions * p->channels;
    const size vectors = channel_vectors(p), images = p->groups * p->samples * vectors;
    for (size i = 0; i < periods; i++) {
        pad_rows(p->width, 2 * p[i].column_frequencies, p[i].column_analysis, at[i].column_waves);
        if (p->x_grad)
            turn_waves(p + i, at[i].turned_waves);
    }
#pragma omp parallel num_threads((int)p->threads)
    {
        char *own = l.rest + THREAD * l.per_thread;
        for (size i = 0; i < periods; i++)
            analyse_all(p + i, c, at[i], own);
        Arena arena = {own, 0};
        Adjoint a = take_adjoint(p + periods - 1, c.block, &arena);
#pragma omp for schedule(dynamic)
        for (size item = 0; item < strips * c.sample_blocks; item++) {
            /* Threads at work at one time add to different strips: neighbouring lines of one would
               wander between their caches. */
            const size strip = item % strips, first = strip % c.strips * c.strip;
            for (size block = first; block < least(first + c.strip, per_group); block++) {
                const size output_block = strip / c.strips * per_group + block;
                const size index = output_block * c.sample_blocks + item / strips;
                start_item(&a.item, c, index);
                a.weight_grad = l.weight_grads + index * length;
                start_adjoint(&a);
                for (size i = 0; i < periods; i++) {
                    enter_period(&a.item, p + i, at[i].spectrum, c);
                    if (p->x_grad)
                        a.spectrum_grad = at[i].spectrum_grad + strip * spectrum_grad_size(p + i);
                    if (p->x_grad && block == first)
                        clear_spectrum_grad(&a);
                    run_adjoint_period(&a);
                }
            }
        }
        for (size i = 0; i < periods && p->x_grad; i++) {
            Arena arena = {own, 0};
            const Images to = take_images(p + i, &arena);
            memset(to.planes, 0, (char *)to.rows - (char *)to.planes);
#pragma omp for schedule(dynamic)
            for (size image = 0; image < images; image++)
                analyse_adjoint(p + i, at[i].turned_waves, to.planes, to.rows,
                                at[i].spectrum_grad, c.strips, image / vectors % p->groups,
                                image / vectors / p->groups, image % vectors);
        }
    }
    write_weight_grad(p, c, l.weight_grads);
    return 0;
}

/* ---- A backward pass with few gradients: every pixel that carries one is visited. ---- */

/* Vectors hold input channels. `Sparse` of native/__init__.py has the same fields. */
typedef struct {
    size samples, groups, vectors, outputs, height, width; /* vectors, outputs: of one group */
    size base, longest, places, threads;
    const size *row_starts, *column_starts;                /* [S] input pixel under output 0 */
    const size *kernel_sizes;                              /* [S] */
    const size *sample, *channel, *scale, *row, *column;   /* [places]; channel: of all groups */
    const real *grad;                                      /* [places] */
    const real *resampling;                                /* [S, k, longest] */
    const real *x;                                         /* [N, G, vectors, H, W, lanes] */
    const real *weight;                                    /* [G O, vectors, k, k, lanes] */
    real *weight_grad, *x_grad;                            /* the same, zeros; x_grad may be NULL */
    char *scratch;
    size scratch_bytes;
} Sparse;

/* The pixels under a kernel along one axis, and their weights [k, count]. */
typedef struct {
    size first, count;
    const real *weights;
} Window;

INLINE Window window(const Sparse *s, size scale, size start, size length)
{
    const size first = most(0, start), end = least(length, start + s->kernel_sizes[scale]);
    return (Window){first, most(0, end - first),
                    s->resampling + scale * s->base * s->longest + first - start};
}

/* The response is Σ w ⊙ (T_y x T_xᵀ). Add its gradient with respect to w for one place. */
static void add_to_weight(const Sparse *s, size place, Window rows, Window columns, lanes *scratch)
{
    const size k = s->base, W = s->width, plane = s->height * W, L = s->longest;
    const size group = s->channel[place] / s->outputs;
    const lanes *x = (const lanes *)s->x + (s->sample[place] * s->groups + group) * s->vectors * plane;
    lanes *to = (lanes *)s->weight_grad + s->channel[place] * s->vectors * k * k;
    lanes *partial = scratch + k * W; /* scratch: [k, columns] */
    for (size v = 0; v < s->vectors; v++, x += plane, to += k * k) {
        multiply(k, rows.count, columns.count, (Numbers){rows.weights, L, 1},
                 (Vectors){(lanes *)x + rows.first * W + columns.first, W, 1},
                 (Vectors){scratch, W, 1});
        multiply(k, columns.count, k, (Numbers){columns.weights, L, 1}, (Vectors){scratch, 1, W},
                 (Vectors){partial, 1, k});
        for (size i = 0; i < k * k; i++)
            to[i] += splat(s->grad[place]) * partial[i];
    }
}

static void add_to_input(const Sparse *s, size place, Window rows, Window columns, lanes *scratch)
{
    const size k = s->base, W = s->width, plane = s->height * W, L = s->longest;
    const size group = s->channel[place] / s->outputs;
    const lanes *weight = (const lanes *)s->weight + s->channel[place] * s->vectors * k * k;
    lanes *to = (lanes *)s->x_grad + (s->sample[place] * s->groups + group) * s->vectors * plane;
    lanes *patch = scratch + k * W; /* scratch: [k, columns] */
    for (size v = 0; v < s->vectors; v++, to += plane, weight += k * k) {
        multiply(columns.count, k, k, (Numbers){columns.weights, 1, L},
                 (Vectors){(lanes *)weight, 1, k}, (Vectors){scratch, 1, W});
        multiply(rows.count, k, columns.count, (Numbers){rows.weights, 1, L},
                 (Vectors){scratch, W, 1}, (Vectors){patch, W, 1});
        for (size y = 0; y < rows.count; y++)
            for (size x = 0; x < columns.count; x++)
                to[(rows.first + y) * W + columns.first + x] +=
                    splat(s->grad[place]) * patch[y * W + x];
    }
}

/* All places of one output channel, or of one sample: what they add to is disjoint. */
static void visit_places(const Sparse *s, const size *key, size value, lanes *scratch,
                         void (*add)(const Sparse *, size, Window, Window, lanes *))
{
    for (size i = 0; i < s->places; i++) {
        const size scale = s->scale[i];
        if (key[i] != value || s->grad[i] == 0)
            continue;
        const Window rows = window(s, scale, s->row_starts[scale] + s->row[i], s->height);
        const Window columns = window(s, scale, s->column_starts[scale] + s->column[i], s->width);
        if (rows.count && columns.count)
            add(s, i, rows, columns, scratch);
    }
}

EXPORTED size JOIN(NAME, _sparse_bytes)(void) { return sizeof(Sparse); }

/* Vectors of scratch memory of one thread: a product with one axis, and a result. */
INLINE size sparse_vectors(const Sparse *s)
{
    return s->base * s->width + most(s->base * s->base, s->height * s->width);
}

EXPORTED size JOIN(NAME, _sparse_scratch)(const Sparse *s)
{
    return s->threads * sparse_vectors(s) * (size)sizeof(lanes);
}

EXPORTED int JOIN(NAME, _sparse)(const Sparse *s)
{
    if (JOIN(NAME, _sparse_scratch)(s) > s->scratch_bytes)
        return 1;
#pragma omp parallel num_threads((int)s->threads)
    {
        lanes *own = (lanes *)s->scratch + THREAD * sparse_vectors(s);
#pragma omp for schedule(dynamic) nowait
        for (size o = 0; o < s->groups * s->outputs; o++)
            visit_places(s, s->channel, o, own, add_to_weight);
#pragma omp for schedule(dynamic)
        for (size n = 0; n < (s->x_grad ? s->samples : 0); n++)
            visit_places(s, s->sample, n, own, add_to_input);
    }
    return 0;
}
