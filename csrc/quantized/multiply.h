// Multiplies a tile, and all tiles of a range of rows, with tokens. The including file defines the instructions.

constexpr int64_t HALF_ROWS = ROWS / 2;
constexpr int64_t PAGE      = 4096; // bytes; most processors read on by themselves up to its end
constexpr int64_t FEW       = 32;   // tokens, all numbers of which stay in the L2

constexpr int64_t FETCHED_AHEAD = 16384; // bytes of interleaved rows

inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Fetches bytes into the L2.
inline void fetch_bytes(const uint8_t * from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(from + line, 0, 2);
    }
}

constexpr int64_t TILES_OF_GROUP = GROUP_ROWS / ROWS;

// Bytes of the words of a group for 32 numbers of each row.
template <class Format> constexpr int64_t GROUP_BYTES = WORDS<Format> * 4 * GROUP_ROWS / (Format::NUMBERS / BLOCK);

// What is laid out next, which is fetched into the L2 meanwhile. Of rows as in the file half are fetched while a tile
// is laid out, the others while it is multiplied; blocks from `row_blocks` on are those of the same row of the next
// tile. A row is fetched over some length: where the processor sees that it is read, it goes on by itself. Interleaved
// rows are fetched while a tile is multiplied.
struct Ahead {
    static constexpr int64_t LENGTH = 8; // blocks

    Part            part;
    int64_t         first, row_blocks;
    int64_t         to_next;     // one row less: the block's number leads into the row behind this one
    const uint8_t * interleaved; // the tile's share of its group; null: as in the file

    // always_inline: a call would save all registers of vectors
    template <class Format, int64_t N_BLOCKS>
    __attribute__((always_inline)) void fetch(int64_t row, int64_t block) const {
        constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK;
        const uint8_t *   from     = part.base + part.offsets[row] + (first + block) / TOGETHER * Format::BYTES;
        from += first + block >= row_blocks ? to_next : 0;
        fetch_bytes(from, N_BLOCKS * Format::BYTES / TOGETHER);
    }

    template <class Format> __attribute__((always_inline)) void while_laid_out(int64_t block) const {
        for (int64_t row = 0; !interleaved && block % LENGTH == 0 && row < HALF_ROWS; ++row) {
            fetch<Format, LENGTH>(row, block);
        }
    }

    template <class Format> __attribute__((always_inline)) void while_multiplied(int64_t block) const {
        if (interleaved) {
            return fetch_bytes(interleaved + block * GROUP_BYTES<Format>, GROUP_BYTES<Format> / TILES_OF_GROUP);
        }
        const int64_t i = block % LENGTH;
        for (int64_t row = HALF_ROWS + i * HALF_ROWS / LENGTH; row < HALF_ROWS + (i + 1) * HALF_ROWS / LENGTH; ++row) {
            fetch<Format, LENGTH>(row, block - i);
        }
    }
};

// Products of n_blocks blocks of R tiles with N tokens; `add`: to those of the blocks before. Meanwhile the
// second half of the rows is fetched, if `ahead` is not null.
template <class Format, int R, int N>
void multiply_tiles(const Tile * tiles, int64_t n_blocks, const TokenBlock * const * tokens, float * products,
                    int64_t stride, int64_t n_rows, bool add, const Ahead * ahead) {
    const auto in_tile = [&](int r) { return least(ROWS, n_rows - r * ROWS); };
    Floats     sums[R][N];
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < N; ++t) {
            sums[r][t] = add ? load_some(products + t * stride + r * ROWS, in_tile(r)) : none();
        }
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int r = 0; ahead && r < R; ++r) {
            ahead[r].template while_multiplied<Format>(b);
        }
        const uint8_t * numbers[R];
        for (int r = 0; r < R; ++r) {
            numbers[r] = tiles[r].numbers[b][0][0];
        }
        Words whole[R][N];
        if constexpr (Format::HALVES) {
            Floats scaled[R][N];
            add_products<Format, 4, R, N>(whole, numbers, tokens, b, 0);
            for (int t = 0; t < N; ++t) {
                for (int r = 0; r < R; ++r) {
                    scaled[r][t] = product(floats(whole[r][t]), load(tiles[r].scales[b][0]));
                }
            }
            add_products<Format, 4, R, N>(whole, numbers, tokens, b, 1);
            for (int t = 0; t < N; ++t) {
                for (int r = 0; r < R; ++r) {
                    scaled[r][t] = product_and_sum(floats(whole[r][t]), load(tiles[r].scales[b][1]), scaled[r][t]);
                    sums[r][t]   = product_and_sum(scaled[r][t], splat(tokens[t][b].scale), sums[r][t]);
                }
            }
        } else {
            add_products<Format, 8, R, N>(whole, numbers, tokens, b, 0);
            for (int t = 0; t < N; ++t) {
                for (int r = 0; r < R; ++r) {
                    const Floats scale = product(load(tiles[r].scales[b][0]), splat(tokens[t][b].scale));
                    sums[r][t]         = product_and_sum(floats(whole[r][t]), scale, sums[r][t]);
                    if (Format::SHIFT < 0) {
                        sums[r][t] = product_and_sum(load(tiles[r].scales[b][1]), splat(tokens[t][b].sum), sums[r][t]);
                    }
                }
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int t = 0; t < N; ++t) {
            store_some(products + t * stride + r * ROWS, in_tile(r), sums[r][t]);
        }
    }
}

// Tokens that follow each other, of `row_blocks` blocks each.
template <class Format, int R, int N>
void multiply_some(const Tile * tiles, int64_t first_block, int64_t n_blocks, const TokenBlock * tokens,
                   int64_t row_blocks, float * products, int64_t stride, int64_t n_rows, const Ahead * ahead) {
    const TokenBlock * some[N];
    for (int t = 0; t < N; ++t) {
        some[t] = tokens + t * row_blocks + first_block;
    }
    multiply_tiles<Format, R, N>(tiles, n_blocks, some, products, stride, n_rows, first_block > 0, ahead);
}

// One token and R tiles: the numbers of a file's block are multiplied as they are decoded, and no tile is written. A
// block of 32 numbers is added to `all` when its last word comes, in the order in which a tile adds them.
template <class Format, int R> struct OneToken {
    static constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK;
    static constexpr int     HALVES = Format::HALVES ? 2 : 1, LENGTH = 8 / HALVES; // words of a sum

    const TokenBlock * token;
    Floats (&all)[R];
    Sum<Format, LENGTH> sums[TOGETHER][R];
    Floats              scales[R][TOGETHER][2], first_half[TOGETHER][R];

    OneToken(const TokenBlock * token, Floats (&all)[R]) : token(token), all(all) {}

    struct Scales {
        Floats (&scales)[TOGETHER][2];

        void scale(int64_t b, int i, Floats scale) { scales[b][i] = scale; }
    };

    __attribute__((always_inline)) void put(int64_t b, int word, Words numbers) { put_one(b, word, 0, numbers); }

    __attribute__((always_inline)) void put(int64_t b, int word, const Several<R> & numbers) {
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            put_one(b, word, r, numbers.of[r]);
        }
    }

    __attribute__((always_inline)) void put_one(int64_t b, int word, int r, Words numbers) {
        const int half = word / LENGTH;
        auto &    sum  = sums[b][r];
        sum.add(numbers, token[b], half, word % LENGTH);
        if (word == LENGTH - 1 && Format::HALVES) {
            first_half[b][r] = product(floats(sum.whole), scales[r][b][0]);
        } else if (word == 7) {
            add(b, r, floats(sum.whole));
        }
    }

    __attribute__((always_inline)) void add(int64_t b, int r, Floats whole) {
        const Floats scale = splat(token[b].scale);
        if (Format::HALVES) {
            all[r] = product_and_sum(product_and_sum(whole, scales[r][b][1], first_half[b][r]), scale, all[r]);
        } else {
            all[r] = product_and_sum(whole, product(scales[r][b][0], scale), all[r]);
            if (Format::SHIFT < 0) {
                all[r] = product_and_sum(scales[r][b][1], splat(token[b].sum), all[r]);
            }
        }
    }
};

// IN_ONE_RUN: the next tile is fetched in the order of memory, which is faster for short rows of small blocks.
template <class Format, bool IN_ONE_RUN>
void multiply_one(const Rows & rows, int64_t n, const TokenBlock * token, float * products) {
    constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK, DISTANCE = 24; // blocks
    for (int64_t row = 0; row < rows.n; row += ROWS) {
        const int64_t n_rows = least(ROWS, rows.n - row);
        const InFile  from{ Part(rows.base + row * rows.stride, rows.stride, n_rows) };
        const Ahead   ahead{ from.part, least(DISTANCE, n / BLOCK), n / BLOCK, (ROWS - 1) * rows.stride, nullptr };
        Floats        sums[1]{ none() };
        for (int64_t b = 0; b < n / Format::NUMBERS; ++b) {
            if constexpr (IN_ONE_RUN) {
                fetch_bytes(from.part.base + ROWS * (rows.stride + b * Format::BYTES), ROWS * Format::BYTES);
            } else {
                for (int64_t r = 0; r < ROWS; ++r) {
                    ahead.template fetch<Format, TOGETHER>(r, b * TOGETHER);
                }
            }
            OneToken<Format, 1>                  one(token + b * TOGETHER, sums);
            typename OneToken<Format, 1>::Scales scales{ one.scales[0] };
            Format::scales(from, b, scales, 0);
            Format::numbers(from, b, one, 0);
        }
        store_some(products + row, n_rows, sums[0]);
    }
}

// Row `row`, the first of a tile, and those behind it.
template <class Format, int N = 1> Interleaved<N> interleaved(const Rows & rows, int64_t n, int64_t row) {
    const uint8_t * group   = rows.base + row / GROUP_ROWS * GROUP_ROWS * rows.stride;
    const uint8_t * factors = group + n / Format::NUMBERS * WORDS<Format> * 4 * GROUP_ROWS;
    return { group + row % GROUP_ROWS * 4, factors + row % GROUP_ROWS * 2 };
}

template <class Format>
void multiply_one_interleaved(const Rows & rows, int64_t n, const TokenBlock * token, float * products) {
    constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK, BYTES = WORDS<Format> * 4 * GROUP_ROWS;
    constexpr int     R = tiles_of_one_token(Format::BITS);
    for (int64_t row = 0; row < rows.n; row += GROUP_ROWS) {
        Floats sums[TILES_OF_GROUP / R][R] = {};
        for (int64_t b = 0; b < n / Format::NUMBERS; ++b) {
            fetch_bytes(interleaved<Format>(rows, n, row).words + b * BYTES + FETCHED_AHEAD, BYTES);
#pragma GCC unroll 1
            for (int64_t some = 0; some < TILES_OF_GROUP / R; ++some) {
                const auto          from = interleaved<Format, R>(rows, n, row + some * R * ROWS);
                OneToken<Format, R> one(token + b * TOGETHER, sums[some]);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) {
                    typename OneToken<Format, R>::Scales scales{ one.scales[r] };
                    Format::scales(from.tile(r), b, scales, 0);
                }
                Format::numbers(from, b, one, 0);
            }
        }
        for (int64_t tile = 0; tile < TILES_OF_GROUP; ++tile) {
            store(products + row + tile * ROWS, sums[tile / R][tile % R]);
        }
    }
}

// Blocks [first_block, first_block + n_blocks) of a tile's rows.
template <class Format, class From>
void lay_out(const From & from, const Ahead & ahead, int64_t first_block, int64_t n_blocks, Tile & tile) {
    constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK;
    for (int64_t b = 0; b < n_blocks; b += TOGETHER) {
        ahead.template while_laid_out<Format>(b);
        Format::scales(from, (first_block + b) / TOGETHER, tile, b);
        Format::numbers(from, (first_block + b) / TOGETHER, tile, b);
    }
}

using Some = void (*)(const Tile *, int64_t, int64_t, const TokenBlock *, int64_t, float *, int64_t, int64_t,
                      const Ahead *);

template <class Format, int R, int N> Some for_tokens(int64_t n) {
    if constexpr (N > 1) {
        return n == N ? multiply_some<Format, R, N> : for_tokens<Format, R, N - 1>(n);
    } else {
        return multiply_some<Format, R, 1>;
    }
}

// n_blocks blocks of R tiles times all tokens.
template <class Format, int R> void multiply_all(const Tile * tiles, int64_t first_block, int64_t n_blocks,
                                                 const TokenBlock * tokens, int64_t n_tokens, int64_t row_blocks,
                                                 float * products, int64_t stride, int64_t n_rows,
                                                 const Ahead * ahead) {
    constexpr int MOST = columns(R, Format::BITS);
    for (int64_t t = 0; t < n_tokens; t += MOST) {
        for_tokens<Format, R, MOST>(least(n_tokens - t, MOST))(tiles, first_block, n_blocks, tokens + t * row_blocks,
                                                               row_blocks, products + t * stride, stride, n_rows,
                                                               t == 0 ? ahead : nullptr);
    }
}

// Lays out and multiplies R tiles together.
template <class Format, int R, bool INTERLEAVED> void multiply_several(const Rows & rows, int64_t n,
                                                                       const TokenBlock * tokens, int64_t n_tokens,
                                                                       float * products, int64_t stride) {
    static_assert(R <= 2, "at the end there are R tiles or one");
    constexpr int64_t TOGETHER   = R * ROWS;
    const int64_t     row_blocks = n / BLOCK;
    // few tokens: in the order of memory; many: a chunk of all tokens stays in the L2
    constexpr int64_t STEP       = INTERLEAVED && TOGETHER < GROUP_ROWS ? GROUP_ROWS : TOGETHER;
    const int64_t     n_together = n_tokens <= FEW ? STEP : rows.n;
    const int64_t distance = n_tokens <= FEW ? least(CHUNK, row_blocks) : row_blocks; // blocks to what is laid out next
    Tile          tiles[R];
    Ahead         ahead[R];
    for (int64_t begin = 0; begin < rows.n; begin += n_together) {
        for (int64_t block = 0; block < row_blocks; block += CHUNK) {
            const int64_t n_blocks = least(CHUNK, row_blocks - block);
            for (int64_t row = begin; row < least(begin + n_together, rows.n); row += TOGETHER) {
                const int64_t n_rows = least(TOGETHER, rows.n - row);
                for (int64_t r = 0; r < R && r * ROWS < n_rows; ++r) {
                    if constexpr (INTERLEAVED) {
                        const auto    from = interleaved<Format>(rows, n, row + r * ROWS);
                        const int64_t next = block + distance; // in this tile, or in the next one
                        const int64_t tile = row + r * ROWS;
                        ahead[r].interleaved =
                            interleaved<Format>(rows, n, tile + (next < row_blocks ? 0 : STEP)).words +
                            next % row_blocks * GROUP_BYTES<Format> +
                            tile % GROUP_ROWS / ROWS * (GROUP_BYTES<Format> / TILES_OF_GROUP);
                        lay_out<Format>(from, ahead[r], block, n_blocks, tiles[r]);
                    } else {
                        const InFile from{ Part(rows.base + (row + r * ROWS) * rows.stride, rows.stride,
                                                least(ROWS, n_rows - r * ROWS)) };
                        ahead[r] = { from.part, block + distance, row_blocks, (TOGETHER - 1) * rows.stride, nullptr };
                        lay_out<Format>(from, ahead[r], block, n_blocks, tiles[r]);
                    }
                }
                (n_rows > TOGETHER - ROWS ? multiply_all<Format, R>
                                          : multiply_all<Format, 1>)(tiles, block, n_blocks, tokens, n_tokens,
                                                                     row_blocks, products + row, stride, n_rows, ahead);
            }
        }
    }
}

template <class Format> void multiply_part(const Rows & rows, int64_t n, const TokenBlock * tokens, int64_t n_tokens,
                                           float * products, int64_t stride) {
    if (n_tokens == 1) {
        const bool in_one_run = Format::NUMBERS == BLOCK && rows.stride < PAGE;
        return (rows.interleaved ? multiply_one_interleaved<Format>
                : in_one_run     ? multiply_one<Format, true>
                                 : multiply_one<Format, false>)(rows, n, tokens, products);
    }
    const bool are_few = n_tokens <= columns(1, Format::BITS);
    const auto several = rows.interleaved
                             ? (are_few ? multiply_several<Format, 1, true> : multiply_several<Format, TILES, true>)
                             : (are_few ? multiply_several<Format, 1, false> : multiply_several<Format, TILES, false>);
    several(rows, n, tokens, n_tokens, products, stride);
}

template <class Format> void interleave(const Rows & rows, int64_t n, uint8_t * interleaved) {
    const int64_t n_blocks = n / Format::NUMBERS, factor = Format::LAST_FACTOR ? Format::BYTES - 2 : 0;
    for (int64_t row = 0; row < rows.n; row += ROWS) {
        const InFile from{ Part(rows.base + row * rows.stride, rows.stride, ROWS) };
        uint8_t *    group   = interleaved + row / GROUP_ROWS * GROUP_ROWS * rows.stride;
        uint8_t *    to      = group + row % GROUP_ROWS * 4;
        uint8_t *    factors = group + n_blocks * WORDS<Format> * 4 * GROUP_ROWS + row % GROUP_ROWS * 2;
        for (int64_t b = 0; b < n_blocks; ++b, to += WORDS<Format> * 4 * GROUP_ROWS) {
            for (int64_t i = 0; i < WORDS<Format>; i += 4) {
                const int64_t word  = least(i, WORDS<Format> - 4); // the last ones twice
                const auto    words = from.template words4<Format>(b, word);
                for (int64_t k = 0; k < 4; ++k) {
                    store_words(to + (word + k) * 4 * GROUP_ROWS, words[k]);
                }
            }
            for (int64_t r = 0; HAS_LONE_FACTOR<Format> && r < ROWS; ++r, factors += 2) {
                std::memcpy(factors, from.part.base + r * rows.stride + b * Format::BYTES + factor, 2);
            }
            factors += HAS_LONE_FACTOR<Format> ? 2 * (GROUP_ROWS - ROWS) : 0;
        }
    }
}

template <class Format> constexpr Products PRODUCTS{ multiply_part<Format>, interleave<Format> };

inline Products products_of(ggml_type type) {
    switch (type) {
    case GGML_TYPE_Q4_0:
        return PRODUCTS<Q4_0>;
    case GGML_TYPE_Q4_1:
        return PRODUCTS<Q4_1>;
    case GGML_TYPE_Q5_0:
        return PRODUCTS<Q5_0>;
    case GGML_TYPE_Q5_1:
        return PRODUCTS<Q5_1>;
    case GGML_TYPE_Q8_0:
        return PRODUCTS<Q8_0>;
    case GGML_TYPE_Q4_K:
        return PRODUCTS<Q4_K>;
    case GGML_TYPE_Q5_K:
        return PRODUCTS<Q5_K>;
    case GGML_TYPE_Q6_K:
        return PRODUCTS<Q6_K>;
    default:
        return {};
    }
}
