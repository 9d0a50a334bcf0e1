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

typedef ptrdiff_t size;
typedef REAL real;
typedef real lanes __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
typedef WHOLE mask __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

enum { STACK, PIXEL, SLICE, GLOBAL, CHOSEN }; /* pooling; CHOSEN: the scale of each map is given */

/* One pass. `Pass` of native/__init__.py has the same fields in the same order. */
typedef struct {
    size samples, groups, channels, outputs; /* channels and outputs of one group */
    size height, width;                      /* of the input */
    size scales, functions, even;            /* functions: even ones first */
    size row_frequencies, column_frequencies;
    size pool, track, threads;
    const size *row_extents, *column_extents; /* [S] of the maps */
    const size *row_reach, *column_reach;     /* [H'], [W']: how many maps have this row or column */
    const real *row_analysis;                 /* [2U, H] */
    const real *column_analysis;              /* [W, 2V] */
    const real *row_waves, *column_waves;     /* [2, h, U], [2, w, V] */
    const real *row_kernels, *column_kernels; /* [S, U, r], [S, V, r] */
    const real *x;                            /* [N, G C, H, W] */
    const real *weight;                       /* [q, r, G, C, O] in the basis of functions */
    const real *bias;                         /* [G O] or NULL */
    real *values;                             /* [N, G O, (S,) H', W'] or [N, G O] */
    void *choice;                             /* int16 [N, G O, (H', W')]; int64 for GLOBAL */
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
} Cut;

#define CACHE (4 << 20) /* bytes */
#define BACKWARD 8      /* samples of an item at most, so that many threads have work */

/* As many samples as a cache holds, but enough of them to share the kernels' spectra. */
INLINE size samples_of_item(const Pass *p)
{
    const size h = half(p->row_extents[0]), w = half(p->column_extents[0]), C = p->channels;
    const size spectrum = 6 * p->row_frequencies * p->column_frequencies * C;
    const size rows = 4 * h * p->column_frequencies, pixels = p->pool == PIXEL ? 8 * h * w : 0;
    const size sample = spectrum * (size)sizeof(real) + (rows + pixels) * BYTES;
    return most(1, most(CACHE / sample, 32 * C * p->functions / (6 * C + 4 * h)));
}

/* Sums over samples must not depend on the number of threads, so neither does a backward pass. */
INLINE Cut cut(const Pass *p)
{
    const size output_blocks = p->groups * ceiling(p->outputs, LANES), fitting = samples_of_item(p);
    const size blocks = p->grad ? ceiling(p->samples, least(fitting, BACKWARD))
                                : least(p->samples, most(ceiling(p->samples, fitting),
                                                         ceiling(p->threads, output_blocks)));
    const size block = ceiling(p->samples, blocks);
    return (Cut){output_blocks, ceiling(p->samples, block), block};
}

/* ---- Step 1: the input's spectrum. ---- */

INLINE size pitch_of(const Pass *p) { return ceiling(2 * p->column_frequencies, LANES); }

/* A complex product takes three real ones, for which there are three numbers on either side:
   (a + ib) (k - il) = (m - bd) + i (m - as), with m = (a + b) k, s = k + l, d = k - l.

   Numbers of the spectrum of a group and a block of samples: [V, U, ±, C, n, (a, b, a + b)]. */
INLINE size spectrum_size(const Pass *p, size block)
{
    return p->column_frequencies * p->row_frequencies * 6 * p->channels * block;
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

INLINE void write_number(real *to, real a, real b)
{
    to[0] = a;
    to[1] = b;
    to[2] = a + b;
}

/* One channel of a block of samples. */
static void analyse(const Pass *p, lanes *column_waves, Analysis a, Cut cut, size channel, size index,
                    real *spectrum)
{
    const size H = p->height, W = p->width, U = p->row_frequencies, V = p->column_frequencies;
    const size C = p->channels, pitch = pitch_of(p), plane = 2 * U * pitch * LANES;
    const size first = index * cut.block, count = least(cut.block, p->samples - first);
    const size other = 3 * C * cut.block;
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
            real *to = spectrum + (v * U + u) * 2 * other + channel % C * cut.block * 3;
            for (size n = 0; n < count; n++, even += plane, odd += plane, to += 3) {
                const real cc = even[0], cs = even[V], sc = odd[0], ss = odd[V];
                write_number(to, cc - ss, -(sc + cs));
                write_number(to + other, cc + ss, sc - cs);
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
    lanes *columns;         /* [r, R, C] */
    lanes *kernels;         /* [±, C, (k, k + l, k - l)] */
    lanes *products;        /* [sum or difference of -u and u, U, v or V-1-v, R, n] */
    lanes *rows;            /* [h, v, even or odd in y, sum or difference of v and V-1-v, R, n] */
    lanes *best;            /* [h, n, w, 4] */
    mask *choice;
    lanes *record;          /* [n] */
    mask *winner, *place;
    lanes shift;            /* the bias */
} Item;

/* Vectors of one column frequency of a row of maps; odd, to spread over the sets of the cache. */
INLINE size panel_size(size samples) { return 8 * samples + 1; }

INLINE size row_size(const Pass *p, size samples)
{
    return ceiling(p->column_frequencies, 2) * panel_size(samples);
}

static Item take_item(const Pass *p, size block, Arena *arena)
{
    const size r = p->functions, C = p->channels, U = p->row_frequencies;
    const size h = half(p->row_extents[0]), w = half(p->column_extents[0]);
    const int keeps = p->pool == PIXEL || p->pool == SLICE || p->pool == CHOSEN;
    Item item = {.p = p};
    item.weight = TAKE(arena, lanes, r * r * C);
    item.columns = TAKE(arena, lanes, r * 2 * C);
    item.kernels = TAKE(arena, lanes, 6 * C);
    item.products = TAKE(arena, lanes, 8 * U * block);
    item.rows = TAKE(arena, lanes, h * row_size(p, block));
    item.best = TAKE(arena, lanes, keeps ? h * block * w * 4 : 0);
    item.choice = TAKE(arena, mask, p->pool == PIXEL && p->track ? h * block * w * 4 : 0);
    item.record = TAKE(arena, lanes, block);
    item.winner = TAKE(arena, mask, block);
    item.place = TAKE(arena, mask, block);
    return item;
}

static void start_item(Item *item, const real *spectrum, Cut c, size index)
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
    item->spectrum = spectrum + (item->group * c.sample_blocks + index % c.sample_blocks) *
                                    spectrum_size(p, c.block);
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

/* Along the columns, at one frequency: weight [q, r, length] -> columns [r, R, length]. */
INLINE void columns_of(size r, size E, const real *waves, const lanes *weight, size length,
                       lanes *columns)
{
    for (size row = 0; row < r; row++)
        for (size i = 0; i < length; i++) {
            lanes even, odd, *to = columns + row * 2 * length + i;
            sum_functions(r, E, waves, weight + row * length + i, r * length, &even, &odd);
            to[0] = row < E ? even : odd;
            to[length] = row < E ? odd : even;
        }
}

static void make_columns(const Pass *p, size scale, size v, const lanes *weight, size length,
                         lanes *columns)
{
    const real *waves = p->column_kernels + (scale * p->column_frequencies + v) * p->functions;
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
    const real *waves = p->row_kernels + (scale * p->row_frequencies + u) * p->functions;
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
            const real *at = x + (sign * C + c) * N * 3;
            for (int n = 0; n < count; n++) {
                as[sign][n] += splat(at[3 * n]) * kernel[1];
                bd[sign][n] += splat(at[3 * n + 1]) * kernel[2];
                m[sign][n] += splat(at[3 * n + 2]) * kernel[0];
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
        accumulate(1, count, C, N, x + C * N * 3, kernels + C * 3, real_ + 1, imag + 1);
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
    return item->spectrum + (v * p->row_frequencies + u) * 6 * p->channels * item->block;
}

static void mix(Item *item, size v, size u, lanes *to)
{
    const Pass *p = item->p;
    const size C = p->channels, N = item->block, count = item->count;
    const size kind = p->row_frequencies * 4 * count;
    const real *x = spectrum_at(item, v, u);
    size n = 0;
    for (; n + TILE <= count; n += TILE)
        mix_tile(TILE, C, N, x + 3 * n, item->kernels, to + n, kind, count);
    for (; n + TILE / 2 <= count; n += TILE / 2)
        mix_tile(TILE / 2, C, N, x + 3 * n, item->kernels, to + n, kind, count);
    for (; n < count; n++)
        mix_tile(1, C, N, x + 3 * n, item->kernels, to + n, kind, count);
}

INLINE void butterfly(lanes *a, lanes *b, size count)
{
    for (size i = 0; i < count; i++) {
        const lanes sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum;
        b[i] = difference;
    }
}

/* Sums and differences of u and U-1-u and of v and V-1-v, in place. The frequencies ω and π - ω
   have the same cosines and opposite sines at even pixels, and the reverse at odd pixels. So the
   cosine series at even pixels takes the sums, at odd pixels the differences, and the sine series
   the others: each takes half of the frequencies. `single`: v has no partner. */
static void fold(lanes *products, size U, size n, int single)
{
    for (size kind = 0; kind < 2; kind++) {
        lanes *at = products + kind * U * 4 * n;
        for (size u = 0; u < U; u++)
            if (single)
                memset(at + (u * 4 + 2) * n, 0, 2 * n * sizeof(lanes));
            else
                butterfly(at + u * 4 * n, at + (u * 4 + 2) * n, 2 * n);
        for (size u = 0; u < U / 2; u++)
            butterfly(at + u * 4 * n, at + (U - 1 - u) * 4 * n, 4 * n);
    }
}

/* Everything that a product of waves along the rows needs. */
typedef struct {
    size height, depth;
    Numbers waves;
    Vectors folded, rows;
} Series;

/* The series of cosines (kind 0) or sines (1) at even (y 0) or odd pixels (1). */
INLINE Series series(const Item *item, size scale, size v, size n, lanes *products, size kind, size y)
{
    const Pass *p = item->p;
    const size U = p->row_frequencies, h = half(p->row_extents[scale]);
    const size line = row_size(p, item->count);
    lanes *from = products + kind * U * 4 * n;
    lanes *rows = item->rows + y * line + v * panel_size(item->count) + kind * 4 * n;
    return (Series){
        (h - y + 1) / 2,
        kind == y ? ceiling(U, 2) : U / 2,
        {p->row_waves + (kind * half(p->row_extents[0]) + y) * U, 2 * U, 1},
        kind == y ? (Vectors){from, 4 * n, 1} : (Vectors){from + (U - 1) * 4 * n, -4 * n, 1},
        {rows, 2 * line, 1},
    };
}

/* Steps 2 to 4 for all maps of a kernel size: rows δy ≥ 0, still transformed along the columns. */
static void make_rows(Item *item, size scale)
{
    const Pass *p = item->p;
    const size U = p->row_frequencies, V = p->column_frequencies, n = item->count;
    for (size v = 0; v < ceiling(V, 2); v++) {
        const int single = v == V - 1 - v;
        for (size partner = 0; partner < 2 - single; partner++) {
            const size frequency = partner ? V - 1 - v : v;
            make_columns(p, scale, frequency, item->weight, p->channels, item->columns);
            for (size u = 0; u < U; u++) {
                make_kernels(p, scale, u, item->columns, p->channels, 1, item->kernels);
                mix(item, frequency, u, item->products + (u * 4 + partner * 2) * n);
            }
        }
        fold(item->products, U, n, single);
        for (size kind = 0; kind < 2; kind++)
            for (size y = 0; y < 2; y++) {
                const Series s = series(item, scale, v, n, item->products, kind, y);
                multiply(s.height, s.depth, 4 * n, s.waves, s.folded, s.rows);
            }
    }
}

/* Waves along the columns, at pixels of one parity and half of the frequencies. */
typedef struct {
    size V, width, step; /* step: between pixels */
    const real *cosine, *sine;
} Wave;

INLINE Wave column_wave(const Pass *p, size scale, size parity)
{
    const size V = p->column_frequencies;
    const real *cosine = p->column_waves + parity * V;
    return (Wave){ceiling(V, 2), (half(p->column_extents[scale]) - parity + 1) / 2, 2 * V, cosine,
                  cosine + half(p->column_extents[0]) * V};
}

/* Where the four parts of a row that make up its pixels of one parity lie in a panel. */
INLINE size part_of(size part, size parity)
{
    static const size first[4] = {0, 3, 5, 6};
    return first[part] ^ (2 * parity);
}

/* Step 5: a few pixels δx ≥ 0 of one row: at (+, +), (+, -), (-, +), (-, -) of (δy, δx). */
INLINE void synthesise(int across, Wave w, size x, size parity, size samples, const lanes *panel,
                       lanes pixels[ACROSS][4])
{
    lanes sum[ACROSS][4];
    for (int i = 0; i < across; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = splat(0);
    const lanes *first = panel + part_of(0, parity) * samples;
    const lanes *second = panel + part_of(1, parity) * samples;
    const lanes *third = panel + part_of(2, parity) * samples;
    const lanes *fourth = panel + part_of(3, parity) * samples;
    for (size v = 0, at = 0; v < w.V; v++, at += panel_size(samples))
        for (int i = 0; i < across; i++) {
            const lanes c = splat(w.cosine[(x + i) * w.step + v]);
            const lanes s = splat(w.sine[(x + i) * w.step + v]);
            sum[i][0] += c * first[at];
            sum[i][1] += s * second[at];
            sum[i][2] += c * third[at];
            sum[i][3] += s * fourth[at];
        }
    for (int i = 0; i < across; i++) {
        const lanes right = sum[i][0] - sum[i][1], left = sum[i][0] + sum[i][1];
        const lanes odd_right = sum[i][2] + sum[i][3], odd_left = sum[i][2] - sum[i][3];
        pixels[i][0] = right - odd_right;
        pixels[i][1] = left - odd_left;
        pixels[i][2] = right + odd_right;
        pixels[i][3] = left + odd_left;
    }
}

/* Apart from `visit_row`, which is compiled once per visitor. */
static __attribute__((noinline)) void synthesise_some(int across, Wave w, size x, size parity,
                                                      size samples, const lanes *panel,
                                                      lanes pixels[ACROSS][4])
{
    switch (across) {
    case 1: synthesise(1, w, x, parity, samples, panel, pixels); break;
    case 2: synthesise(2, w, x, parity, samples, panel, pixels); break;
    case 3: synthesise(3, w, x, parity, samples, panel, pixels); break;
#if ACROSS > 3
    case 4: synthesise(4, w, x, parity, samples, panel, pixels); break;
    case 5: synthesise(5, w, x, parity, samples, panel, pixels); break;
    case 6: synthesise(6, w, x, parity, samples, panel, pixels); break;
#endif
    }
}

INLINE size place_of(const Item *item, size y, size n)
{
    return (y * item->count + n) * half(item->p->column_extents[0]) * 4;
}

/* Called with each pixel of a row δy ≥ 0: its index and its four values. */
typedef void Visitor(void *context, size x, const lanes pixels[4]);

INLINE void visit_row(const Item *item, size scale, size y, size n, Visitor *visit, void *context)
{
    const size height = item->p->row_extents[scale], width = item->p->column_extents[scale];
    const lanes *panel = item->rows + y * row_size(item->p, item->count) + n;
    const lanes none = splat(-__builtin_inf());
    const int last_row = 2 * y == height; /* of an even extent, on the side δ < 0 only */
    for (size parity = 0; parity < 2; parity++) {
        const Wave w = column_wave(item->p, scale, parity);
        for (size x = 0; x < w.width; x += ACROSS) {
            lanes pixels[ACROSS][4];
            const int count = (int)least(ACROSS, w.width - x);
            synthesise_some(count, w, x, parity, item->count, panel, pixels);
            for (int i = 0; i < count; i++) {
                const size column = 2 * (x + i) + parity;
                if (last_row)
                    pixels[i][0] = pixels[i][1] = none;
                if (2 * column == width)
                    pixels[i][0] = pixels[i][2] = none;
                visit(context, column, pixels[i]);
            }
        }
    }
}

/* ---- Step 6: pooling. ---- */

typedef struct {
    lanes *best;
    mask *choice, which; /* which: of `keep` */
    size scale;
} Row;

INLINE void challenge_pixel(void *context, size x, const lanes pixels[4])
{
    const Row *row = context;
    for (int q = 0; q < 4; q++) {
        const size at = x * 4 + q;
        const mask won = wins(pixels[q], row->best[at]);
        row->best[at] = choose(won, pixels[q], row->best[at]);
        if (row->choice)
            row->choice[at] = pick(won, fill(row->scale), row->choice[at]);
    }
}

/* Let the pixels of a kernel size replace what they exceed. */
static void challenge(Item *item, size scale)
{
    for (size y = 0; y < half(item->p->row_extents[scale]); y++)
        for (size n = 0; n < item->count; n++) {
            const size at = place_of(item, y, n);
            Row row = {item->best + at, item->choice ? item->choice + at : NULL, {0}, scale};
            if (row.choice)
                visit_row(item, scale, y, n, challenge_pixel, &row);
            else
                visit_row(item, scale, y, n, challenge_pixel, &(Row){row.best, NULL, {0}, scale});
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
        Row row = {item->best + place_of(item, y, n), NULL, which, scale};
        visit_row(item, scale, y, n, keep_pixel, &row);
    }
}

typedef struct {
    lanes peak;
    mask place;
    size first; /* number of the row's first pixel */
} Peak;

INLINE void peak_pixel(void *context, size x, const lanes pixels[4])
{
    Peak *at = context;
    (void)x;
    for (int q = 0; q < 4; q++)
        at->peak = choose(wins(pixels[q], at->peak), pixels[q], at->peak);
}

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
    Peak at = {splat(-__builtin_inf()), {0}, 0};
    for (size y = 0; y < half(item->p->row_extents[scale]); y++)
        visit_row(item, scale, y, n, peak_pixel, &at);
    return at.peak;
}

/* The first pixel that holds the maximum, as a number made of y, x and quadrant. */
static mask find_place(const Item *item, size scale, size n)
{
    const size width = half(item->p->column_extents[scale]);
    Peak at = {splat(-__builtin_inf()), {0}, 0};
    for (size y = 0; y < half(item->p->row_extents[scale]); y++, at.first += width)
        visit_row(item, scale, y, n, place_pixel, &at);
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

/* Pixel of a map of this extent at distance y on the side δ ≥ 0 or δ < 0; -1: none. */
INLINE size pixel_of(size extent, size y, int negative)
{
    if (negative)
        return y == 0 ? -1 : extent / 2 - y;
    return 2 * y == extent ? -1 : extent / 2 + y;
}

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
    const size H = p->row_extents[0], W = p->column_extents[0], h = half(H), w = half(W);
    const int keeps = p->pool != PIXEL;
    for (size y = 0; y < h; y++)
        for (size n = 0; n < item->count; n++)
            for (size x = 0; x < w; x++) {
                for (int q = 0; q < 4; q++) {
                    const size row = pixel_of(H, y, q / 2), column = pixel_of(W, x, q % 2);
                    if (row < 0 || column < 0)
                        continue;
                    const size reached = least(p->row_reach[row], p->column_reach[column]);
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
    const size H = p->row_extents[0], W = p->column_extents[0];
    const size height = p->row_extents[at->scale], width = p->column_extents[at->scale];
    const size start = at->scale * H * W + (H - height) / 2 * W + (W - width) / 2;
    for (int q = 0; q < 4; q++) {
        const size row = pixel_of(height, at->y, q / 2), column = pixel_of(width, x, q % 2);
        if (row >= 0 && column >= 0)
            scatter(at->item, at->n, start + row * W + column, p->scales * H * W,
                    pixels[q] + at->item->shift, NULL);
    }
}

static void write_stack(const Item *item, size scale)
{
    for (size y = 0; y < half(item->p->row_extents[scale]); y++)
        for (size n = 0; n < item->count; n++) {
            Writing at = {item, scale, y, n};
            visit_row(item, scale, y, n, write_pixel, &at);
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
                const size height = p->row_extents[scale], width = p->column_extents[scale];
                const size y = place / 4 / half(width), x = place / 4 % half(width);
                const size row = pixel_of(height, y, q / 2) + (H - height) / 2;
                flat = row * W + pixel_of(width, x, q % 2) + (W - width) / 2;
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

static void run_item(Item *item)
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
    for (size scale = 0; scale < p->scales; scale++) {
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
    lanes *products;      /* [±, U, v or V-1-v, R, n] gradient of the products */
    lanes *sums;          /* [±, n] of real and imaginary parts */
    lanes *kernel_grad;   /* [even or odd, U, R, C] */
    lanes *column_grad;   /* [r, R, C] */
    lanes *weight_grad;   /* [q, r, C] */
    lanes *turned_weight; /* [q, r, O, C] with vectors of input channels */
    lanes *turned_columns, *turned_kernels; /* [r, R, O, C], [±, O, 3, C] */
    real *spectrum_grad;  /* of its block of outputs: [V, U, ±, N, R, C] */
} Adjoint;

INLINE size channel_vectors(const Pass *p) { return ceiling(p->channels, LANES); }

/* Reals of the spectrum's gradient that belong to one block of outputs. */
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
    a.item.rows = TAKE(arena, lanes, h * row_size(p, block));
    a.item.winner = TAKE(arena, mask, block);
    a.pixels = TAKE(arena, lanes, h * block * w * 4);
    a.scales = TAKE(arena, mask, p->pool == PIXEL ? h * block * w * 4 : 0);
    a.all_rows = TAKE(arena, lanes, p->pool == CHOSEN ? h * row_size(p, block) : 0);
    a.active = TAKE(arena, size, block);
    a.line = TAKE(arena, lanes, w * 4);
    a.products = TAKE(arena, lanes, 8 * U * block);
    a.sums = TAKE(arena, lanes, 2 * block);
    a.kernel_grad = TAKE(arena, lanes, 4 * U * C);
    a.column_grad = TAKE(arena, lanes, r * 2 * C);
    a.weight_grad = TAKE(arena, lanes, r * r * C);
    a.turned_weight = TAKE(arena, lanes, r * r * LANES * Cv);
    a.turned_columns = TAKE(arena, lanes, r * 2 * LANES * Cv);
    a.turned_kernels = TAKE(arena, lanes, 6 * LANES * Cv);
    return a;
}

/* Read gradients, and the scales they belong to, of the maps of this item as quadrants. */
static void gather(Adjoint *a, const real *grad, size map, size start, size extent_y, size extent_x)
{
    const Item *item = &a->item;
    const size W = item->p->column_extents[0];
    const int16_t *choice = item->p->choice;
    for (size y = 0; y < half(extent_y); y++)
        for (size n = 0; n < item->count; n++)
            for (size x = 0; x < half(extent_x); x++)
                for (int q = 0; q < 4; q++) {
                    const size row = pixel_of(extent_y, y, q / 2);
                    const size column = pixel_of(extent_x, x, q % 2);
                    const size to = place_of(item, y, n) + x * 4 + q;
                    lanes value = splat(0);
                    mask scale = {0};
                    if (row >= 0 && column >= 0)
                        for (size lane = 0; lane < item->width; lane++) {
                            const size at = map_of(item, n, lane) * map + start + row * W + column;
                            value[lane] = grad[at];
                            if (item->p->pool == PIXEL)
                                scale[lane] = choice[at];
                        }
                    a->pixels[to] = value;
                    if (item->p->pool == PIXEL)
                        a->scales[to] = scale;
                }
}

/* Transpose of `synthesise`, for a few column frequencies: line [w, 4] -> panel. */
INLINE void synthesise_adjoint(int count, Wave w, size v, size parity, size samples, const lanes *line,
                               lanes *panel)
{
    lanes sum[ACROSS][4];
    for (int i = 0; i < count; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = splat(0);
    for (size x = 0; x < w.width; x++, line += 8)
        for (int i = 0; i < count; i++) {
            const lanes c = splat(w.cosine[x * w.step + v + i]), s = splat(w.sine[x * w.step + v + i]);
            sum[i][0] += c * line[0];
            sum[i][1] += s * line[1];
            sum[i][2] += c * line[2];
            sum[i][3] += s * line[3];
        }
    for (int i = 0; i < count; i++)
        for (int part = 0; part < 4; part++)
            panel[(v + i) * panel_size(samples) + part_of(part, parity) * samples] = sum[i][part];
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
        for (size n = 0; n < samples; n++) {
            lanes *to = rows + y * line + n;
            const int any_here = prepare_line(a, scale, y, n, half(p->column_extents[scale]));
            some |= any_here;
            for (size parity = 0; parity < 2; parity++) {
                const Wave w = column_wave(p, scale, parity);
                size v = 0;
                if (!any_here)
                    for (; v < w.V; v++)
                        for (size part = 0; part < 4; part++)
                            to[v * panel + part_of(part, parity) * samples] = splat(0);
                for (; v + ACROSS <= w.V; v += ACROSS)
                    synthesise_adjoint(ACROSS, w, v, parity, samples, a->line + parity * 4, to);
                for (; v + 3 <= w.V; v += 3)
                    synthesise_adjoint(3, w, v, parity, samples, a->line + parity * 4, to);
                for (; v < w.V; v++)
                    synthesise_adjoint(1, w, v, parity, samples, a->line + parity * 4, to);
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
        for (size part = 0; part < 8; part++)
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
    const size U = p->row_frequencies, kind = U * 4 * count;
    if (p->row_extents[scale] == 1) /* there are no odd rows */
        memset(a->products, 0, 2 * kind * sizeof(lanes));
    for (size k = 0; k < 2; k++)
        for (size y = 0; y < 2; y++) {
            const Series s = series(&a->item, scale, v, count, a->products, k, y);
            const Numbers waves = {s.waves.at, 1, s.waves.row};
            if (s.height)
                multiply(s.depth, s.height, 4 * count, waves, s.rows, s.folded);
        }
    fold(a->products, U, count, v == p->column_frequencies - 1 - v);
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
            const real *at = x + (c * N + active[i]) * 3;
            as[c] += splat(at[0]) * sum;
            bd[c] += splat(at[1]) * difference;
            m[c] += splat(at[2]) * g;
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
    const real *x = spectrum_at(item, v, u) + c * N * 3;
    lanes real_[2][TILE], imag[2][TILE];
    for (size sign = 0; sign < 2; sign++)
        mix_kernels(count, samples, a->active, N, x + sign * C * N * 3,
                    products + sign * U * 4 * samples, real_[sign], imag[sign]);
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
    const real *rows = p->row_kernels + scale * U * r;
    const real *waves = p->column_kernels + (scale * p->column_frequencies + v) * r;
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
        mix_input(count, samples, item->width, Cv, (const real *)(products + i),
                  (const real *)(a->sums + i), a->turned_kernels + sign * 3 * LANES * Cv + c, to);
    }
}

static void add_input(Adjoint *a, const lanes *products, size v, size u, size samples)
{
    for (size sign = 0; sign < 2; sign++, products += a->item.p->row_frequencies * 4 * samples) {
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
static void add_frequency(Adjoint *a, const lanes *products, size scale, size v, size samples)
{
    const Pass *p = a->item.p;
    const size U = p->row_frequencies, C = p->channels, vectors = channel_vectors(p);
    for (size u = 0; u < U; u++) {
        size c = 0;
        for (; c + TILE <= C; c += TILE)
            add_kernels(a, products + u * 4 * samples, TILE, c, v, u, samples);
        for (; c < C; c++)
            add_kernels(a, products + u * 4 * samples, 1, c, v, u, samples);
    }
    add_weight(a, scale, v);
    if (!p->x_grad)
        return;
    make_columns(p, scale, v, a->turned_weight, LANES * vectors, a->turned_columns);
    for (size u = 0; u < U; u++) {
        make_kernels(p, scale, u, a->turned_columns, LANES * vectors, vectors, a->turned_kernels);
        add_input(a, products + u * 4 * samples, v, u, samples);
    }
}

static void add_scale(Adjoint *a, size scale, size samples)
{
    const size V = a->item.p->column_frequencies;
    for (size v = 0; v < ceiling(V, 2); v++) {
        make_products(a, scale, v, samples);
        add_frequency(a, a->products, scale, v, samples);
        if (v != V - 1 - v)
            add_frequency(a, a->products + 2 * samples, scale, V - 1 - v, samples);
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

static void run_adjoint(Adjoint *a)
{
    Item *item = &a->item;
    const Pass *p = item->p;
    const size H = p->row_extents[0], W = p->column_extents[0];
    memset(a->weight_grad, 0, p->functions * p->functions * p->channels * sizeof(lanes));
    for (size n = 0; n < item->count; n++)
        a->active[n] = n;
    if (p->x_grad)
        turn_weight(a);
    if (p->pool != STACK)
        gather(a, p->grad, H * W, 0, H, W);
    if (p->pool == CHOSEN) {
        read_winners(item);
        make_rows_adjoint(a, 0, a->all_rows);
    }
    for (size scale = 0; scale < p->scales; scale++) {
        const size height = p->row_extents[scale], width = p->column_extents[scale];
        size samples = item->count;
        if (p->pool == STACK)
            gather(a, p->grad, p->scales * H * W,
                   scale * H * W + (H - height) / 2 * W + (W - width) / 2, height, width);
        if (p->pool == CHOSEN)
            samples = select_rows(a, scale);
        else if (!make_rows_adjoint(a, scale, item->rows))
            continue;
        if (samples)
            add_scale(a, scale, samples);
    }
}

/* Step 1 transposed: the input's gradient for one sample and one vector of channels. */
static void analyse_adjoint(const Pass *p, lanes *column_waves, lanes *planes, lanes *rows,
                            const real *spectrum_grad, size group, size n, size c)
{
    const size H = p->height, W = p->width, U = p->row_frequencies, V = p->column_frequencies;
    const size C = p->channels, Cv = channel_vectors(p), pitch = pitch_of(p), Wv = ceiling(W, LANES);
    const size blocks = ceiling(p->outputs, LANES), block = spectrum_grad_size(p) / LANES;
    const size width = least(LANES, C - c * LANES), sign = p->samples * 2 * Cv;
    const lanes *from = (const lanes *)spectrum_grad + group * blocks * block;
    for (size u = 0; u < U; u++)
        for (size v = 0; v < V; v++) {
            const lanes *at = from + (v * U + u) * 2 * sign + n * 2 * Cv + c;
            lanes minus = at[0], minus_imag = at[Cv], plus = at[sign], plus_imag = at[sign + Cv];
            for (size b = 1; b < blocks; b++) {
                minus += at[b * block];
                minus_imag += at[b * block + Cv];
                plus += at[b * block + sign];
                plus_imag += at[b * block + sign + Cv];
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
            memcpy(to + y * W, image + y * Wv, W * sizeof(real));
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
    lanes *weight_grads; /* [samples, outputs, q, r, C] by blocks */
    char *rest;
    size per_thread;
} Layout;

static Layout lay_out(const Pass *p, Arena *arena)
{
    const Cut c = cut(p);
    const size turned = p->grad && p->x_grad;
    Arena analysis = {0}, item = {0}, input = {0};
    Layout l = {0};
    l.column_waves = TAKE(arena, lanes, p->width * pitch_of(p));
    l.spectrum = TAKE(arena, real, p->groups * c.sample_blocks * spectrum_size(p, c.block));
    take_analysis(p, c.block, &analysis);
    if (p->grad) {
        l.weight_grads = TAKE(arena, lanes, c.output_blocks * c.sample_blocks * p->functions *
                                                p->functions * p->channels);
        take_adjoint(p, c.block, &item);
    } else
        take_item(p, c.block, &item);
    if (turned) {
        const size Wv = ceiling(p->width, LANES);
        l.turned_waves = TAKE(arena, lanes, 2 * p->column_frequencies * Wv);
        l.spectrum_grad = TAKE(arena, real, c.output_blocks * spectrum_grad_size(p));
        TAKE(&input, lanes, LANES * 2 * p->row_frequencies * pitch_of(p));
        TAKE(&input, lanes, p->height * (pitch_of(p) + Wv));
    }
    l.per_thread = most(most(analysis.used, item.used), input.used);
    l.rest = take(arena, p->threads, l.per_thread);
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
static void analyse_all(const Pass *p, Cut c, Layout l, char *own)
{
    Arena arena = {own, 0};
    const Analysis a = take_analysis(p, c.block, &arena);
    const size channels = p->groups * p->channels;
#pragma omp for schedule(dynamic)
    for (size i = 0; i < channels * c.sample_blocks; i++)
        analyse(p, l.column_waves, a, c, i / c.sample_blocks, i % c.sample_blocks, l.spectrum);
}

/* What the caller checks and counts with: bytes of a `Pass`, numbers in a vector. */
EXPORTED size JOIN(NAME, _pass_bytes)(void) { return sizeof(Pass); }
EXPORTED size JOIN(NAME, _lanes)(void) { return LANES; }

/* Bytes of scratch memory that a pass needs; it must be aligned to 64 bytes. */
EXPORTED size JOIN(NAME, _scratch)(const Pass *p)
{
    Arena arena = {0};
    lay_out(p, &arena);
    return arena.used;
}

/* Both return 0, or 1 if the scratch memory is too small. */
EXPORTED int JOIN(NAME, _forward)(const Pass *p)
{
    Arena arena = {p->scratch, 0};
    const Layout l = lay_out(p, &arena);
    if (arena.used > p->scratch_bytes)
        return 1;
    const Cut c = cut(p);
    pad_rows(p->width, 2 * p->column_frequencies, p->column_analysis, l.column_waves);
#pragma omp parallel num_threads((int)p->threads)
    {
        char *own = l.rest + THREAD * l.per_thread;
        analyse_all(p, c, l, own);
        Arena arena = {own, 0};
        Item item = take_item(p, c.block, &arena);
        if (p->pool != PIXEL || !p->track)
            item.choice = NULL;
#pragma omp for schedule(dynamic)
        for (size i = 0; i < c.output_blocks * c.sample_blocks; i++) {
            start_item(&item, l.spectrum, c, i);
            run_item(&item);
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

EXPORTED int JOIN(NAME, _backward)(const Pass *p)
{
    Arena arena = {p->scratch, 0};
    const Layout l = lay_out(p, &arena);
    if (arena.used > p->scratch_bytes)
        return 1;
    const Cut c = cut(p);
    const size items = c.output_blocks * c.sample_blocks;
    const size length = p->functions * p->functions * p->channels;
    const size vectors = channel_vectors(p), images = p->groups * p->samples * vectors;
    pad_rows(p->width, 2 * p->column_frequencies, p->column_analysis, l.column_waves);
#pragma omp parallel num_threads((int)p->threads)
    {
        char *own = l.rest + THREAD * l.per_thread;
        analyse_all(p, c, l, own);
        Arena arena = {own, 0}, input = {own, 0};
        Adjoint a = take_adjoint(p, c.block, &arena);
#pragma omp for schedule(dynamic)
        for (size i = 0; i < items; i++) {
            start_item(&a.item, l.spectrum, c, i);
            a.weight_grad = l.weight_grads + i * length;
            if (p->x_grad) {
                a.spectrum_grad = l.spectrum_grad + i / c.sample_blocks * spectrum_grad_size(p);
                clear_spectrum_grad(&a);
            }
            run_adjoint(&a);
        }
        if (p->x_grad) {
            lanes *planes = TAKE(&input, lanes, LANES * 2 * p->row_frequencies * pitch_of(p));
            lanes *rows = TAKE(&input, lanes, p->height * (pitch_of(p) + ceiling(p->width, LANES)));
            memset(planes, 0, (char *)rows - (char *)planes);
#pragma omp single
            turn_waves(p, l.turned_waves);
#pragma omp for schedule(dynamic)
            for (size i = 0; i < images; i++)
                analyse_adjoint(p, l.turned_waves, planes, rows, l.spectrum_grad,
                                i / vectors % p->groups, i / vectors / p->groups, i % vectors);
        }
    }
    write_weight_grad(p, c, l.weight_grads);
    return 0;
}
