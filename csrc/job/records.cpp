#include "job/records.h"

#include <algorithm>

namespace tgr {

template <class T> static size_t width_of(const Array<T> & array) {
    return size_t(std::max(array.width, 1));
}

Output Output::joined(const Output & more) const {
    Output all = beginning(tokens.values->size()); // a copy: the arrays are shared
    all.append(more, 0);
    all.n_decoded += more.n_decoded;
    all.n_reused += more.n_reused;
    all.n_refused += more.n_refused;
    all.finish = more.finish;
    return all;
}

Output Output::beginning(size_t n) const {
    Output cut = *this;
    each_token_array([&](const char *, auto array) {
        auto &       to     = cut.*array;
        const auto & values = *to.values;
        const size_t most   = std::min(n * width_of(to), values.size());
        to.values           = std::make_shared<std::decay_t<decltype(values)>>(values.begin(), values.begin() + most);
    });
    cut.finish = Finish::length;
    return cut;
}

void Output::append(const Output & more, size_t first) {
    each_token_array([&](const char *, auto array) {
        auto &       to    = this->*array;
        const auto & from  = *(more.*array).values;
        const size_t begin = std::min(first * width_of(more.*array), from.size());
        to.width           = (more.*array).width;
        to.values->insert(to.values->end(), from.begin() + begin, from.end());
    });
}

Output Output::split(size_t n) {
    Output front = beginning(n);
    each_token_array([&](const char *, auto array) {
        auto &       from = this->*array;
        const size_t most = std::min(n * width_of(from), from.values->size());
        from.values->erase(from.values->begin(), from.values->begin() + most);
    });
    return front;
}

} // namespace tgr
