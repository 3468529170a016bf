// For instructions that add up four products at once: add_four of the file that includes it.

// Adds the products of 16 numbers of each row of R tiles with those of N tokens.
template <class Format, int R, int N>
inline void add_products(Words (&whole)[R][N], const uint8_t * const (&numbers)[R], const TokenBlock * const * tokens,
                         int64_t block, int at) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        Words weights[R];
        for (int r = 0; r < R; ++r) {
            weights[r] = load_words(numbers[r] + (at / 4 + i) * ROWS * 4);
        }
        for (int t = 0; t < N; ++t) {
            for (int r = 0; r < R; ++r) {
                whole[r][t] = add_four<Format>(whole[r][t], weights[r], tokens[t][block].numbers + at, i);
            }
        }
    }
}
