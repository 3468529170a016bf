// A tile times tokens, and all tiles of a part of the rows. Written with the instructions of the file that includes it.

constexpr int64_t HALF_ROWS = ROWS / 2;
constexpr int64_t PAGE      = 4096; // bytes; most processors read on by themselves up to its end
constexpr int64_t FEW       = 32;   // tokens, all numbers of which stay in the L2

inline int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Fetches bytes into the L2.
inline void fetch_bytes(const uint8_t * from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(from + line, 0, 2);
    }
}

// Fetches rows of a tile into the L2, from block `first` on, before they are laid out. Blocks from `row_blocks` on are
// those of the same row of the next tile. A row is fetched over some length: where the processor sees that it is read,
// it goes on by itself.
struct Ahead {
    static constexpr int64_t LENGTH = 8; // blocks

    const Part & part;
    int64_t      first, row_blocks;
    int64_t      to_next; // one row less: the block's number leads into the row behind this one

    Ahead(const Part & part, const Rows & rows, int64_t first, int64_t row_blocks) :
        part(part),
        first(first),
        row_blocks(row_blocks),
        to_next((ROWS - 1) * rows.stride) {}

    // always_inline: a call would save all registers of vectors
    template <class Format, int64_t N_BLOCKS>
    __attribute__((always_inline)) void fetch(int64_t row, int64_t block) const {
        constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK;
        const uint8_t *   from     = part.base + part.offsets[row] + (first + block) / TOGETHER * Format::BYTES;
        from += first + block >= row_blocks ? to_next : 0;
        fetch_bytes(from, N_BLOCKS * Format::BYTES / TOGETHER);
    }
};

// Products of n_blocks blocks of a tile with N tokens; `add`: to those of the blocks before. Meanwhile the
// second half of the rows is fetched, if `ahead` is not null.
template <class Format, int N> void multiply_tile(const Tile & tile, int64_t n_blocks,
                                                  const TokenBlock * const * tokens, float * products, int64_t stride,
                                                  int64_t n_rows, bool add, const Ahead * ahead) {
    Floats sums[N];
    for (int t = 0; t < N; ++t) {
        sums[t] = add ? load_some(products + t * stride, n_rows) : none();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        if (ahead) {
            const int64_t i = b % Ahead::LENGTH;
            for (int64_t row = HALF_ROWS + i * HALF_ROWS / Ahead::LENGTH;
                 row < HALF_ROWS + (i + 1) * HALF_ROWS / Ahead::LENGTH; ++row) {
                ahead->template fetch<Format, Ahead::LENGTH>(row, b - i);
            }
        }
        const Floats scales = load(tile.scales[b][0]), others = load(tile.scales[b][1]);
        Words        whole[N];
        if constexpr (Format::HALVES) {
            Floats scaled[N];
            for (int t = 0; t < N; ++t) {
                whole[t] = left(splat(tokens[t][b].minus_half[0]), Format::SHIFT);
            }
            add_products<Format, N>(whole, tile.numbers[b][0][0], tokens, b, 0);
            for (int t = 0; t < N; ++t) {
                scaled[t] = product(floats(whole[t]), scales);
                whole[t]  = left(splat(tokens[t][b].minus_half[1]), Format::SHIFT);
            }
            add_products<Format, N>(whole, tile.numbers[b][4][0], tokens, b, 16);
            for (int t = 0; t < N; ++t) {
                scaled[t] = product_and_sum(floats(whole[t]), others, scaled[t]);
                sums[t]   = product_and_sum(scaled[t], splat(tokens[t][b].scale), sums[t]);
            }
        } else {
            for (int t = 0; t < N; ++t) {
                whole[t] = Format::SHIFT > 0 ? left(splat(tokens[t][b].minus), Format::SHIFT) : splat(0);
            }
            add_products<Format, N>(whole, tile.numbers[b][0][0], tokens, b, 0);
            add_products<Format, N>(whole, tile.numbers[b][4][0], tokens, b, 16);
            for (int t = 0; t < N; ++t) {
                sums[t] = product_and_sum(floats(whole[t]), product(scales, splat(tokens[t][b].scale)), sums[t]);
                if (Format::SHIFT < 0) {
                    sums[t] = product_and_sum(others, splat(tokens[t][b].sum), sums[t]);
                }
            }
        }
    }
    for (int t = 0; t < N; ++t) {
        store_some(products + t * stride, n_rows, sums[t]);
    }
}

// Tokens that follow each other, of `row_blocks` blocks each.
template <class Format, int N> void multiply_some(const Tile & tile, int64_t first_block, int64_t n_blocks,
                                                  const TokenBlock * tokens, int64_t row_blocks, float * products,
                                                  int64_t stride, int64_t n_rows, const Ahead * ahead) {
    const TokenBlock * some[N];
    for (int t = 0; t < N; ++t) {
        some[t] = tokens + t * row_blocks + first_block;
    }
    multiply_tile<Format, N>(tile, n_blocks, some, products, stride, n_rows, first_block > 0, ahead);
}

// One token: the numbers of a file's block are multiplied as they are decoded, and no tile is written.
template <class Format> struct OneToken {
    static constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK;

    const TokenBlock * token;
    Words              whole[TOGETHER][2];
    Floats             scales[TOGETHER][2];

    explicit OneToken(const TokenBlock * token) : token(token) {
        for (int64_t b = 0; b < TOGETHER; ++b) {
            if (Format::HALVES) {
                whole[b][0] = left(splat(token[b].minus_half[0]), Format::SHIFT);
                whole[b][1] = left(splat(token[b].minus_half[1]), Format::SHIFT);
            } else {
                whole[b][0] = Format::SHIFT > 0 ? left(splat(token[b].minus), Format::SHIFT) : splat(0);
            }
        }
    }

    void put(int64_t b, int word, Words numbers) {
        int32_t four;
        std::memcpy(&four, token[b].numbers + 4 * word, 4);
        Words & sum = whole[b][Format::HALVES ? word / 4 : 0];
        sum         = add_four<Format>(sum, numbers, four);
    }

    void scale(int64_t b, int i, Floats scale) { scales[b][i] = scale; }

    // `sums` with those of these blocks, in the order in which a tile adds them.
    Floats added(Floats sums) const {
        for (int64_t b = 0; b < TOGETHER; ++b) {
            const Floats scale = splat(token[b].scale);
            if (Format::HALVES) {
                const Floats first = product(floats(whole[b][0]), scales[b][0]);
                sums = product_and_sum(product_and_sum(floats(whole[b][1]), scales[b][1], first), scale, sums);
            } else {
                sums = product_and_sum(floats(whole[b][0]), product(scales[b][0], scale), sums);
                if (Format::SHIFT < 0) {
                    sums = product_and_sum(scales[b][1], splat(token[b].sum), sums);
                }
            }
        }
        return sums;
    }
};

// IN_ONE_RUN: the next tile is fetched in the order of memory, which is faster for short rows of small blocks.
template <class Format, bool IN_ONE_RUN>
void multiply_one(const Rows & rows, int64_t n, const TokenBlock * token, float * products) {
    constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK, DISTANCE = 24; // blocks
    for (int64_t row = 0; row < rows.n; row += ROWS) {
        const int64_t n_rows = least(ROWS, rows.n - row);
        const Part    part(rows.base + row * rows.stride, rows.stride, n_rows);
        const Ahead   ahead(part, rows, least(DISTANCE, n / BLOCK), n / BLOCK);
        Floats        sums = none();
        for (int64_t b = 0; b < n / Format::NUMBERS; ++b) {
            if constexpr (IN_ONE_RUN) {
                fetch_bytes(part.base + ROWS * (rows.stride + b * Format::BYTES), ROWS * Format::BYTES);
            } else {
                for (int64_t r = 0; r < ROWS; ++r) {
                    ahead.template fetch<Format, TOGETHER>(r, b * TOGETHER);
                }
            }
            OneToken<Format> one(token + b * TOGETHER);
            Format::lay_out(part, b * Format::BYTES, one, 0);
            sums = one.added(sums);
        }
        store_some(products + row, n_rows, sums);
    }
}

// Blocks [first_block, first_block + n_blocks) of a tile's rows. Meanwhile the first half of the rows is fetched.
template <class Format>
void lay_out(const Part & part, int64_t first_block, int64_t n_blocks, const Ahead & ahead, Tile & tile) {
    constexpr int64_t TOGETHER = Format::NUMBERS / BLOCK;
    for (int64_t b = 0; b < n_blocks; b += TOGETHER) {
        if (b % Ahead::LENGTH == 0) {
            for (int64_t row = 0; row < HALF_ROWS; ++row) {
                ahead.template fetch<Format, Ahead::LENGTH>(row, b);
            }
        }
        Format::lay_out(part, (first_block + b) / TOGETHER * Format::BYTES, tile, b);
    }
}

using Some = void (*)(const Tile &, int64_t, int64_t, const TokenBlock *, int64_t, float *, int64_t, int64_t,
                      const Ahead *);

template <class Format> Some for_tokens(int64_t n) {
    static constexpr Some FIRST[] = { multiply_some<Format, 1>, multiply_some<Format, 2>, multiply_some<Format, 3>,
                                      multiply_some<Format, 4> };
    if constexpr (COLUMNS > 4) {
        static constexpr Some MORE[] = { multiply_some<Format, 5>, multiply_some<Format, 6>, multiply_some<Format, 7>,
                                         multiply_some<Format, 8> };
        return n > 4 ? MORE[least(n, COLUMNS) - 5] : FIRST[n - 1];
    } else {
        return FIRST[least(n, COLUMNS) - 1];
    }
}

template <class Format> void multiply_part(const Rows & rows, int64_t n, const TokenBlock * tokens, int64_t n_tokens,
                                           float * products, int64_t stride) {
    if (n_tokens == 1) {
        const bool in_one_run = Format::NUMBERS == BLOCK && rows.stride < PAGE;
        return (in_one_run ? multiply_one<Format, true> : multiply_one<Format, false>)(rows, n, tokens, products);
    }
    const int64_t row_blocks = n / BLOCK;
    // few tokens: in the order of memory; many: a chunk of all tokens stays in the L2
    const int64_t n_together = n_tokens <= FEW ? ROWS : rows.n;
    const int64_t distance   = n_tokens <= FEW ? least(CHUNK, row_blocks) : row_blocks; // to what is laid out next
    Tile          tile;
    for (int64_t begin = 0; begin < rows.n; begin += n_together) {
        for (int64_t block = 0; block < row_blocks; block += CHUNK) {
            const int64_t n_blocks = least(CHUNK, row_blocks - block);
            for (int64_t row = begin; row < least(begin + n_together, rows.n); row += ROWS) {
                const int64_t n_rows = least(ROWS, rows.n - row);
                const Part    part(rows.base + row * rows.stride, rows.stride, n_rows);
                const Ahead   ahead(part, rows, block + distance, row_blocks);
                lay_out<Format>(part, block, n_blocks, ahead, tile);
                for (int64_t t = 0; t < n_tokens; t += COLUMNS) {
                    const Some some = for_tokens<Format>(n_tokens - t);
                    some(tile, block, n_blocks, tokens + t * row_blocks, row_blocks, products + t * stride + row,
                         stride, n_rows, t == 0 ? &ahead : nullptr);
                }
            }
        }
    }
}

inline Multiply multiply_of(ggml_type type) {
    switch (type) {
    case GGML_TYPE_Q4_0:
        return multiply_part<Q4_0>;
    case GGML_TYPE_Q4_1:
        return multiply_part<Q4_1>;
    case GGML_TYPE_Q5_0:
        return multiply_part<Q5_0>;
    case GGML_TYPE_Q5_1:
        return multiply_part<Q5_1>;
    case GGML_TYPE_Q8_0:
        return multiply_part<Q8_0>;
    case GGML_TYPE_Q4_K:
        return multiply_part<Q4_K>;
    case GGML_TYPE_Q5_K:
        return multiply_part<Q5_K>;
    case GGML_TYPE_Q6_K:
        return multiply_part<Q6_K>;
    default:
        return nullptr;
    }
}
