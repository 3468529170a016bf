// The products of quantized weights, compared with plain ones of the numbers that ggml reads in them.
#include "quantized/kernels.h"

#include "check.h"
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace tgr {

namespace {

struct Kind {
    ggml_type type;
    size_t    at, n; // of the F16 factors of a block: the first byte, and how many there are
};

const std::vector<Kind> KINDS{
    { GGML_TYPE_Q4_0, 0, 1 }, { GGML_TYPE_Q4_1, 0, 2 }, { GGML_TYPE_Q5_0, 0, 1 }, { GGML_TYPE_Q5_1, 0, 2 },
    { GGML_TYPE_Q8_0, 0, 1 }, { GGML_TYPE_Q4_K, 0, 2 }, { GGML_TYPE_Q5_K, 0, 2 }, { GGML_TYPE_Q6_K, 208, 1 },
};
const std::vector<const char *> INSTRUCTIONS{ "best", "avxvnni", "avx2" }; // of ARM the best, each time

// Weights of any bytes, with factors of many sizes, and tokens: the same on every processor.
struct Drawn {
    ggml_type            type;
    int64_t              n_rows, n, n_tokens;
    std::vector<uint8_t> weights;
    std::vector<float>   tokens;

    Drawn(const Kind & kind, int64_t n_rows, int64_t n, int64_t n_tokens) :
        type(kind.type),
        n_rows(n_rows),
        n(n),
        n_tokens(n_tokens),
        weights(size_t(n_rows) * ggml_row_size(type, n)),
        tokens(size_t(n_tokens * n)) {
        test::Draw draw(uint64_t(((type * 1000 + n_rows) * 10'000 + n) * 100 + n_tokens));
        for (auto & byte : weights) {
            byte = uint8_t(draw.below(256));
        }
        for (size_t block = 0; block < weights.size(); block += ggml_type_size(type)) {
            for (size_t i = 0; i < kind.n; ++i) {
                const float       number = float(1 + draw.below(1000));
                const ggml_fp16_t factor = ggml_fp32_to_fp16(std::ldexp(number, -int(10 + draw.below(14))));
                std::memcpy(&weights[block + kind.at + 2 * i], &factor, 2);
            }
        }
        for (size_t i = 0; i < tokens.size(); ++i) {
            tokens[i] = i % size_t(n) < TOKEN_BLOCK ? 0 : float(draw.normal()); // a block without a number
        }
    }

    std::vector<uint8_t> packed(int64_t n_tokens) const {
        const size_t         bytes = packed_token_bytes(n);
        std::vector<uint8_t> packed(bytes * size_t(n_tokens));
        for (int64_t t = 0; t < n_tokens; ++t) {
            pack_token(&tokens[size_t(t * n)], n, &packed[bytes * size_t(t)]);
        }
        return packed;
    }

    // [n_tokens, n_rows] of the first tokens, and of rows from `first` on; zero for the others.
    std::vector<float> products(int64_t n_tokens, int64_t first = 0) const {
        std::vector<float> all(size_t(n_tokens * n_rows));
        multiply_rows(type, weights.data(), n, first, n_rows, packed(n_tokens).data(), n_tokens, all.data(), n_rows);
        return all;
    }
    std::vector<float> products() const { return products(n_tokens); }

    // The same of interleaved rows, as many as are whole groups.
    std::vector<float> interleaved_products(int64_t n_tokens, int64_t first = 0) const {
        const int64_t        last = n_rows / GROUP_ROWS * GROUP_ROWS;
        std::vector<uint8_t> interleaved(weights.size(), 0xee);
        interleave_rows(type, weights.data(), n, 0, last, interleaved.data());
        std::vector<float> all(size_t(n_tokens * n_rows));
        multiply_interleaved_rows(type, interleaved.data(), n, first, last, packed(n_tokens).data(), n_tokens,
                                  all.data(), n_rows);
        return all;
    }

    // Tokens as Q8_0 has them: scales in F16, numbers to the nearest or even.
    std::vector<double> rounded() const {
        std::vector<double> all;
        for (size_t block = 0; block < tokens.size(); block += TOKEN_BLOCK) {
            float most = 0;
            for (size_t i = block; i < block + TOKEN_BLOCK; ++i) {
                most = std::max(most, std::abs(tokens[i]));
            }
            const double scale = ggml_fp16_to_fp32(ggml_fp32_to_fp16(most / 127));
            for (size_t i = block; i < block + TOKEN_BLOCK; ++i) {
                all.push_back(most > 0 ? std::nearbyint(tokens[i] * (127 / most)) * scale : 0);
            }
        }
        return all;
    }
};

int64_t whole_blocks(const Kind & kind, int64_t n) {
    const int64_t block = ggml_blck_size(kind.type);
    return (n + block - 1) / block * block;
}

// Skips where there are no products, and leaves the best instructions behind.
struct Chosen {
    Chosen() {
        if (!has_products(GGML_TYPE_Q8_0)) {
            SKIP("the processor lacks the instructions, or TGR_PRODUCTS is set");
        }
    }
    ~Chosen() { use_products(std::getenv("TGR_PRODUCTS")); }
};

} // namespace

TEST(products_are_those_of_the_numbers) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        for (const auto & [n_rows, n_blocks] : { std::pair{ 1, 1 }, { 16, 2 }, { 37, 32 }, { 50, 33 }, { 9, 257 } }) {
            for (const int n_tokens : { 1, 2, 7, 8, 9, 33, 70 }) {
                const int64_t       n = whole_blocks(kind, n_blocks * TOKEN_BLOCK);
                const Drawn         drawn(kind, n_rows, n, n_tokens);
                const auto          tokens = drawn.rounded();
                std::vector<float>  numbers(size_t(n_rows * n));
                std::vector<double> right;
                double              size = 0;
                ggml_get_type_traits(kind.type)->to_float(drawn.weights.data(), numbers.data(), n_rows * n);
                for (int64_t t = 0; t < n_tokens; ++t) {
                    for (int64_t row = 0; row < n_rows; ++row) {
                        double sum = 0, sizes = 0;
                        for (int64_t i = 0; i < n; ++i) {
                            const double product = tokens[size_t(t * n + i)] * double(numbers[size_t(row * n + i)]);
                            sum += product;
                            sizes += std::abs(product);
                        }
                        right.push_back(sum);
                        size = std::max(size, sizes);
                    }
                }
                for (const char * instructions : INSTRUCTIONS) {
                    use_products(instructions);
                    const auto found = drawn.products();
                    for (size_t i = 0; i < found.size(); ++i) {
                        CHECK(std::abs(double(found[i]) - right[i]) <= 1e-6 * size);
                    }
                }
            }
        }
    }
}

// Every number of the weights and of the tokens is the greatest or the least: their sums are as large as they can be.
TEST(sums_of_the_largest_numbers_fit) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        for (const int byte : { 0x00, 0xff, 0x0f, 0x80, 0x7f }) {
            for (const float token : { 1.0f, -1.0f }) {
                Drawn drawn(kind, 16, 256, 9);
                for (size_t block = 0; block < drawn.weights.size(); block += ggml_type_size(drawn.type)) {
                    const size_t end = block + ggml_type_size(drawn.type);
                    for (size_t at = block; at < end; ++at) {
                        const bool is_factor = at >= block + kind.at && at < block + kind.at + 2 * kind.n;
                        drawn.weights[at]    = is_factor ? drawn.weights[at] : uint8_t(byte);
                    }
                }
                std::fill(drawn.tokens.begin(), drawn.tokens.end(), token);
                std::vector<float> numbers(16 * 256);
                ggml_get_type_traits(kind.type)->to_float(drawn.weights.data(), numbers.data(), 16 * 256);
                const auto rounded = drawn.rounded();
                for (const char * instructions : INSTRUCTIONS) {
                    use_products(instructions);
                    for (const auto & found : { drawn.products(), drawn.interleaved_products(9) }) {
                        for (size_t i = 0; i < found.size(); ++i) {
                            double sum = 0, sizes = 0;
                            for (size_t k = 0; k < 256; ++k) {
                                sum += rounded[k] * double(numbers[i % 16 * 256 + k]);
                                sizes += std::abs(rounded[k] * double(numbers[i % 16 * 256 + k]));
                            }
                            CHECK(std::abs(double(found[i]) - sum) <= 1e-6 * sizes);
                        }
                    }
                }
            }
        }
    }
}

TEST(a_product_has_the_same_bits_whatever_is_beside_it) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        const Drawn drawn(kind, 53, 2304, 70);
        const auto  all   = drawn.products();
        const auto  first = [&](int64_t n_tokens) {
            return std::vector<float>(all.begin(), all.begin() + n_tokens * 53);
        };
        for (const char * instructions : INSTRUCTIONS) {
            use_products(instructions);
            for (const int64_t n_tokens : { 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 33, 70 }) {
                CHECK(drawn.products(n_tokens) == first(n_tokens));
            }
            auto expected = first(5);
            for (size_t i = 0; i < expected.size(); ++i) {
                expected[i] = i % 53 < 16 ? 0 : expected[i];
            }
            CHECK(drawn.products(5, 16) == expected);
        }
    }
}

TEST(products_have_the_same_bits_on_every_processor) {
    const Chosen chosen;
    for (const char * instructions : INSTRUCTIONS) {
        use_products(instructions);
        uint64_t digest = 0xcbf29ce484222325;
        for (const Kind & kind : KINDS) {
            for (const int64_t n_tokens : { 1, 9 }) {
                for (const float product : Drawn(kind, 37, whole_blocks(kind, 9 * TOKEN_BLOCK), n_tokens).products()) {
                    uint32_t bits;
                    std::memcpy(&bits, &product, 4);
                    digest = (digest ^ bits) * 0x100000001b3;
                }
            }
        }
        CHECK_EQ(digest, uint64_t(13985418717710426349u));
    }
}

TEST(interleaved_rows_have_the_products_of_those_in_the_file) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        for (const int64_t n_blocks : { 8, 9, 40, 72 }) {
            const Drawn drawn(kind, 80, whole_blocks(kind, n_blocks * TOKEN_BLOCK), 70);
            for (const char * instructions : INSTRUCTIONS) {
                use_products(instructions);
                for (const int64_t n_tokens : { 1, 2, 8, 9, 33, 70 }) {
                    CHECK(drawn.interleaved_products(n_tokens) == drawn.products(n_tokens));
                    CHECK(drawn.interleaved_products(n_tokens, 48) == drawn.products(n_tokens, 48));
                }
            }
        }
    }
}

#ifdef __x86_64__
// AVX-VNNI's source for processors that have its instruction in AVX-512 alone (avxvnni.cpp here).
namespace evex {
Products products(ggml_type type);
}
#endif

TEST(avx_vnni_has_the_products_of_avx2) {
#ifdef __x86_64__
    const Chosen chosen;
    if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vl")) {
        SKIP("the processor has no AVX-512 VNNI");
    }
    use_products("avx2");
    for (const Kind & kind : KINDS) {
        const Drawn          drawn(kind, 80, whole_blocks(kind, 40 * TOKEN_BLOCK), 70);
        const auto           own    = evex::products(kind.type);
        const int64_t        stride = int64_t(drawn.weights.size()) / 80;
        const uint8_t *      rows   = drawn.weights.data();
        std::vector<uint8_t> interleaved(drawn.weights.size()), same(drawn.weights.size());
        own.interleave({ rows, stride, 80, false }, drawn.n, interleaved.data());
        interleave_rows(kind.type, rows, drawn.n, 0, 80, same.data());
        CHECK(interleaved == same);
        for (const int64_t n_tokens : { 1, 2, 3, 4, 5, 6, 7, 9, 70 }) {
            const auto packed = drawn.packed(n_tokens);
            const auto right  = drawn.products(n_tokens);
            for (const bool are_interleaved : { false, true }) {
                std::vector<float> found(right.size());
                own.multiply({ are_interleaved ? interleaved.data() : rows, stride, 80, are_interleaved }, drawn.n,
                             reinterpret_cast<const TokenBlock *>(packed.data()), n_tokens, found.data(), 80);
                CHECK(found == right);
            }
        }
    }
#else
    SKIP("the processor has no AVX-512 VNNI");
#endif
}

TEST(rows_may_be_interleaved_in_part) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        const Drawn          drawn(kind, 80, whole_blocks(kind, 9 * TOKEN_BLOCK), 9);
        std::vector<uint8_t> interleaved(drawn.weights.size());
        interleave_rows(kind.type, drawn.weights.data(), drawn.n, 0, 48, interleaved.data());
        for (const int64_t n_tokens : { 1, 9 }) {
            const auto         packed = drawn.packed(n_tokens);
            std::vector<float> all(size_t(n_tokens * drawn.n_rows));
            multiply_interleaved_rows(kind.type, interleaved.data(), drawn.n, 0, 48, packed.data(), n_tokens,
                                      all.data(), drawn.n_rows);
            multiply_rows(kind.type, drawn.weights.data(), drawn.n, 48, 80, packed.data(), n_tokens, all.data(),
                          drawn.n_rows);
            CHECK(all == drawn.products(n_tokens));
        }
    }
}

TEST(rows_are_interleaved_alike_by_all_instructions_and_in_any_parts) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        const Drawn                       drawn(kind, 48, whole_blocks(kind, 9 * TOKEN_BLOCK), 1);
        std::vector<std::vector<uint8_t>> all;
        for (const char * instructions : INSTRUCTIONS) {
            use_products(instructions);
            for (const int64_t part : { 16, 48 }) {
                auto & interleaved = all.emplace_back(drawn.weights.size());
                for (int64_t first = 0; first < 48; first += part) {
                    interleave_rows(kind.type, drawn.weights.data(), drawn.n, first, first + part, interleaved.data());
                }
                CHECK(interleaved == all.front());
            }
        }
        // the same bytes, at other places: no byte is lost
        auto before = drawn.weights, after = all.front();
        std::sort(before.begin(), before.end());
        std::sort(after.begin(), after.end());
        CHECK(before == after);
    }
}

TEST(parts_of_the_rows_are_those_of_the_whole) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        const Drawn drawn(kind, 53, 512, 9);
        for (const char * instructions : INSTRUCTIONS) {
            use_products(instructions);
            CHECK(256 / rows_together(1) >= 16); // a small matrix has parts for many threads
            for (const int64_t n_tokens : { 1, 8, 9 }) {
                const int64_t                   n = rows_together(n_tokens);
                std::vector<std::vector<float>> from; // the rows from the beginning of each part on
                for (int64_t first = 0; first < 53; first += n) {
                    from.push_back(drawn.products(n_tokens, first));
                }
                const auto whole = drawn.products(n_tokens);
                for (size_t i = 0; i < whole.size(); ++i) {
                    CHECK(whole[i] == from[i % 53 / size_t(n)][i]);
                }
            }
        }
    }
}

TEST(numbers_that_are_not_finite_stay_in_the_products_of_their_token) {
    const Chosen chosen;
    for (const Kind & kind : KINDS) {
        Drawn      drawn(kind, 17, 256, 4);
        const auto finite      = drawn.products();
        drawn.tokens[40]       = NAN;
        drawn.tokens[256 + 40] = INFINITY;
        std::fill(drawn.tokens.begin() + 512, drawn.tokens.begin() + 768, 3e38f);
        for (const char * instructions : INSTRUCTIONS) {
            use_products(instructions);
            const auto found = drawn.products();
            CHECK(std::equal(found.begin() + 51, found.end(), finite.begin() + 51));
            CHECK(!std::isfinite(found[17]));
        }
    }
}

} // namespace tgr
