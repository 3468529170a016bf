// The draft model: a small model with the vocabulary of the large one, which guesses what texts continue with.
//
// In: texts as tokens. Out: the tokens that it would write next, the likeliest one at every place. It keeps what it has
// read of every text that it follows in a cache of its own, with the rules of the large model's: a text goes back to
// what is still true of it, and later texts take what they have in common with earlier ones. It never decides a token
// of a text, so its failures only end the guesses. Worker only, but for forget() and the numbers.
#pragma once

#include "cache.h"
#include "drafts.h"
#include "interrupt.h"
#include "model.h"

#include <cstdint>
#include <map>
#include <vector>

namespace tgr {

class DraftModel {
public:
    static constexpr size_t MOST_TEXTS = 16; // at a time

    // Loads params.draft_model, on the devices and with the types of the target. Throws ModelError, also where the
    // vocabularies differ and where the target cannot go back to fewer tokens.
    DraftModel(const EngineParams & params, const Model & target, Interrupt & interrupt, const LoadCheck & check);

    double price() const { return price_; } // the time of a step, as a share of the target's: by their sizes

    // Bytes of its context on all devices, and of these what decoding computes in.
    std::pair<uint64_t, uint64_t> memory() const { return { model_.context_bytes(), model_.buffer_bytes() }; }

    // A text in a step.
    struct Text {
        const void * key;           // the same as long as the text is written
        Tokens       tokens;        // all of it, the newest one too
        size_t       n_guesses = 0; // to make, at least 1
        Tokens       guesses{};     // made; fewer behind an end token, none of a text that is read for longer
        size_t       n_decoded = 0; // positions that this took
    };

    // Makes room for a text of n_cells tokens at most. `n_target` is the size of the target's cache, which this one
    // takes too when it is empty. False where there is no room. The engine's lock is held.
    bool follow(const void * key, const Tokens & tokens, size_t n_cells, uint32_t n_target);

    bool follows(const void * key) const { return followed_.count(key) > 0; }

    bool has_read(const void * key) const; // all that there was once

    size_t n_unread(const void * key, const Tokens & tokens) const; // tokens that it has not read yet

    // Continues texts that it follows, and reads at most one batch of tokens for it, and most_read of those that it has
    // to read before it can guess. False when it was interrupted.
    bool guess(std::vector<Text> & texts, size_t most_read);

    // The text is over. The engine's lock is held, and nobody guesses.
    void forget(const void * key);

    void release() { model_.release(); }

private:
    struct Place {
        uint64_t session;
        int32_t  sequence;
        bool     has_read = false;
    };
    struct Part {
        Text * text;
        size_t begin, n; // of its tokens and guesses
        bool   draws;    // the next token
    };

    bool        read(std::vector<Text> & texts, size_t most);
    bool        draw(std::vector<Text> & texts);
    bool        decode(const std::vector<Part> & parts);
    void        add(const Part & part);
    void        undo(const std::vector<Part> & parts);
    llama_token likeliest(int32_t batch_index) const;
    Tokens      part_of(const Text & text, size_t begin, size_t n) const;
    Sequence &  sequence_of(const void * key);

    const llama_vocab *                target_vocab_;
    Model                              model_;
    CacheAllocator                     cache_;
    Batch                              batch_;
    std::vector<std::vector<uint32_t>> planned_; // cells of the batch's parts
    std::map<const void *, Place>      followed_;
    uint64_t                           next_session_ = 1;
    double                             price_        = 1.0;
    bool                               interrupted_  = false; // the last decode
    bool                               failed_       = false; // it is not asked again
};

} // namespace tgr
