/* From the spectra of the kernels' columns (step 2) to pooled maps (step 6), on the CPU.

   The same sums, for one kernel size, as in mixing.py, synthesis.py and pooling.py, in an order
   that keeps what is computed in the processor's caches: kernels and products of one frequency,
   and the parts of a map of a few pixels, are never written to memory. native.py says what the
   arguments are; it has this file compiled for each type of numbers. */

#include <stddef.h>
#include <string.h>

#ifndef REAL
#define REAL float
#endif

#define BYTES 32 /* of a vector */
#define LANES ((size)(BYTES / sizeof(REAL)))
#define WIDTH (2 * LANES) /* columns of a tile */
#define ROWS 6 /* rows of a tile: 6 × 2 sums fit into 16 registers */
#define ACROSS 3 /* pixels at a time, of 4 sums each */
#define EXPORTED __attribute__((visibility("default"))) void
#define INLINE static inline __attribute__((always_inline))

typedef ptrdiff_t size;
typedef REAL real;
typedef real lanes __attribute__((vector_size(BYTES), aligned(sizeof(real))));
typedef __typeof__((lanes){0} < (lanes){0}) mask;

INLINE lanes splat(real x)
{
    return x - (lanes){0};
}

INLINE lanes load(const real *from, size count)
{
    lanes value = splat(0);
    if (count >= LANES)
        return *(const lanes *)from;
    memcpy(&value, from, count * sizeof(real));
    return value;
}

INLINE void store(real *to, lanes value, size count)
{
    if (count >= LANES)
        *(lanes *)to = value;
    else
        memcpy(to, &value, count * sizeof(real));
}

INLINE lanes choose(mask which, lanes yes, lanes no)
{
    return (lanes)(((mask)yes & which) | ((mask)no & ~which));
}

INLINE lanes absolute(lanes x)
{
    return choose(x < 0, -x, x);
}

/* Where a candidate replaces the best so far: not where they are equal, and NaN stays. */
INLINE mask wins(lanes candidate, lanes best)
{
    return ~(candidate <= best) & (best == best);
}

/* out = a b, for a few rows of a and WIDTH columns of b, of which `width` are written. */
INLINE void multiply_tile(int rows, size depth, const real *a, size a_row, const real *b,
                          size b_row, real *out, size out_row, size width)
{
    lanes sum[ROWS][2];
    for (int i = 0; i < rows; i++)
        sum[i][0] = sum[i][1] = splat(0);
    for (size p = 0; p < depth; p++) {
        const lanes left = *(const lanes *)(b + p * b_row);
        const lanes right = *(const lanes *)(b + p * b_row + LANES);
        for (int i = 0; i < rows; i++) {
            const lanes factor = splat(a[i * a_row + p]);
            sum[i][0] += factor * left;
            sum[i][1] += factor * right;
        }
    }
    for (int i = 0; i < rows; i++) {
        store(out + i * out_row, sum[i][0], width);
        if (width > LANES)
            store(out + i * out_row + LANES, sum[i][1], width - LANES);
    }
}

/* [height, depth] [depth, length] -> [height, length]; rows of b are WIDTH longer than used. */
static void multiply(size height, size depth, size length, const real *a, size a_row,
                     const real *b, size b_row, real *out, size out_row)
{
    for (size j = 0; j < length; j += WIDTH) {
        const size width = length - j < WIDTH ? length - j : WIDTH;
        const real *rest = a;
        real *to = out + j;
        size left = height;
#define TILE(n) multiply_tile(n, depth, rest, a_row, b + j, b_row, to, out_row, width)
        for (; left >= ROWS; left -= ROWS, rest += ROWS * a_row, to += ROWS * out_row)
            TILE(ROWS);
        switch (left) {
        case 5: TILE(5); break;
        case 4: TILE(4); break;
        case 3: TILE(3); break;
        case 2: TILE(2); break;
        case 1: TILE(1); break;
        }
#undef TILE
    }
}

/* Spectra of the kernels at the row frequencies -u and u: odd functions change their sign. */
static void make_kernels(size length, size even, size odd, const real *functions,
                         const real *columns, real *minus, real *plus)
{
    for (size j = 0; j < length; j += LANES) {
        const size count = length - j;
        lanes sum_even = splat(0), sum_odd = splat(0);
        for (size r = 0; r < even; r++)
            sum_even += splat(functions[r]) * load(columns + r * length + j, count);
        for (size r = even; r < even + odd; r++)
            sum_odd += splat(functions[r]) * load(columns + r * length + j, count);
        *(lanes *)(minus + j) = sum_even - sum_odd;
        *(lanes *)(plus + j) = sum_even + sum_odd;
    }
}

/* Replace two rows by their difference and their sum. */
static void butterfly(size length, real *first, real *second)
{
    for (size i = 0; i < length; i++) {
        const real a = first[i], b = second[i];
        first[i] = a - b;
        second[i] = a + b;
    }
}

/* Products of input and kernels at one frequency: real, then imaginary parts of all groups. */
static void mix_channels(size groups, size batch, size depth, size outputs, const real *spectrum,
                         const real *kernels, real *products)
{
    const size parts = groups == 1 ? 1 : 2; /* of one group both parts lie one after the other */
    const size height = 2 * batch / parts;
    for (size part = 0; part < parts; part++)
        for (size g = 0; g < groups; g++)
            multiply(height, depth, outputs, spectrum + (parts * g + part) * height * depth, depth,
                     kernels + g * depth * outputs, outputs,
                     products + (part * groups + g) * height * outputs, outputs);
}

/* Column frequencies from `first` to `last`: from spectra to rows of the maps. */
EXPORTED equiscale_mix(size first, size last, size frequencies, size groups, size batch, size depth,
                       size outputs, size even, size odd, size height, const real *spectrum,
                       const real *columns, const real *functions, const real *cosine,
                       const real *sine, real *even_rows, real *odd_rows, real *scratch)
{
    const size length = 2 * groups * batch * outputs, pitch = length + WIDTH;
    const size kernel = groups * depth * outputs, input = 2 * groups * batch * depth;
    real *total = scratch, *difference = total + frequencies * pitch;
    real *minus = difference + frequencies * pitch, *plus = minus + kernel + WIDTH;
    for (size v = first; v < last; v++) {
        const real *negative = spectrum + 2 * v * frequencies * input;
        const real *positive = negative + frequencies * input;
        for (size u = 0; u < frequencies; u++) {
            real *first_row = difference + u * pitch, *second_row = total + u * pitch;
            make_kernels(kernel, even, odd, functions + u * (even + odd),
                         columns + v * (even + odd) * kernel, minus, plus);
            mix_channels(groups, batch, depth, outputs, negative + u * input, minus, first_row);
            mix_channels(groups, batch, depth, outputs, positive + u * input, plus, second_row);
            butterfly(length, first_row, second_row);
        }
        multiply(height, frequencies, length, cosine, frequencies, total, pitch,
                 even_rows + v * height * length, length);
        multiply(height, frequencies, length, sine, frequencies, difference, pitch,
                 odd_rows + v * height * length, length);
    }
}

typedef struct {
    size frequencies, width, maps;
    const real *cosine, *sine, *even, *odd;
    size part, column, row;
} Columns;

/* Gather what a few maps need of one row: even real and imaginary, odd imaginary and real. */
static void gather(const Columns *c, size y, size m, real *panel)
{
    const size start = y * c->row + m, count = c->maps - m;
    for (size v = 0; v < c->frequencies; v++, panel += 4 * LANES) {
        const real *even = c->even + start + v * c->column;
        const real *odd = c->odd + start + v * c->column;
        *(lanes *)panel = load(even, count);
        *(lanes *)(panel + LANES) = load(even + c->part, count);
        *(lanes *)(panel + 2 * LANES) = load(odd + c->part, count);
        *(lanes *)(panel + 3 * LANES) = load(odd, count);
    }
}

/* The four products of cosines and sines at a few pixels, already joined along the columns:
   even and odd part at +δx, then at -δx. */
INLINE void synthesise(int across, const Columns *c, size x, const real *panel,
                       lanes parts[ACROSS][4])
{
    const size V = c->frequencies;
    lanes sum[ACROSS][4];
    for (int i = 0; i < across; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = splat(0);
    for (size v = 0; v < V; v++) {
        const lanes *at = (const lanes *)(panel + 4 * LANES * v);
        for (int i = 0; i < across; i++) {
            const lanes cosine = splat(c->cosine[(x + i) * V + v]);
            const lanes sine = splat(c->sine[(x + i) * V + v]);
            sum[i][0] += cosine * at[0];
            sum[i][1] += sine * at[1];
            sum[i][2] += cosine * at[2];
            sum[i][3] += sine * at[3];
        }
    }
    for (int i = 0; i < across; i++) {
        parts[i][0] = sum[i][0] - sum[i][1];
        parts[i][1] = sum[i][2] + sum[i][3];
        parts[i][2] = sum[i][0] + sum[i][1];
        parts[i][3] = sum[i][2] - sum[i][3];
    }
}

INLINE lanes peak_tile(int across, const Columns *c, size x, const real *panel, lanes best)
{
    lanes parts[ACROSS][4];
    synthesise(across, c, x, panel, parts);
    for (int i = 0; i < across; i++)
        for (int side = 0; side < 4; side += 2) {
            const lanes candidate = parts[i][side] + absolute(parts[i][side + 1]);
            best = choose(wins(candidate, best), candidate, best);
        }
    return best;
}

/* Rows from `first` to `last` of all maps: the maximum of each, where it exceeds `best`. */
EXPORTED equiscale_peaks(size first, size last, size frequencies, size width, size maps,
                         const real *cosine, const real *sine, const real *even, const real *odd,
                         size part, size column, size row, real *best, real *panel)
{
    const Columns c = {frequencies, width, maps, cosine, sine, even, odd, part, column, row};
    for (size y = first; y < last; y++)
        for (size m = 0; m < maps; m += LANES) {
            lanes peak = load(best + m, maps - m);
            size x = 0;
            gather(&c, y, m, panel);
            for (; x + ACROSS <= width; x += ACROSS)
                peak = peak_tile(ACROSS, &c, x, panel, peak);
            for (; x < width; x++)
                peak = peak_tile(1, &c, x, panel, peak);
            store(best + m, peak, maps - m);
        }
}

typedef struct {
    real *best, *choice;
    size quadrant, row;
    real index;
} Contest;

INLINE void challenge_tile(int across, const Columns *c, const Contest *to, size y, size x, size m,
                           const real *panel)
{
    const size count = c->maps - m;
    lanes parts[ACROSS][4];
    synthesise(across, c, x, panel, parts);
    for (int i = 0; i < across; i++)
        for (int quadrant = 0; quadrant < 4; quadrant++) {
            const size place = quadrant * to->quadrant + y * to->row + (x + i) * c->maps + m;
            const lanes *side = &parts[i][quadrant % 2 * 2];
            const lanes candidate = quadrant < 2 ? side[0] - side[1] : side[0] + side[1];
            const lanes best = load(to->best + place, count);
            const mask won = wins(candidate, best);
            store(to->best + place, choose(won, candidate, best), count);
            if (to->choice) {
                const lanes choice = load(to->choice + place, count);
                store(to->choice + place, choose(won, splat(to->index), choice), count);
            }
        }
}

/* Rows from `first` to `last` of all maps: let their pixels replace what they exceed. */
EXPORTED equiscale_challenge(size first, size last, size frequencies, size width, size maps,
                             const real *cosine, const real *sine, const real *even,
                             const real *odd, size part, size column, size row, real *best,
                             real *choice, size quadrant, size best_row, real index, real *panel)
{
    const Columns c = {frequencies, width, maps, cosine, sine, even, odd, part, column, row};
    const Contest to = {best, choice, quadrant, best_row, index};
    for (size y = first; y < last; y++)
        for (size m = 0; m < maps; m += LANES) {
            size x = 0;
            gather(&c, y, m, panel);
            for (; x + ACROSS <= width; x += ACROSS)
                challenge_tile(ACROSS, &c, &to, y, x, m, panel);
            for (; x < width; x++)
                challenge_tile(1, &c, &to, y, x, m, panel);
        }
}
