// Random inputs, the same on every system: the standard library's distributions are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tgr::test {

class Draw {
public:
    explicit Draw(uint64_t seed) : random_(seed) {}

    size_t below(size_t n) { return size_t(random_() % n); }
    size_t from(size_t low, size_t end) { return low + below(end - low); }
    double unit() { return double(random_() >> 11) * 0x1p-53; }
    double normal() { // nearly: a sum of twelve
        double sum = -6;
        for (int i = 0; i < 12; ++i) {
            sum += unit();
        }
        return sum;
    }

    template <class T> const T &      one_of(const std::vector<T> & all) { return all[below(all.size())]; }
    template <class T> std::vector<T> some_of(const std::vector<T> & all, size_t n) {
        std::vector<T> some;
        for (; n > 0; --n) {
            some.push_back(one_of(all));
        }
        return some;
    }
    template <class T> void shuffle(std::vector<T> & all) {
        for (size_t i = all.size(); i > 1; --i) {
            std::swap(all[i - 1], all[below(i)]);
        }
    }

private:
    std::mt19937_64 random_;
};

inline std::string joined(const std::vector<std::string> & texts) {
    std::string all;
    for (const auto & text : texts) {
        all += text;
    }
    return all;
}

} // namespace tgr::test
