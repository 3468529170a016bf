// For instructions that add up four products at once: add_four of the file that includes it.

// The sum of products of one token with the words of a block, or of half of one.
template <class Format, int N_WORDS> struct Sum {
    Words whole;

    void add(Words weights, const int8_t * numbers, int word) {
        whole = add_four<Format>(whole, weights, numbers, word);
    }
};

// Adds the products of 4 * N_WORDS numbers of each row of R tiles, from `at` on, with those of N tokens.
template <class Format, int N_WORDS, int R, int N>
inline void add_products(Words (&whole)[R][N], const uint8_t * const (&numbers)[R], const TokenBlock * const * tokens,
                         int64_t block, int at) {
#pragma GCC unroll 8
    for (int i = 0; i < N_WORDS; ++i) {
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
