// The texts of all tokens, sorted, so that neighbours have a common beginning, which a grammar reads only once.
#pragma once

#include "llama.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tgr {

// A token's text, that of a control token only if `special`.
std::string piece_of(const llama_vocab * vocab, llama_token token, bool special);

class TokenTexts {
public:
    explicit TokenTexts(const llama_vocab * vocab);

    // A vocabulary of these texts, for tests; an empty text ends a reply.
    explicit TokenTexts(std::vector<std::string> texts);

    int32_t n_tokens() const { return n_tokens_; }

    // An identity that no other object has had.
    uint64_t serial() const { return serial_; }

    // Reads the texts from the vocabulary, once; the functions below need it. Any thread.
    void prepare() const;

    // Empty for a token that ends the text, and for one that a grammar cannot read.
    std::string_view text(llama_token token) const {
        return std::string_view(bytes_).substr(begin_[token], begin_[token + 1] - begin_[token]);
    }
    bool ends(llama_token token) const { return ends_[token]; }

    // Whether its text is part of a reply's text: a control token's is not.
    bool is_visible(llama_token token) const { return visible_[token]; }

    // The tokens with a text, sorted by it, and how many bytes each has in common with the one before.
    const std::vector<llama_token> & order() const { return order_; }
    const std::vector<uint32_t> &    shared() const { return shared_; }

    // Text of the i-th of order(), next to those around it in memory.
    std::string_view sorted_text(size_t i) const {
        return std::string_view(sorted_).substr(sorted_begin_[i], sorted_begin_[i + 1] - sorted_begin_[i]);
    }

    // Tokens that end the text.
    const std::vector<llama_token> & end_tokens() const { return end_tokens_; }

    // The token that is written so, for instance <|im_end|>; negative = none. Needs the vocabulary.
    llama_token find(const std::string & text) const;

private:
    const llama_vocab *              vocab_;
    int32_t                          n_tokens_;
    uint64_t                         serial_;
    std::vector<std::string>         given_; // texts where there is no vocabulary
    mutable std::once_flag           once_;
    mutable std::string              bytes_;
    mutable std::vector<size_t>      begin_; // [n_tokens + 1]
    mutable std::vector<bool>        ends_, visible_;
    mutable std::vector<llama_token> order_;
    mutable std::vector<uint32_t>    shared_;
    mutable std::vector<llama_token> end_tokens_;
    mutable std::string              sorted_;
    mutable std::vector<size_t>      sorted_begin_; // [order's size + 1]
};

} // namespace tgr
