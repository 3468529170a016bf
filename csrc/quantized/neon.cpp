// NEON with dot products (ARMv8.2): 4 rows at a time; four products of a row are added up in one instruction.
#include "quantized/kernels.h"

#ifdef __aarch64__
#include <arm_neon.h>

#include <cstring>

namespace tgr::neon {

namespace {

// Tokens whose sums stay in registers.
constexpr int columns(int tiles, int bits) {
    return tiles == 1 ? (bits == 6 ? 6 : 8) : 4;
}

// Tiles that share the loads of one token.
constexpr int tiles_of_one_token(int) {
    return 2;
}

constexpr bool SIGNED_BYTES = true;

#include "quantized/vectors.h"

// Of F16 in the low half of each word.
inline Floats half(Words words) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words)));
}
inline Floats load_halves(const uint8_t * from) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
}
inline Floats product_and_sum(Floats a, Floats b, Floats c) {
    return vfmaq_f32(c, a, b);
}
inline Floats load_some(const float * from, int64_t n) {
    return n == ROWS ? load(from) : Floats{ from[0], n > 1 ? from[1] : 0, n > 2 ? from[2] : 0, 0 };
}
inline void store_some(float * to, int64_t n, Floats numbers) {
    if (n == ROWS) {
        return store(to, numbers);
    }
    for (int64_t i = 0; i < n; ++i) {
        to[i] = numbers[i];
    }
}

// Four words of each row, from byte `at` on.
__attribute__((always_inline)) inline void bytes16(const Part & part, int64_t at, Words words[4]) {
    const auto row = [&](int i) __attribute__((always_inline)) { return load_words(part.base + part.offsets[i] + at); };
    const auto low = [](uint32x4_t a, uint32x4_t b) { return vreinterpretq_u64_u32(vtrn1q_u32(a, b)); };
    const auto high    = [](uint32x4_t a, uint32x4_t b) { return vreinterpretq_u64_u32(vtrn2q_u32(a, b)); };
    const Words      a = row(0), b = row(1), c = row(2), d = row(3);
    const uint64x2_t ab = low(a, b), cd = low(c, d), ba = high(a, b), dc = high(c, d);
    words[0] = vreinterpretq_u32_u64(vtrn1q_u64(ab, cd));
    words[1] = vreinterpretq_u32_u64(vtrn1q_u64(ba, dc));
    words[2] = vreinterpretq_u32_u64(vtrn2q_u64(ab, cd));
    words[3] = vreinterpretq_u32_u64(vtrn2q_u64(ba, dc));
}

// The lowest four bits of a word become bit 4 of its four bytes.
inline Words nibble_to_fifth_bits(Words words) {
    const uint8x16_t bits   = vreinterpretq_u8_u32(splat(0x08040201)); // each byte keeps its own bit of the nibble
    const uint8x16_t places = { 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12 };
    const uint8x16_t set    = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u32(words), places), bits);
    return vreinterpretq_u32_u8(vandq_u8(set, vdupq_n_u8(0x10)));
}

// Adds the product of four numbers of each row with the i-th four of a token.
template <class Format>
__attribute__((always_inline)) inline Words add_four(Words whole, Words weights, const int8_t * numbers, int i) {
    const int32x4_t sum   = vreinterpretq_s32_u32(whole);
    const int8x16_t bytes = vreinterpretq_s8_u32(weights), token = vld1q_s8(numbers + i / 4 * 16);
    switch (i % 4) { // a constant in the instruction
    case 0:
        return vreinterpretq_u32_s32(vdotq_laneq_s32(sum, bytes, token, 0));
    case 1:
        return vreinterpretq_u32_s32(vdotq_laneq_s32(sum, bytes, token, 1));
    case 2:
        return vreinterpretq_u32_s32(vdotq_laneq_s32(sum, bytes, token, 2));
    default:
        return vreinterpretq_u32_s32(vdotq_laneq_s32(sum, bytes, token, 3));
    }
}

#include "quantized/add_products.h"
#include "quantized/formats.h"
#include "quantized/multiply.h"

} // namespace

Products products(ggml_type type) {
    return products_of(type);
}

void pack(const float * numbers, int64_t n, TokenBlock * packed) {
    for (int64_t b = 0; b < n / BLOCK; ++b, numbers += BLOCK) {
        TokenBlock & to   = packed[b];
        float32x4_t  most = vdupq_n_f32(0);
        for (int i = 0; i < BLOCK; i += 4) {
            most = vmaxq_f32(most, vabsq_f32(vld1q_f32(numbers + i)));
        }
        const float amax    = vmaxvq_f32(most);
        const float inverse = amax != 0.0f ? 127.0f / amax : 0.0f;
        to.scale            = float(__fp16(amax / 127.0f)); // as exact as ggml's, no more
        uint32x4_t sums[2]  = {};
        for (int i = 0; i < BLOCK; i += 8) {
            int32x4_t whole[2];
            for (int k = 0; k < 2; ++k) { // to the nearest, or even
                whole[k] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(numbers + i + 4 * k), inverse));
                sums[i / 16] += vreinterpretq_u32_s32(whole[k]);
            }
            vst1_s8(to.numbers + i, vqmovn_s16(vcombine_s16(vqmovn_s32(whole[0]), vqmovn_s32(whole[1]))));
        }
        std::memset(to.minus_pairs, 0, sizeof to.minus_pairs); // for products in pairs alone
        to.minus_half[0] = int32_t(0 - vaddvq_u32(sums[0]));
        to.minus_half[1] = int32_t(0 - vaddvq_u32(sums[1]));
        to.minus         = int32_t(0 - vaddvq_u32(sums[0] + sums[1]));
        to.sum           = -float(to.minus) * to.scale;
    }
}

} // namespace tgr::neon

#endif
