// Sums of products, for instruction sets that sum four products at once. The including file defines add_four.

// The sum of products of one token with the words of a block, or of half of one.
template <class Format, int N_WORDS> struct Sum {
    Words whole;

    void add(Words weights, const TokenBlock & token, int half, int word) {
        whole = word == 0 ? beginning<Format>(token, half) : whole;
        whole = add_four<Format>(whole, weights, token.numbers + 16 * half, word);
    }
};

// Sums of the products of 4 * N_WORDS numbers of each row of R tiles, those of half `half`, with those of N tokens.
template <class Format, int N_WORDS, int R, int N>
inline void add_products(Words (&whole)[R][N], const uint8_t * const (&numbers)[R], const TokenBlock * const * tokens,
                         int64_t block, int half) {
    for (int t = 0; t < N; ++t) {
        for (int r = 0; r < R; ++r) {
            whole[r][t] = beginning<Format>(tokens[t][block], half);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N_WORDS; ++i) {
        Words weights[R];
        for (int r = 0; r < R; ++r) {
            weights[r] = load_words(numbers[r] + (4 * half + i) * ROWS * 4);
        }
        for (int t = 0; t < N; ++t) {
            for (int r = 0; r < R; ++r) {
                whole[r][t] = add_four<Format>(whole[r][t], weights[r], tokens[t][block].numbers + 16 * half, i);
            }
        }
    }
}
