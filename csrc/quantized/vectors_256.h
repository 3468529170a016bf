// Eight rows in vectors of 256 bits, with what AVX2 has; for avx2.cpp and avxvnni.cpp.

#include "quantized/vectors.h"

// Of F16 in the low half of each word.
inline Floats half(Words words) {
    const __m256i low = __m256i(words & splat(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline Floats load_halves(const uint8_t * from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
inline Floats product_and_sum(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
}
inline __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int32_t(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats load_some(const float * from, int64_t n) {
    return _mm256_maskload_ps(from, first(n));
}
inline void store_some(float * to, int64_t n, Floats numbers) {
    _mm256_maskstore_ps(to, first(n), numbers);
}

// Four words of each row, from byte `at` on. Always inlined: a call would save all registers of vectors.
__attribute__((always_inline)) inline void bytes16(const Part & part, int64_t at, Words words[4]) {
    const auto row = [&](int i) __attribute__((always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i *>(part.base + part.offsets[i] + at));
    };
    const auto rows = [&](int i) __attribute__((always_inline)) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
    };
    const __m256i a = rows(0), b = rows(1), c = rows(2), d = rows(3);
    const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    const __m256i ba = _mm256_unpackhi_epi32(a, b), dc = _mm256_unpackhi_epi32(c, d);
    words[0] = Words(_mm256_unpacklo_epi64(ab, cd));
    words[1] = Words(_mm256_unpackhi_epi64(ab, cd));
    words[2] = Words(_mm256_unpacklo_epi64(ba, dc));
    words[3] = Words(_mm256_unpackhi_epi64(ba, dc));
}

// The lowest four bits of a word become bit 4 of its four bytes.
inline Words nibble_to_fifth_bits(Words words) {
    const __m256i bits = _mm256_set1_epi32(0x08040201); // each byte keeps its own bit of the nibble
    const __m256i copy =
        _mm256_shuffle_epi8(__m256i(words), _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0,
                                                             0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    return Words(_mm256_cmpeq_epi8(copy & bits, bits)) & splat(0x10101010);
}

// Four of a token's numbers, beside those of each row.
inline __m256i four(const int8_t * numbers, int i) {
    int32_t word;
    std::memcpy(&word, numbers + 4 * i, 4);
    return _mm256_set1_epi32(word);
}
