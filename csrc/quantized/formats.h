// Layout of a block of weights in a file and in a tile. Written with the instructions of the file that
// includes it: Words are a 32-bit word of each row of a tile, Floats a float of each.
//
// A word of a tile holds four numbers of a row, from 0 up: a weight is scale * (number - 2^SHIFT), or, where SHIFT is
// -1, scale * number + offset. So decoding is a mask and a shift of the words as the file has them, for all rows at
// once. `from` gives the words of a file's block, as they are in the file or interleaved; `to` takes the numbers: a
// tile, or the products of one token.

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
    Part part;

    // Words [word, word + 4) of a block, of each row.
    template <class Format> void words4(int64_t block, int64_t word, Words words[4]) const {
        const int64_t first = HAS_LONE_FACTOR<Format> && !Format::LAST_FACTOR ? 2 : 0;
        bytes16(part, block * Format::BYTES + first + 4 * word, words);
    }

    // Sixteen bytes of each row are read for it: a gather takes longer. No byte behind the block is read.
    template <class Format> Floats factor(int64_t block) const {
        Words words[4];
        bytes16(part, block * Format::BYTES + (Format::LAST_FACTOR ? Format::BYTES - 16 : 0), words);
        return half(Format::LAST_FACTOR ? right(words[3], 16) : words[0]);
    }
};

// A tile's rows in a group whose rows are interleaved: the words of all its blocks, each of all rows, then the factors.
struct Interleaved {
    const uint8_t * words;
    const uint8_t * factors;

    template <class Format> void words4(int64_t block, int64_t word, Words four[4]) const {
        for (int64_t i = 0; i < 4; ++i) {
            four[i] = load_words(words + (block * WORDS<Format> + word + i) * 4 * GROUP_ROWS);
        }
    }

    template <class Format> Floats factor(int64_t block) const { return load_halves(factors + block * 2 * GROUP_ROWS); }
};

const int32_t LOW_NIBBLES = 0x0f0f0f0f;

// 32 numbers in the nibbles of four words, the low ones first; `high` gives the bits above them for a word.
template <class Format, class From, class To, class High>
inline void put_nibbles(const From & from, int64_t file_block, int64_t word, To & to, int64_t block, High high) {
    Words words[4];
    from.template words4<Format>(file_block, word, words);
    const Words low = splat(LOW_NIBBLES);
    for (int i = 0; i < 4; ++i) {
        to.put(block, i, (words[i] & low) | high(i));
        to.put(block, i + 4, high_nibbles(words[i]) | high(i + 4));
    }
}

// 32 bits, one for each number of a block, as the fifth bit of the numbers of word i.
struct FifthBits {
    Words bits;

    Words operator()(int i) const { return nibble_to_fifth_bits(right(bits, 4 * i)); }
};

struct NoBits {
    Words operator()(int) const { return splat(0); }
};

struct Q4_0 { // F16 scale, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 18;
    static constexpr int     BITS = 4, SHIFT = 3;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        to.scale(block, 0, from.template factor<Q4_0>(file_block));
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

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        Words head[4];
        from.template words4<Q4_1>(file_block, 0, head);
        put_scale_and_offset(head[0], to, block);
        put_nibbles<Q4_1>(from, file_block, 1, to, block, NoBits());
    }
};

struct Q5_0 { // F16 scale, 32 fifth bits, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 22;
    static constexpr int     BITS = 5, SHIFT = 4;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        Words head[4];
        from.template words4<Q5_0>(file_block, 0, head);
        to.scale(block, 0, from.template factor<Q5_0>(file_block));
        put_nibbles<Q5_0>(from, file_block, 1, to, block, FifthBits{ head[0] });
    }
};

struct Q5_1 { // F16 scale, F16 offset, 32 fifth bits, nibbles
    static constexpr int64_t NUMBERS = 32, BYTES = 24;
    static constexpr int     BITS = 5, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        Words head[4];
        from.template words4<Q5_1>(file_block, 0, head);
        put_scale_and_offset(head[0], to, block);
        put_nibbles<Q5_1>(from, file_block, 2, to, block, FifthBits{ head[1] });
    }
};

struct Q8_0 { // F16 scale, bytes with a sign
    static constexpr int64_t NUMBERS = 32, BYTES = 34;
    static constexpr int     BITS = 8, SHIFT = SIGNED_BYTES ? 0 : 7;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        to.scale(block, 0, from.template factor<Q8_0>(file_block));
        const Words shift = splat(SIGNED_BYTES ? 0 : int32_t(0x80808080));
        for (int i = 0; i < 8; i += 4) {
            Words words[4];
            from.template words4<Q8_0>(file_block, i, words);
            for (int k = 0; k < 4; ++k) {
                to.put(block, i + k, words[k] ^ shift);
            }
        }
    }
};

// The four words that Q4_K and Q5_K begin with: F16 factors of the scales and offsets of eight blocks, which have six
// bits each.
template <class To> inline void put_scales(const Words (&words)[4], To & to, int64_t block) {
    const Floats factor = half(words[0]), minus = negative(half(right(words[0], 16)));
    // Four blocks in the bytes of a word. Of the last four, bits 4 and 5 are bits 6 and 7 of the first ones.
    const Words six = splat(0x3f3f3f3f), four = splat(LOW_NIBBLES), high = splat(0x30303030);
    const Words scales[]{ words[1] & six, (words[3] & four) | (right(words[1], 2) & high) };
    const Words offsets[]{ words[2] & six, (right(words[3], 4) & four) | (right(words[2], 2) & high) };
    for (int i = 0; i < 8; ++i) {
        to.scale(block + i, 0, product(floats(byte(scales[i / 4], i % 4)), factor));
        to.scale(block + i, 1, product(floats(byte(offsets[i / 4], i % 4)), minus));
    }
}

struct Q4_K { // scales, nibbles: 32 bytes have the low ones of one block and the high ones of the next
    static constexpr int64_t NUMBERS = 256, BYTES = 144;
    static constexpr int     BITS = 4, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        Words scales[4];
        from.template words4<Q4_K>(file_block, 0, scales);
        put_scales(scales, to, block);
        const Words low = splat(LOW_NIBBLES);
#pragma GCC unroll 8
        for (int i = 0; i < 32; i += 4) {
            Words words[4];
            from.template words4<Q4_K>(file_block, 4 + i, words);
            for (int k = 0; k < 4; ++k) {
                to.put(block + i / 8 * 2, i % 8 + k, words[k] & low);
                to.put(block + i / 8 * 2 + 1, i % 8 + k, high_nibbles(words[k]));
            }
        }
    }
};

struct Q5_K { // scales, fifth bits: bit b of 32 bytes is for block b; nibbles as in Q4_K
    static constexpr int64_t NUMBERS = 256, BYTES = 176;
    static constexpr int     BITS = 5, SHIFT = -1;
    static constexpr bool    HALVES = false, LAST_FACTOR = false;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        Words scales[4], fifth[8];
        from.template words4<Q5_K>(file_block, 0, scales);
        put_scales(scales, to, block);
        from.template words4<Q5_K>(file_block, 4, fifth);
        from.template words4<Q5_K>(file_block, 8, fifth + 4);
        const Words low = splat(LOW_NIBBLES), ones = splat(0x01010101);
#pragma GCC unroll 8
        for (int i = 0; i < 32; i += 4) {
            Words words[4];
            from.template words4<Q5_K>(file_block, 12 + i, words);
            const int even = i / 8 * 2;
            for (int k = 0; k < 4; ++k) {
                const Words bits = right(fifth[i % 8 + k], even);
                to.put(block + even, i % 8 + k, (words[k] & low) | left(bits & ones, 4));
                to.put(block + even + 1, i % 8 + k, high_nibbles(words[k]) | left(right(bits, 1) & ones, 4));
            }
        }
    }
};

struct Q6_K { // nibbles, the two bits above them, 16 scales of eight bits with a sign, their F16 factor
    static constexpr int64_t NUMBERS = 256, BYTES = 210;
    static constexpr int     BITS = 6, SHIFT = 5;
    static constexpr bool    HALVES = true, LAST_FACTOR = true;

    template <class From, class To> static void lay_out(const From & from, int64_t file_block, To & to, int64_t block) {
        Words scales[4];
        from.template words4<Q6_K>(file_block, 48, scales);
        const Floats factor = from.template factor<Q6_K>(file_block);
        for (int i = 0; i < 16; ++i) {
            to.scale(block + i / 2, i % 2, product(floats(signed_byte(scales[i / 4], i % 4)), factor));
        }
        const Words low = splat(LOW_NIBBLES), two = splat(0x30303030);
#pragma GCC unroll 4
        for (int i = 0; i < 16; i += 4) { // words of the two bits: eight for each half of the numbers
            const int64_t first = block + i / 8 * 4;
            const int     word  = i % 8;
            Words         nibbles[4], others[4], high[4];
            from.template words4<Q6_K>(file_block, i / 8 * 16 + word, nibbles);
            from.template words4<Q6_K>(file_block, i / 8 * 16 + 8 + word, others);
            from.template words4<Q6_K>(file_block, 32 + i, high);
            for (int k = 0; k < 4; ++k) {
                to.put(first, word + k, (nibbles[k] & low) | (left(high[k], 4) & two));
                to.put(first + 1, word + k, (others[k] & low) | (left(high[k], 2) & two));
                to.put(first + 2, word + k, high_nibbles(nibbles[k]) | (high[k] & two));
                to.put(first + 3, word + k, high_nibbles(others[k]) | (right(high[k], 2) & two));
            }
        }
    }
};
