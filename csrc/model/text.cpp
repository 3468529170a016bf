// The vocabulary: text to tokens and back.

#include "base/errors.h"
#include "model/model.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace tgr {

// Calls f in a thread with a stack of that many bytes, of which the system gives what is used.
template <class F> static void with_stack(size_t bytes, const F & f) {
    struct Call {
        const F &          f;
        std::exception_ptr error;
    } call{ f, {} };
    const auto run = [](void * p) -> void * {
        auto & call = *static_cast<Call *>(p);
        try {
            call.f();
        } catch (...) {
            call.error = std::current_exception();
        }
        return nullptr;
    };
    pthread_attr_t attributes;
    pthread_t      thread;
    pthread_attr_init(&attributes);
    const bool started =
        pthread_attr_setstacksize(&attributes, bytes) == 0 && pthread_create(&thread, &attributes, run, &call) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) {
        throw CapacityError("the text has a word that is too long for the memory here; divide it");
    }
    pthread_join(thread, nullptr);
    if (call.error) {
        std::rethrow_exception(call.error);
    }
}

// The length of the longest word: bytes of one kind, which are letters, digits, white space or marks. What lies beyond
// ASCII counts as letters, but for the marks of Chinese and Japanese (U+3000 to U+303F, U+FF00 to U+FF7F).
static size_t longest_word(const std::string & text) {
    const auto kind = [&](size_t i) {
        const auto c    = (unsigned char)text[i];
        const auto next = (unsigned char)(i + 1 < text.size() ? text[i + 1] : 0);
        if (c >= 0x80) {
            return (c == 0xe3 && next == 0x80) || (c == 0xef && (next == 0xbc || next == 0xbd)) ? 3 : 0;
        }
        return (c | 0x20) - 'a' < 26u ? 0 : c - '0' < 10u ? 1 : c == ' ' || c - '\t' < 5u ? 2 : 3;
    };
    size_t longest = 0, word = 0;
    int    before = -1;
    for (size_t i = 0; i < text.size(); ++i) {
        const int now = (text[i] & 0xc0) == 0x80 ? before : kind(i); // what continues a character is of its kind
        word          = now == before ? word + 1 : 1;
        longest       = std::max(longest, word);
        before        = now;
    }
    return longest;
}

// The length of the longest line and of the longest white space.
static size_t longest_run(const std::string & text) {
    size_t longest = 0, line = 0, space = 0;
    for (const char c : text) {
        line    = c == '\n' ? 0 : line + 1;
        space   = c == ' ' || (c >= '\t' && c <= '\r') ? space + 1 : 0;
        longest = std::max({ longest, line, space });
    }
    return longest;
}

static constexpr size_t TEXT_MOST = 1 << 29; // bytes: llama.cpp counts in 32 bits
static constexpr size_t WORD_MOST = 1 << 18; // bytes: a match of std::regex takes some hundred times its length

std::vector<llama_token> Model::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    if (text.size() > TEXT_MOST) {
        throw ArgumentError("the text has ", text.size(), " bytes, but may have ", TEXT_MOST, "; divide it");
    }
    if (const size_t length = longest_word(text); length > WORD_MOST) {
        throw ArgumentError("the text has a word of ", length, " bytes, but a word may have ", WORD_MOST,
                            "; divide it");
    }
    const auto               held = weights();
    std::vector<llama_token> tokens(text.size() + 8); // more only where a byte that was added has no token
    const auto               fill = [&] {
        int32_t n = -1;
        while (n < 0) { // there are more than that
            n = llama_tokenize(vocab_, text.data(), int32_t(text.size()), tokens.data(), int32_t(tokens.size()),
                               add_special, parse_special);
            tokens.resize(size_t(std::abs(n)));
        }
    };
    try {
        // Many vocabularies divide a text by std::regex, which takes some hundred bytes of stack for every character of
        // a match; and no match is longer than a line with the white space after it.
        const size_t run = longest_run(text);
        if (run <= 2048) {
            fill();
        } else {
            with_stack((run / 32 + 32) << 16, fill);
        }
    } catch (const Error &) {
        throw;
    } catch (const std::out_of_range &) {
        tokens.assign(1, LLAMA_TOKEN_NULL);
    } catch (const std::runtime_error &) { // llama.cpp finds the vocabulary damaged
        tokens.assign(1, LLAMA_TOKEN_NULL);
    }
    if (std::find(tokens.begin(), tokens.end(), LLAMA_TOKEN_NULL) != tokens.end()) {
        throw ModelError("the vocabulary of ", params_.path,
                         " has no token for a part of this text; use plain letters, or another model");
    }
    return tokens;
}

void Model::check_grammar(const std::string & grammar, const std::string & prefix) const {
    const auto     held = weights();
    SamplingParams params;
    params.grammar        = grammar;
    params.grammar_prefix = prefix;
    Sampler(*token_texts_, params, 0);
}

std::string Model::detokenize(const std::vector<llama_token> & tokens, bool special,
                              const std::vector<llama_token> & shown) const {
    const auto held = weights();
    check_tokens("the text", tokens, info_.n_vocab);
    std::string text;
    for (const llama_token token : tokens) {
        text += piece_of(vocab_, token, special || std::find(shown.begin(), shown.end(), token) != shown.end());
    }
    return text;
}

} // namespace tgr
