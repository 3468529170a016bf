#include "token_texts.h"

#include "log.h"

#include <algorithm>
#include <stdexcept>

namespace tgr {

void TokenTexts::prepare() const {
    std::call_once(once_, [this] {
        std::string piece(128, '\0');
        begin_.assign(1, 0);
        for (llama_token token = 0; token < n_tokens_; ++token) {
            ends_.push_back(llama_vocab_is_eog(vocab_, token));
            int32_t n = llama_token_to_piece(vocab_, token, piece.data(), int32_t(piece.size()), 0, /*special =*/true);
            if (n < 0) {
                piece.resize(size_t(-n));
                n = llama_token_to_piece(vocab_, token, piece.data(), int32_t(piece.size()), 0, true);
            }
            const std::string_view text(piece.data(), size_t(std::max(n, 0)));
            if (!ends_.back() && text.find('\0') == text.npos) {
                bytes_ += text;
            }
            begin_.push_back(bytes_.size());
        }
        for (llama_token token = 0; token < n_tokens_; ++token) {
            if (!text(token).empty()) {
                order_.push_back(token);
            }
        }
        std::sort(order_.begin(), order_.end(), [this](llama_token a, llama_token b) { return text(a) < text(b); });
        std::string_view before;
        for (const llama_token token : order_) {
            const std::string_view now = text(token);
            const auto             end = std::mismatch(now.begin(), now.end(), before.begin(), before.end()).first;
            shared_.push_back(uint32_t(end - now.begin()));
            before = now;
        }
    });
}

llama_token TokenTexts::find(const std::string & text) const {
    const AssertGuard guard;
    try {
        llama_token   tokens[2];
        const int32_t n = llama_tokenize(vocab_, text.data(), int32_t(text.size()), tokens, 2, false, true);
        return n == 1 ? tokens[0] : LLAMA_TOKEN_NULL;
    } catch (const std::out_of_range &) { // the vocabulary has no token for a part of it
        return LLAMA_TOKEN_NULL;
    }
}

} // namespace tgr
