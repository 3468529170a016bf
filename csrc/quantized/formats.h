// Layout of a block of weights in a file and in a tile. Written with the instructions of the file that
// includes it: Words are a 32-bit word of each row of a tile, Floats a float of each.
//
// A word of a tile holds four numbers of a row, from 0 up: a weight is scale * (number - 2^SHIFT), or, where SHIFT is
// -1, scale * number + offset. So decoding is a mask and a shift of the words as the file has them, for all rows at
// once. `from` gives the words of a file's block, as they are in the file or interleaved, of one tile or of several;
// `to` takes the scales of a tile and the numbers: a tile, or the products of one token. A block gets its numbers in
// the order of its words, but for those in nibbles: word i, then i + 4.

constexpr int64_t BLOCK = TOKEN_BLOCK;
constexpr int64_t CHUNK = 32; // blocks of a row that are laid out at a time: tiles of them stay in the L1

struct alignas(64) Tile {
    uint8_t numbers[CHUNK][BLOCK / 4][ROWS][4];
    float   scales[CHUNK][2][ROWS]; // the scale, then the offset; or that of each half of the block

    void put(int64_t block, int word, Words four) { store_words(numbers[block][word][0], four); }

    void scale(int64_t block, int i, Floats scale) { store(scales[block][i], scale); }
};

// A block of a file has WORDS words of four bytes and, where its bytes are no multiple of four, a factor of two bytes
// beside them: before the words, or behind them (LAST_FACTOR).
template <class Format> constexpr bool    HAS_LONE_FACTOR = Format::BYTES % 4 != 0;
template <class Format> constexpr int64_t WORDS           = Format::BYTES / 4;

// A tile's rows as they are in a file.
struct InFile {
    struct Four {
        Words words[4];

        Words operator[](int i) const { return words[i]; }
    };

    Part part;

    // Words [word, word + 4) of a block, of each row.
    template <class Format> Four words4(int64_t block, int64_t word) const {
        const int64_t first = HAS_LONE_FACTOR<Format> && !Format::LAST_FACTOR ? 2 : 0;
        Four          four;
        bytes16(part, block * Format::BYTES + first + 4 * word, four.words);
        return four;
    }

    // Sixteen bytes of each row are read for it: a gather takes longer. No byte behind the block is read.
    template <class Format> Floats factor(int64_t block) const {
        Words words[4];
        bytes16(part, block * Format::BYTES + (Format::LAST_FACTOR ? Format::BYTES - 16 : 0), words);
        return half(Format::LAST_FACTOR ? right(words[3], 16) : words[0]);
    }
};

// N tiles' rows in a group whose rows are interleaved: the words of all its blocks, each of all rows, then the factors.
template <int N> struct Interleaved {
    struct Four {
        const uint8_t * words;

        auto operator[](int i) const {
            const uint8_t * word = words + i * 4 * GROUP_ROWS;
            if constexpr (N == 1) {
                return load_words(word);
            } else {
                return of_each<N>([&](int tile) { return load_words(word + tile * 4 * ROWS); });
            }
        }
    };

    const uint8_t * words;
    const uint8_t * factors;

    template <class Format> Four words4(int64_t block, int64_t word) const {
        return { words + (block * WORDS<Format> + word) * 4 * GROUP_ROWS };
    }

    template <class Format> Floats factor(int64_t block) const { return load_halves(factors + block * 2 * GROUP_ROWS); }

    // One of the tiles.
    Interleaved<1> tile(int i) const { return { words + i * 4 * ROWS, factors + i * 2 * ROWS }; }
};

const int32_t LOW_NIBBLES = 0x0f0f0f0f;

// 32 numbers in the nibbles of four words, the low ones first; `high` gives the bits above them for a word.
template <class Format, class From, class To, class High>
inline void put_nibbles(const From & from, int64_t file_block, int64_t first, To & to, int64_t block, High high) {
    const auto  words = from.template words4<Format>(file_block, first);
    const Words low   = splat(LOW_NIBBLES);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const auto word = words[i];
        to.put(block, i, (word & low) | high(i));
        to.put(block, i + 4, high_nibbles(word) | high(i + 4));
    }
}

template <int N> inline Several<N> nibble_to_fifth_bits(const Several<N> & words) {
    return of_each<N>([&](int i) { return nibble_to_fifth_bits(words.of[i]); });
}

// 32 bits, one for each number of a block, as the fifth bit of the numbers of word i.
template <class Bits> struct FifthBits {
    Bits bits;

    Bits operator()(int i) const { return nibble_to_fifth_bits(right(bits, 4 * i)); }
};

template <class Bits> inline FifthBits<Bits> fifth_bits(Bits bits) {
    return { bits };
}

struct NoBits {
    Words operator()(int) const { return splat(0); }
};

struct Q4_0 { // F16 scale, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 18;
    static constexpr int     BITS = 4, SHIFT = 3;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        to.scale(block, 0, from.template factor<Q4_0>(file_block));
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        put_nibbles<Q4_0>(from, file_block, 0, to, block, NoBits());
    }
};

// A word with the F16 scale and the F16 offset of a block; nibbles follow, or fifth bits.
template <class To> inline void put_scale_and_offset(Words head, To & to, int64_t block) {
    to.scale(block, 0, half(head));
    to.scale(block, 1, half(right(head, 16)));
}

struct Q4_1 { // F16 scale, F16 offset, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 20;
    static constexpr int     BITS = 4, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        put_scale_and_offset(from.template words4<Q4_1>(file_block, 0)[0], to, block);
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        put_nibbles<Q4_1>(from, file_block, 1, to, block, NoBits());
    }
};

struct Q5_0 { // F16 scale, 32 fifth bits, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 22;
    static constexpr int     BITS = 5, SHIFT = 4;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        to.scale(block, 0, from.template factor<Q5_0>(file_block));
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        const auto head = from.template words4<Q5_0>(file_block, 0);
        put_nibbles<Q5_0>(from, file_block, 1, to, block, fifth_bits(head[0]));
    }
};

struct Q5_1 { // F16 scale, F16 offset, 32 fifth bits, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 24;
    static constexpr int     BITS = 5, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        put_scale_and_offset(from.template words4<Q5_1>(file_block, 0)[0], to, block);
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        const auto head = from.template words4<Q5_1>(file_block, 0);
        put_nibbles<Q5_1>(from, file_block, 2, to, block, fifth_bits(head[1]));
    }
};

struct Q8_0 { // F16 scale, bytes with a sign
    static constexpr int64_t NUMBERS = 32, BYTES = 34;
    static constexpr int     BITS = 8, SHIFT = SIGNED_BYTES ? 0 : 7;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        to.scale(block, 0, from.template factor<Q8_0>(file_block));
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        const Words shift = splat(SIGNED_BYTES ? 0 : int32_t(0x80808080));
#pragma GCC unroll 2
        for (int i = 0; i < 8; i += 4) {
            const auto words = from.template words4<Q8_0>(file_block, i);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                to.put(block, i + k, words[k] ^ shift);
            }
        }
    }
};

// The four words that Q4_K and Q5_K begin with: F16 factors of the scales and offsets of eight blocks, which have six
// bits each.
template <class Four, class To> inline void put_scales(const Four & four, To & to, int64_t block) {
    const Words  words[]{ four[0], four[1], four[2], four[3] };
    const Floats factor = half(words[0]), minus = negative(half(right(words[0], 16)));
    // Four blocks in the bytes of a word. Of the last four, bits 4 and 5 are bits 6 and 7 of the first ones.
    const Words six = splat(0x3f3f3f3f), low = splat(LOW_NIBBLES), high = splat(0x30303030);
    const Words scales[]{ words[1] & six, (words[3] & low) | (right(words[1], 2) & high) };
    const Words offsets[]{ words[2] & six, (right(words[3], 4) & low) | (right(words[2], 2) & high) };
    for (int i = 0; i < 8; ++i) {
        to.scale(block + i, 0, product(floats(byte(scales[i / 4], i % 4)), factor));
        to.scale(block + i, 1, product(floats(byte(offsets[i / 4], i % 4)), minus));
    }
}

struct Q4_K { // scales, nibbles: 32 bytes have the low ones of one block and the high ones of the next
    static constexpr int64_t NUMBERS = 256, BYTES = 144;
    static constexpr int     BITS = 4, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        put_scales(from.template words4<Q4_K>(file_block, 0), to, block);
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        const Words low = splat(LOW_NIBBLES);
#pragma GCC unroll 8
        for (int i = 0; i < 32; i += 4) {
            const auto words = from.template words4<Q4_K>(file_block, 4 + i);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                const auto word = words[k];
                to.put(block + i / 8 * 2, i % 8 + k, word & low);
                to.put(block + i / 8 * 2 + 1, i % 8 + k, high_nibbles(word));
            }
        }
    }
};

struct Q5_K { // scales, fifth bits: bit b of 32 bytes is for block b; nibbles as in Q4_K
    static constexpr int64_t NUMBERS = 256, BYTES = 176;
    static constexpr int     BITS = 5, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        put_scales(from.template words4<Q5_K>(file_block, 0), to, block);
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        const decltype(from.template words4<Q5_K>(0, 0)) fifth[]{ from.template words4<Q5_K>(file_block, 4),
                                                                  from.template words4<Q5_K>(file_block, 8) };
        const Words                                      low = splat(LOW_NIBBLES), ones = splat(0x01010101);
#pragma GCC unroll 8
        for (int i = 0; i < 32; i += 4) {
            const auto words = from.template words4<Q5_K>(file_block, 12 + i);
            const int  even  = i / 8 * 2;
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                const auto word = words[k], bits = right(fifth[i % 8 / 4][k], even);
                to.put(block + even, i % 8 + k, (word & low) | left(bits & ones, 4));
                to.put(block + even + 1, i % 8 + k, high_nibbles(word) | left(right(bits, 1) & ones, 4));
            }
        }
    }
};

struct Q6_K { // nibbles, the two bits above them, 16 scales of eight bits with a sign, their F16 factor
    static constexpr int64_t NUMBERS = 256, BYTES = 210;
    static constexpr int     BITS = 6, SHIFT = 5;
    static constexpr bool    HALVES = true, LAST_FACTOR = true;

    template <class From, class To> static void scales(const From & from, int64_t file_block, To & to, int64_t block) {
        const auto   words  = from.template words4<Q6_K>(file_block, 48);
        const Floats factor = from.template factor<Q6_K>(file_block);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const Words word = words[i];
            for (int k = 0; k < 4; ++k) {
                to.scale(block + i * 2 + k / 2, k % 2, product(floats(signed_byte(word, k)), factor));
            }
        }
    }

    template <class From, class To> static void numbers(const From & from, int64_t file_block, To & to, int64_t block) {
        const Words low = splat(LOW_NIBBLES), two = splat(0x30303030);
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += 4) { // words of the two bits: eight for each half of the numbers
            const int64_t first   = block + i / 8 * 4;
            const int     word    = i % 8;
            const auto    nibbles = from.template words4<Q6_K>(file_block, i / 8 * 16 + word);
            const auto    others  = from.template words4<Q6_K>(file_block, i / 8 * 16 + 8 + word);
            const auto    highs   = from.template words4<Q6_K>(file_block, 32 + i);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                const auto one = nibbles[k], other = others[k], high = highs[k];
                to.put(first, word + k, (one & low) | (left(high, 4) & two));
                to.put(first + 1, word + k, (other & low) | (left(high, 2) & two));
                to.put(first + 2, word + k, high_nibbles(one) | (high & two));
                to.put(first + 3, word + k, high_nibbles(other) | (right(high, 2) & two));
            }
        }
    }
};
