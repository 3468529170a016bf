// Vectors with a word or a float of each row of a tile, and the operations that all instruction sets share. The
// including file defines ROWS.

typedef uint32_t Words __attribute__((vector_size(4 * ROWS)));
typedef int32_t  Signed __attribute__((vector_size(4 * ROWS)));
typedef uint8_t  Bytes __attribute__((vector_size(4 * ROWS)));
typedef float    Floats __attribute__((vector_size(4 * ROWS)));

inline Words splat(int32_t word) {
    return Words{} + uint32_t(word);
}
inline Floats splat(float number) {
    return number - Floats{};
}
inline Words right(Words words, int n) {
    return words >> n;
}
inline Words left(Words words, int n) {
    return words << n;
}
inline Words high_nibbles(Words words) {
    return Words(Bytes(words) >> 4);
}
inline Words byte(Words words, int i) {
    return i < 3 ? right(words, 8 * i) & splat(255) : right(words, 24);
}
inline Words signed_byte(Words words, int i) {
    return Words(Signed(words << (24 - 8 * i)) >> 24);
}
inline Floats floats(Words words) {
    return __builtin_convertvector(Signed(words), Floats);
}
inline Floats none() {
    return Floats{};
}
inline Floats negative(Floats a) {
    return none() - a;
}
inline Floats product(Floats a, Floats b) {
    return a * b;
}
inline Floats load(const float * from) {
    Floats numbers;
    std::memcpy(&numbers, from, sizeof numbers);
    return numbers;
}
inline void store(float * to, Floats numbers) {
    std::memcpy(to, &numbers, sizeof numbers);
}
inline Words load_words(const uint8_t * from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return words;
}
inline void store_words(uint8_t * to, Words words) {
    std::memcpy(to, &words, sizeof words);
}

// What the sum of a block of a token begins with, or of half of one: the numbers of weights are 2^SHIFT too large.
template <class Format> inline Words beginning(const TokenBlock & token, int half) {
    return Format::SHIFT <= 0 ? splat(0)
                              : left(splat(Format::HALVES ? token.minus_half[half] : token.minus), Format::SHIFT);
}

// Words of N tiles, which are decoded together.
template <int N> struct Several {
    Words of[N];
};

template <int N, class Function> inline Several<N> of_each(Function function) {
    Several<N> all;
    for (int i = 0; i < N; ++i) {
        all.of[i] = function(i);
    }
    return all;
}
template <int N> inline Several<N> operator|(const Several<N> & a, const Several<N> & b) {
    return of_each<N>([&](int i) { return a.of[i] | b.of[i]; });
}
template <int N> inline Several<N> operator|(const Several<N> & a, Words b) {
    return of_each<N>([&](int i) { return a.of[i] | b; });
}
template <int N> inline Several<N> operator&(const Several<N> & a, Words b) {
    return of_each<N>([&](int i) { return a.of[i] & b; });
}
template <int N> inline Several<N> operator^(const Several<N> & a, Words b) {
    return of_each<N>([&](int i) { return a.of[i] ^ b; });
}
template <int N> inline Several<N> right(const Several<N> & words, int n) {
    return of_each<N>([&](int i) { return right(words.of[i], n); });
}
template <int N> inline Several<N> left(const Several<N> & words, int n) {
    return of_each<N>([&](int i) { return left(words.of[i], n); });
}
template <int N> inline Several<N> high_nibbles(const Several<N> & words) {
    return of_each<N>([&](int i) { return high_nibbles(words.of[i]); });
}

// The rows of a tile; one that is not full has its last row several times.
struct Part {
    const uint8_t * base = nullptr;
    int32_t         offsets[ROWS];

    Part() = default;
    Part(const uint8_t * base, int64_t stride, int64_t n) : base(base) {
        for (int i = 0; i < ROWS; ++i) {
            offsets[i] = int32_t((i < n ? i : n - 1) * stride);
        }
    }
};
