// The arithmetic of attention.cpp in vectors of LANES numbers, for each kind of processor. The order of the sums of a
// result does not depend on the other results that are computed with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tgr {

constexpr size_t LANES = 16;
constexpr size_t ROWS  = 4; // rows whose products are made at a time

inline size_t whole(size_t n, size_t of = LANES) {
    return (n + of - 1) / of * of;
}

// out[y][x] = a[x] · b[y], or += where `adds`, for na rows of a at the distance lda, a multiple of ROWS, and nb rows of
// b, all of n numbers, whole vectors.
void products(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n, float * const * out,
              bool adds);

// products() without AVX-512.
void products_of_eights(const float * a, size_t lda, size_t na, const float * const * b, size_t nb, size_t n,
                        float * const * out, bool adds);

// Rows of n numbers, `stride` bytes apart. `ahead` bytes from each is what is read later.
struct rows_t {
    const void * data;
    size_t       stride, n_rows, n, ahead;
};

// Converts rows of F16 to rows of F32 at the distance `stride`.
void from_f16(const rows_t & from, float * to, size_t stride);

// Rounds n numbers, whole vectors, to the nearest even ones with n_bits less in their mantissa.
void drop_bits(uint32_t n_bits, float * x, size_t n);

// Scores of n columns become weights whose sum is one, or less by what exp(sink) takes. After x[n - 1] there is room up
// to a whole vector, which gets zeros.
void soft_max(float * x, size_t n, float scale, const float * sink);

} // namespace tgr
