// Tests in C++ of the engine's parts that need neither a model nor a GPU:
//
//   TEST(a_sum_is_right) { CHECK(1 + 1 < 3); CHECK_EQ(1 + 1, 2); }
//
// A check that fails ends its test, as does SKIP("the reason"). main.cpp runs them.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tgr::test {

inline std::vector<std::pair<const char *, void (*)()>> tests;

inline void check(bool holds, const std::string & what, const char * file, int line) {
    if (!holds) {
        throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
    }
}

template <class T> std::string shown(const T & value) {
    std::ostringstream out;
    if constexpr (std::is_arithmetic_v<T>) {
        out << +value; // of a byte its number
    } else if constexpr (std::is_convertible_v<T, std::string_view>) {
        out << '"' << value << '"';
    } else {
        for (const auto & one : value) {
            out << (out.tellp() > 0 ? ", " : "[") << shown(one);
        }
        out << (out.tellp() > 0 ? "]" : "[]");
    }
    return out.str();
}

template <class A, class B> void check_equal(const A & a, const B & b, const char * what, const char * file, int line) {
    check(a == b, a == b ? "" : std::string(what) + " is " + shown(a) + ", not " + shown(b), file, line);
}

} // namespace tgr::test

// clang-format off
#define CHECK(...) tgr::test::check(bool(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
#define CHECK_EQ(a, ...) tgr::test::check_equal(a, __VA_ARGS__, #a, __FILE__, __LINE__)
#define SKIP(reason) throw static_cast<const char *>(reason)
#define TEST(name) static void name(); [[maybe_unused]] static const int n_to_##name = (tgr::test::tests.emplace_back(#name, name), 0); static void name()
