// The tokens that spell the visible text of a reply, as a tree of bytes: what several texts may continue with is found
// by walking along them, without a scan of the vocabulary for each.
#pragma once

#include "token_texts.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace tgr {

class TokenTrie {
public:
    static constexpr size_t   LONGEST = 256; // bytes of a token: walks may recurse
    static constexpr uint32_t NONE    = 0;   // no node: the root is nobody's child

    struct Node {
        uint32_t first_child = 0;
        uint32_t first_token = 0, end_token = 0; // in tokens(): those that end here
        uint16_t n_children = 0;
        uint8_t  byte       = 0;
    };

    // Without tokens that end a text, are not part of it, or have more than LONGEST bytes.
    explicit TokenTrie(const TokenTexts & texts);

    const Node & operator[](uint32_t node) const { return nodes_[node]; }

    // Sorted by their texts.
    const std::vector<llama_token> & tokens() const { return tokens_; }

    uint32_t child(uint32_t node, uint8_t byte) const;

    // Calls f(length) with the length of every token's text that `text` begins with, shortest first.
    template <class F> void each_beginning(std::string_view text, F && f) const {
        uint32_t node = 0;
        for (size_t i = 0; i < text.size(); ++i) {
            if ((node = child(node, uint8_t(text[i]))) == NONE) {
                return;
            }
            if (nodes_[node].first_token < nodes_[node].end_token) {
                f(i + 1);
            }
        }
    }

private:
    std::vector<Node>        nodes_; // the children of one are next to each other, sorted by their bytes
    std::vector<llama_token> tokens_;
    uint32_t                 roots_[256] = {};
};

} // namespace tgr
