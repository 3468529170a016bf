#include "token_trie.h"

#include <algorithm>

namespace tgr {

TokenTrie::TokenTrie(const TokenTexts & texts) {
    for (const llama_token token : texts.order()) {
        if (texts.is_visible(token) && texts.text(token).size() <= LONGEST) {
            tokens_.push_back(token);
        }
    }
    struct Range {
        uint32_t begin, end; // tokens that begin alike
    };
    std::vector<Range> ranges{ { 0, uint32_t(tokens_.size()) } }; // of each node
    nodes_.emplace_back();
    size_t depth = 0, next_depth = 1; // nodes are made level by level
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (i == next_depth) {
            ++depth;
            next_depth = nodes_.size();
        }
        const auto [begin, end] = ranges[i];
        uint32_t at             = begin;
        while (at < end && texts.text(tokens_[at]).size() == depth) {
            ++at;
        }
        nodes_[i].first_token = begin;
        nodes_[i].end_token   = at;
        nodes_[i].first_child = uint32_t(nodes_.size());
        while (at < end) {
            const auto     byte_of = [&](uint32_t k) { return uint8_t(texts.text(tokens_[k])[depth]); };
            const uint8_t  byte    = byte_of(at);
            const uint32_t from    = at;
            while (at < end && byte_of(at) == byte) {
                ++at;
            }
            Node node;
            node.byte = byte;
            nodes_.push_back(node);
            ranges.push_back({ from, at });
            ++nodes_[i].n_children;
        }
    }
    for (uint32_t i = 0; i < nodes_[0].n_children; ++i) {
        roots_[nodes_[1 + i].byte] = 1 + i;
    }
}

uint32_t TokenTrie::child(uint32_t node, uint8_t byte) const {
    if (node == 0) {
        return roots_[byte];
    }
    const Node & from  = nodes_[node];
    const auto   begin = nodes_.begin() + from.first_child, end = begin + from.n_children;
    const auto   found = std::lower_bound(begin, end, byte, [](const Node & one, uint8_t b) { return one.byte < b; });
    return found != end && found->byte == byte ? uint32_t(found - nodes_.begin()) : NONE;
}

} // namespace tgr
