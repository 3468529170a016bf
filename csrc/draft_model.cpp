#include "draft_model.h"

#include "errors.h"
#include "log.h"

#include <algorithm>
#include <string>

namespace tgr {

static constexpr size_t MOST_TOGETHER = 16; // unread tokens of a text that go into a batch with those of others

//
// loading
//

static EngineParams params_of(const EngineParams & target) {
    EngineParams params = target;
    params.path         = target.draft_model;
    params.draft_model.clear();
    params.n_seq_max    = DraftModel::MOST_TEXTS;
    params.reproducible = false; // its guesses depend on what it has read before, which no option changes
    return params;
}

static const Model & checked(const Model & target) {
    if (!target.info().rolls_back) {
        throw ModelError(target.params().path + " has recurrent layers, which cannot take back the guesses of a draft "
                                                "model; leave draft_model out");
    }
    return target;
}

// Families pad their vocabularies to sizes that differ a little, and name unused control tokens as they like.
static void check_vocabulary(const Model & target, const Model & draft) {
    static constexpr int32_t MOST_PADDING = 128;

    const std::string pair = draft.params().path + " cannot draft for " + target.params().path + ": ";
    const std::string out  = "; use a smaller model of the same family, or leave draft_model out";
    const int32_t     ours = target.info().n_vocab, its = draft.info().n_vocab;
    if (std::abs(ours - its) > MOST_PADDING) {
        throw ModelError(pair + "its vocabulary has " + std::to_string(its) + " tokens, the model's " +
                         std::to_string(ours) + out);
    }
    const auto is_text = [](const llama_vocab * vocab, llama_token token) {
        return (llama_vocab_get_attr(vocab, token) & (LLAMA_TOKEN_ATTR_NORMAL | LLAMA_TOKEN_ATTR_BYTE)) != 0;
    };
    for (llama_token token = 0; token < std::min(ours, its); ++token) {
        const std::string mine  = llama_vocab_get_text(target.vocab(), token);
        const std::string other = llama_vocab_get_text(draft.vocab(), token);
        if (mine != other && is_text(target.vocab(), token) && is_text(draft.vocab(), token)) {
            throw ModelError(pair + "token " + std::to_string(token) + " is '" + printable(other) +
                             "' in its vocabulary of " + std::to_string(its) + " tokens, '" + printable(mine) +
                             "' in the model's of " + std::to_string(ours) + out);
        }
    }
}

// A step on a CPU takes as long as reading the weights. On a GPU, where the operations of a layer have to be started,
// one of any size takes half as long at least as one of the target.
static double price_of(const Model & target, const Model & draft) {
    const double bytes  = double(draft.info().size_bytes) / double(std::max<uint64_t>(target.info().size_bytes, 1));
    const double layers = double(draft.info().n_layer) / double(std::max(target.info().n_layer, 1));
    return target.is_on_gpu() ? std::max(bytes, 0.5 * layers) : bytes;
}

DraftModel::DraftModel(const EngineParams & params, const Model & target, Interrupt & interrupt,
                       const LoadCheck & check) :
    target_vocab_(checked(target).vocab()),
    model_(params_of(params), interrupt, check),
    cache_(model_) {
    if (!model_.info().rolls_back) {
        throw ModelError(model_.params().path + " has recurrent layers, which cannot take back refused guesses, so it "
                                                "cannot be a draft model; use a transformer such as Qwen3");
    }
    check_vocabulary(target, model_);
    price_ = price_of(target, model_);
}

//
// texts
//

Sequence & DraftModel::sequence_of(const void * key) {
    const Place & place = followed_.at(key);
    return cache_.sequence(place.session, place.sequence);
}

static uint32_t n_alike(const Tokens & known, const Tokens & text) {
    const size_t most = std::min(known.size(), text.size());
    return uint32_t(std::mismatch(known.begin(), known.begin() + most, text.begin()).first - known.begin());
}

bool DraftModel::has_read(const void * key) const {
    const auto it = followed_.find(key);
    return it != followed_.end() && it->second.has_read;
}

size_t DraftModel::n_unread(const void * key, const Tokens & tokens) const {
    const auto it = followed_.find(key);
    if (it == followed_.end()) {
        return tokens.size();
    }
    const Reservation & held = cache_.reservations().at(it->second.session);
    return tokens.size() - n_alike(held.sequences.at(it->second.sequence).tokens, tokens);
}

bool DraftModel::follow(const void * key, const Tokens & tokens, size_t n_cells, uint32_t n_target) {
    if (failed_ || n_cells > INT32_MAX) {
        return false;
    }
    if (follows(key)) {
        return true;
    }
    const uint64_t session = next_session_++;
    Prompt         prompt;
    prompt.tokens = { tokens.begin(), tokens.end() - 1 };
    try {
        if (cache_.reservations().empty() && n_target > model_.n_ctx()) {
            cache_.grow(n_target);
        }
        cache_.check(uint32_t(n_cells), 1);
        if (!cache_.reserve(session, uint32_t(n_cells), 1, prompt)) {
            return false;
        }
        const int32_t sequence = cache_.add_sequence(session);
        followed_[key]         = { session, sequence, false };
        cache_.reuse(session, sequence, prompt);
    } catch (const CapacityError &) {
        return false;
    } catch (const std::exception &) { // no memory, or a throw from llama.cpp
        failed_ = true;
        return false;
    }
    return true;
}

void DraftModel::forget(const void * key) {
    const auto it = followed_.find(key);
    if (it == followed_.end()) {
        return;
    }
    const Place place = it->second;
    followed_.erase(it);
    try {
        cache_.remember(place.session, place.sequence);
    } catch (const std::exception &) { // no memory: the text is read again
    }
    cache_.release(place.session);
}

//
// guesses
//

bool DraftModel::guess(std::vector<Text> & texts, size_t most_read) {
    const auto n_vocab = model_.info().n_vocab;
    for (Text & text : texts) { // padding of the target's vocabulary, which this one may not have
        const bool known =
            std::all_of(text.tokens.begin(), text.tokens.end(), [&](llama_token t) { return t < n_vocab; });
        text.n_guesses      = known ? text.n_guesses : 0;
        const Place & place = followed_.at(text.key);
        const auto    n     = n_alike(sequence_of(text.key).tokens, text.tokens);
        cache_.truncate(place.session, place.sequence, std::min(n, uint32_t(text.tokens.size()) - 1));
    }
    interrupted_ = false;
    if (!read(texts, most_read) || !draw(texts)) {
        for (Text & text : texts) {
            text.guesses.clear();
        }
    }
    return !interrupted_;
}

// Reads all but the newest tokens of each text, alone: the rest goes together with those of others. One batch in all,
// so that nobody waits long; a text that has more makes no guesses yet.
bool DraftModel::read(std::vector<Text> & texts, size_t most) {
    const size_t n_batch = llama_n_batch(model_.context());
    const size_t kept    = std::max<size_t>(std::min(MOST_TOGETHER, n_batch / texts.size()), 1);
    size_t       left    = std::min(n_batch, most);
    for (Text & text : texts) {
        const size_t begin  = sequence_of(text.key).size();
        const size_t unread = text.tokens.size() - begin;
        if (text.n_guesses == 0 || unread <= kept) {
            continue;
        }
        const size_t n = std::min(left, unread - 1);
        if (n > 0 && !decode({ { &text, begin, n, false } })) {
            return false;
        }
        left -= n;
        text.n_guesses = unread - n <= kept ? text.n_guesses : 0;
    }
    return true;
}

bool DraftModel::draw(std::vector<Text> & texts) {
    const auto is_done = [&](const Text & text) {
        return text.guesses.size() >= text.n_guesses ||
               (!text.guesses.empty() && llama_vocab_is_eog(target_vocab_, text.guesses.back()));
    };
    while (true) {
        std::vector<Part> parts;
        for (Text & text : texts) {
            if (!is_done(text)) {
                const size_t begin = sequence_of(text.key).size();
                parts.push_back({ &text, begin, text.tokens.size() + text.guesses.size() - begin, true });
            }
        }
        if (parts.empty()) {
            break;
        }
        if (!decode(parts)) {
            return false;
        }
    }
    for (Text & text : texts) {
        if (!text.guesses.empty() && llama_vocab_is_eog(target_vocab_, text.guesses.back())) {
            text.guesses.pop_back();
        }
    }
    return true;
}

Tokens DraftModel::part_of(const Text & text, size_t begin, size_t n) const {
    Tokens part;
    for (size_t i = begin; i < begin + n; ++i) {
        part.push_back(i < text.tokens.size() ? text.tokens[i] : text.guesses[i - text.tokens.size()]);
    }
    return part;
}

void DraftModel::add(const Part & part) {
    const Place &    place    = followed_.at(part.text->key);
    const Sequence & sequence = cache_.sequence(place.session, place.sequence);
    const auto n_free = [&held = cache_.of(place.session)] { return held.cells.size() - held.n_used - held.n_planned; };
    if (part.n > n_free()) { // others use cells of it
        cache_.recall(place.session);
    }
    if (part.n > n_free()) {
        throw CapacityError("no cells are left for a text of the draft model");
    }
    auto planned = cache_.plan(place.session, { place.sequence }, { uint32_t(part.n) });
    planned_.push_back(std::move(planned.front()));
    CellList view = sequence.cells;
    for (size_t i = 0; i < part.n; ++i) {
        const uint32_t cell = planned_.back()[i];
        view.push(cell);
        batch_.cells.push_back(cell);
        batch_.positions.push_back(llama_pos(part.begin + i));
        batch_.sequences.push_back(place.sequence);
        batch_.output.push_back(part.draws && i + 1 == part.n);
        batch_.injections.push_back(0);
        batch_.view_of.push_back(int32_t(batch_.views.size()));
    }
    batch_.views.push_back(view.runs());
    const Tokens tokens = part_of(*part.text, part.begin, part.n);
    batch_.tokens.insert(batch_.tokens.end(), tokens.begin(), tokens.end());
}

// False when it was interrupted, had no cells, or failed and is not asked again.
bool DraftModel::decode(const std::vector<Part> & parts) {
    batch_.clear();
    planned_.clear();
    try {
        for (const Part & part : parts) {
            add(part);
        }
        cache_.apply();
        failed_              = failed_ || !cache_.take_fault().empty();
        const int32_t status = failed_ ? -1 : model_.decode(batch_);
        interrupted_         = status == 2;
        failed_              = failed_ || (status != 0 && !interrupted_);
        if (status != 0) {
            undo(parts);
            return false;
        }
    } catch (const CapacityError &) {
        undo(parts);
        return false;
    } catch (const std::exception &) { // no memory, or a throw from llama.cpp
        failed_ = true;
        undo(parts);
        return false;
    }
    size_t end = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
        const Part &  part  = parts[i];
        const Place & place = followed_.at(part.text->key);
        Sequence &    to    = sequence_of(part.text->key);
        for (size_t n = 0; n < part.n; ++n, ++end) {
            cache_.append(place.session, to, batch_.tokens[end], planned_[i][n], Injected());
        }
        part.text->n_decoded += part.n;
        if (part.draws) {
            followed_.at(part.text->key).has_read = true;
            part.text->guesses.push_back(likeliest(int32_t(end) - 1));
        }
    }
    return true;
}

void DraftModel::undo(const std::vector<Part> & parts) {
    for (size_t i = 0; i < planned_.size(); ++i) {
        const Place & place = followed_.at(parts[i].text->key);
        cache_.unplan(place.session, planned_[i].data(), planned_[i].size());
        cache_.undo_decode(place.session, place.sequence);
    }
}

// Among the tokens of both vocabularies.
llama_token DraftModel::likeliest(int32_t batch_index) const {
    const float * logits = llama_get_logits_ith(model_.context(), batch_index);
    const int32_t n      = std::min(model_.info().n_vocab, llama_vocab_n_tokens(target_vocab_));
    return llama_token(std::max_element(logits, logits + n) - logits);
}

} // namespace tgr
