#include "constrain/token_texts.h"

#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace tgr {

static std::atomic<uint64_t> last_serial{ 0 };

TokenTexts::TokenTexts(const llama_vocab * vocab) :
    vocab_(vocab),
    n_tokens_(llama_vocab_n_tokens(vocab)),
    serial_(++last_serial) {}

TokenTexts::TokenTexts(std::vector<std::string> texts) :
    vocab_(nullptr),
    n_tokens_(int32_t(texts.size())),
    serial_(++last_serial),
    given_(std::move(texts)) {}

std::string piece_of(const llama_vocab * vocab, llama_token token, bool special) {
    char          piece[128];
    const int32_t n = llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, special);
    if (n >= 0) {
        return { piece, size_t(n) };
    }
    std::string longer(size_t(-n), '\0');
    llama_token_to_piece(vocab, token, longer.data(), int32_t(longer.size()), 0, special);
    return longer;
}

void TokenTexts::prepare() const {
    std::call_once(once_, [this] {
        begin_.assign(1, 0);
        for (llama_token token = 0; token < n_tokens_; ++token) {
            const std::string text = vocab_ ? piece_of(vocab_, token, true) : given_[size_t(token)];
            ends_.push_back(vocab_ ? llama_vocab_is_eog(vocab_, token) : text.empty());
            if (!ends_.back() && text.find('\0') == text.npos) {
                bytes_ += text;
            }
            begin_.push_back(bytes_.size());
            visible_.push_back(!this->text(token).empty() && (!vocab_ || piece_of(vocab_, token, false) == text));
        }
        for (llama_token token = 0; token < n_tokens_; ++token) {
            if (!text(token).empty()) {
                order_.push_back(token);
            }
            if (ends(token)) {
                end_tokens_.push_back(token);
            }
        }
        std::sort(order_.begin(), order_.end(), [this](llama_token a, llama_token b) { return text(a) < text(b); });
        std::string_view before;
        sorted_begin_.assign(1, 0);
        for (const llama_token token : order_) {
            const std::string_view now = text(token);
            const auto             end = std::mismatch(now.begin(), now.end(), before.begin(), before.end()).first;
            shared_.push_back(uint32_t(end - now.begin()));
            sorted_ += now;
            sorted_begin_.push_back(sorted_.size());
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
