#include "cache/prefixes.h"

#include <iterator>
#include <utility>

namespace tgr {

uint32_t n_common(const std::vector<llama_token> & a, const std::vector<llama_token> & b) {
    const auto last = std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first;
    return uint32_t(last - a.begin());
}

uint32_t norm_stride(size_t n) {
    uint32_t stride = 1;
    while (n > size_t(stride) * 32) {
        stride *= 2;
    }
    return stride;
}

DecodedText DecodedText::beginning(uint32_t n, uint32_t n_layer) const {
    DecodedText first;
    first.tokens.assign(tokens.begin(), tokens.begin() + n);
    first.digest = digest;
    first.cells  = cells.part(0, n);
    first.norms.assign(norms.begin(), norms.begin() + ptrdiff_t(std::min(norms.size(), size_t(n) * n_layer)));
    return first;
}

// How many of `n` leading tokens of the prompt can be taken where these norms are known: all, or those before the first
// whose norms are missing.
static uint32_t n_measured(const Prompt & prompt, const std::vector<float> & norms, uint32_t n_layer, uint32_t n) {
    if (prompt.norm_stride == 0) {
        return n;
    }
    n = std::min(n, uint32_t(norms.size() / n_layer));
    for (uint32_t i = 0; i < n; i += prompt.norm_stride) {
        if (norms[size_t(i) * n_layer + n_layer - 1] < 0) {
            return i;
        }
    }
    return n;
}

uint32_t n_usable(const Prompt & prompt, const DecodedText & text, uint32_t n_layer, bool whole) {
    if (text.digest != prompt.digest) {
        return 0;
    }
    const uint32_t n = n_measured(prompt, text.norms, n_layer, n_common(text.tokens, prompt.tokens));
    return n < least_shared || (whole && n < text.tokens.size()) ? 0 : n;
}

PrefixStore::Match PrefixStore::find(const Prompt & prompt) {
    Match best;
    Place at;
    for (auto it = prefixes_.begin(); it != prefixes_.end(); ++it) {
        const uint32_t n = n_usable(prompt, **it, n_layer_, whole_);
        if (n > best.n) {
            best = { *it, n };
            at   = it;
        }
    }
    if (best.prefix) {
        prefixes_.splice(prefixes_.begin(), prefixes_, at);
    }
    return best;
}

void PrefixStore::remember(Prefix prefix, uint32_t state_cells) {
    state_cells_ = state_cells;
    if (prefix.tokens.size() < least_shared) {
        return;
    }
    for (auto it = prefixes_.begin(); it != prefixes_.end();) {
        const auto     place = it++;
        Prefix &       old   = **place;
        const uint32_t same  = old.digest == prefix.digest ? n_common(old.tokens, prefix.tokens) : 0;
        if (same == prefix.tokens.size() && (!whole_ || same == old.tokens.size())) { // known already
            if (old.norms.size() < prefix.norms.size()) {
                old.norms = std::move(prefix.norms);
            }
            prefixes_.splice(prefixes_.begin(), prefixes_, place);
            return;
        }
        if (same == old.tokens.size() && (!whole_ || same == prefix.tokens.size())) { // part of the new one
            if (old.norms.size() > prefix.norms.size()) {
                prefix.norms = old.norms; // a session may have pinned the old one
            }
            drop(place);
        }
    }
    prefix.cells.each([&](uint32_t cell) { pool_.keep(cell); });
    n_tokens_ += prefix.tokens.size();
    prefixes_.push_front(std::make_shared<Prefix>(std::move(prefix)));
    // texts that share almost all of their cells still have tokens and norms of their own
    while (prefixes_.size() > 1 &&
           (pool_.n_kept() + prefixes_.size() * state_cells_ > uint64_t(most_cells_) + longest() ||
            n_tokens_ > most_tokens * uint64_t(most_cells_) + longest())) {
        drop(std::prev(prefixes_.end()));
    }
}

uint32_t PrefixStore::longest() const {
    size_t n = 0;
    for (const auto & prefix : prefixes_) {
        n = std::max(n, prefix->tokens.size());
    }
    return uint32_t(n);
}

bool PrefixStore::reclaim() {
    for (auto it = prefixes_.end(); it != prefixes_.begin();) {
        --it;
        bool frees = false;
        (*it)->cells.each([&](uint32_t cell) { frees |= pool_[cell].reclaimable() && pool_[cell].keeps == 1; });
        if (frees) {
            drop(it);
            return true;
        }
    }
    return false;
}

void PrefixStore::forget(uint32_t cell) {
    for (auto it = prefixes_.begin(); it != prefixes_.end();) {
        const auto place = it++;
        bool       has   = false;
        (*place)->cells.each([&](uint32_t kept) { has |= kept == cell; });
        if (has) {
            drop(place);
        }
    }
}

void PrefixStore::drop(Place prefix) {
    (*prefix)->cells.each([&](uint32_t cell) { pool_.unkeep(cell); });
    n_tokens_ -= (*prefix)->tokens.size();
    prefixes_.erase(prefix);
}

void PrefixStore::move(const std::vector<uint32_t> & place) {
    for (const auto & prefix : prefixes_) {
        CellList moved;
        prefix->cells.each([&](uint32_t cell) { moved.push(place[cell]); });
        prefix->cells = std::move(moved);
        prefix->cells.each([&](uint32_t cell) { pool_.keep(cell); });
    }
}

void PrefixStore::clear() {
    while (!prefixes_.empty()) {
        drop(prefixes_.begin());
    }
}

} // namespace tgr
