// Inputs and outputs of the engine, as plain data.
#pragma once

#include "base/sampling_params.h"

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tgr {

constexpr int32_t auto_layers = -2;

// Python sets every field but `rpc`: the defaults are those of its EngineConfig.
struct EngineParams {
    std::string path;
    uint32_t    n_ctx      = 0; // cells; 0 = grows to what sessions reserve
    uint32_t    n_batch    = 0;
    uint32_t    n_ubatch   = 0;
    uint32_t    n_seq_max  = 0; // 0 = chosen by the size of the vocabulary
    uint32_t prefix_cells  = 0; // cells of remembered prefixes without the longest; 0 = nothing is remembered or shared
    bool     reproducible  = false; // equal bits whatever is remembered and whatever else runs (prefixes.h)
    double   step_seconds  = 0.0;   // time of a step for prompts while other texts are written
    int32_t  n_threads     = 0;     // most threads
    bool     fixed_threads = false; // keeps their number (thread_count.h)
    int32_t  n_gpu_layers  = 0;     // -1 = all, auto_layers = as many as fit
    int32_t  n_cpu_moe     = 0;     // layers, from the first one on, whose experts stay in RAM
    int32_t  main_gpu      = 0;     // the only GPU to use; -1 = all
    std::vector<std::string>                   rpc; // addresses of servers whose devices come before the GPUs
    std::vector<float>                         tensor_split;
    int32_t                                    flash_attn = 0;               // -1 = llama.cpp decides, 0 = off, 1 = on
    ggml_type                                  type_k     = GGML_TYPE_COUNT; // none
    ggml_type                                  type_v     = GGML_TYPE_COUNT;
    std::vector<std::pair<std::string, float>> loras; // paths of adapters, with their scales
    bool                                       use_mmap  = false;
    bool                                       use_mlock = false;
};

struct ModelInfo {
    int32_t            n_vocab, n_embd, n_layer, n_ctx_train;
    llama_token        bos, eos, fim_pad; // LLAMA_TOKEN_NULL where the vocabulary has none
    uint64_t           size_bytes, n_params;
    uint64_t           cell_bytes, state_bytes; // bytes of a cell's keys and values; of a sequence's recurrent state
    bool               rolls_back;              // false: a sequence cannot go back to fewer tokens
    bool               repeats = false;         // a token has the same bits in every batch
    std::string        description;
    std::string        chat_template; // empty = none
    std::vector<float> classifier;    // output layer of a reranker, [n_classes, n_embd]; empty = none
    std::vector<llama_token>                         eog;
    std::vector<std::pair<std::string, std::string>> metadata;
    std::vector<std::string>                         devices; // device of every layer, then of the output layer
    std::vector<std::string>                         without_attention; // devices that cannot attend to such a cache
    bool                                             fitted = false;    // the engine chose how many layers are on GPUs
    bool     lowered   = false; // the engine had to take fewer, since memory ran out while it loaded
    uint32_t fit_cells = 0;     // cells of the cache beside which the layers fit
    int32_t  n_cpu_moe = 0;     // layers whose experts stay in RAM
};

// Counts since loading, and what is in use now: type, name, meaning.
#define TGR_ENGINE_STATS(FIELD)                                                                                        \
    FIELD(uint64_t, n_positions, "token positions that passed through the model, without refused drafts")              \
    FIELD(uint64_t, n_decodes, "calls of llama_decode")                                                                \
    FIELD(uint64_t, n_graphs, "graphs that were built; a step may use the last one again")                             \
    FIELD(uint64_t, n_whole_graphs, "graphs whose attention looks at the whole cache")                                 \
    FIELD(uint32_t, n_splits, "parts of the last graph, each on one device")                                           \
    FIELD(uint64_t, n_drafted, "positions that were guesses at the next tokens")                                       \
    FIELD(uint64_t, n_accepted, "guesses that were right")                                                             \
    FIELD(uint64_t, n_preemptions, "times that a text lost its cells to an older one")                                 \
    FIELD(uint64_t, n_read_again, "positions that were read again for that")                                           \
    FIELD(double, decode_seconds, "time of all decodes")                                                               \
    FIELD(double, sample_seconds, "time of all sampling")                                                              \
    FIELD(int32_t, n_threads, "threads of a step of few tokens, now")                                                  \
    FIELD(uint32_t, n_ctx, "cells of the cache")                                                                       \
    FIELD(uint32_t, n_seq_max, "sequences at a time, at most")                                                         \
    FIELD(uint32_t, cells_used, "cells that hold tokens")                                                              \
    FIELD(uint32_t, cells_peak, "… at most at a time")                                                                 \
    FIELD(uint32_t, cells_reserved, "cells that sessions own")                                                         \
    FIELD(uint32_t, cells_remembered, "cells of remembered prefixes")                                                  \
    FIELD(uint32_t, n_prefixes, "remembered prefixes")                                                                 \
    FIELD(uint32_t, n_sequences, "sequences of all sessions")                                                          \
    FIELD(uint32_t, n_sessions, "open sessions")                                                                       \
    FIELD(uint32_t, n_waiting, "requests for a session that wait")                                                     \
    FIELD(uint32_t, n_jobs, "jobs that run")                                                                           \
    FIELD(uint64_t, interleaved_bytes, "bytes of weights whose rows are interleaved")

struct EngineStats {
#define TGR_MEMBER(type, name, about) type name = 0;
    TGR_ENGINE_STATS(TGR_MEMBER)
#undef TGR_MEMBER
};

// The states of the fed tokens that an output holds.
enum class FeedStates { none, last, all };

// Work of one sequence in a job.
struct Task {
    int32_t                  sequence = -1;
    std::vector<llama_token> feed;               // appended to the sequence first
    std::vector<llama_token> history;            // tokens before the feed, for penalties only
    std::vector<llama_token> grammar_history;    // tokens that the grammar has read before the first generated one
    std::string              tail;               // newest text of the reply so far, for stop texts that began there
    int32_t                  injection  = 0;     // 0 = none
    int32_t                  n_plain    = 0;     // the last fed tokens that get `plain` instead
    int32_t                  plain      = 0;     // an injection, 0 = none
    bool                     reuse      = false; // take what is known of the feed instead of decoding it
    int32_t                  n_generate = 0;     // tokens to generate at most; the last one is not decoded
    SamplingParams           sampling;
    uint64_t                 seed = 0;
    int32_t                  part = 0; // generated tokens of a part; 0 = all
    std::vector<uint64_t>    seeds;    // seeds of the parts after the first one
    std::vector<std::string> stop;     // UTF-8 text that ends the generation
    std::vector<llama_token> shown;    // control tokens that belong to the text
    bool                     ignore_eog    = false;
    bool                     drafts        = false; // decode guesses at the next tokens along, found in the texts
    bool                     states        = false; // output the state that each generated token was sampled from
    FeedStates               feed_states   = FeedStates::none;
    bool                     feed_logprobs = false;
    bool                     norms         = false; // read the residual norms of the fed tokens
    int32_t                  n_top         = 0;     // likeliest alternatives to output for each generated token
};

enum class Finish {
    none, // nothing was to be generated, or the task runs
    length,
    stop, // an end token or a stop text
    cancelled,
};

// Numbers that a reader may keep without a copy, longer than their output.
template <class T> struct Array {
    std::shared_ptr<std::vector<T>> values = std::make_shared<std::vector<T>>();
    int32_t                         width  = 0; // length of a row; 0 = one dimension
};

struct Output {
    Array<llama_token> tokens;           // [n] generated, the end token included
    Array<float>       logprobs;         // [n] of each, temperature 1
    Array<float>       sampled_logprobs; // [n] of each, in the distribution that it was drawn from
    Array<float>       entropies;        // [n] of each token's distribution, nats
    Array<float>       states;           // [n][n_embd]
    Array<float>       feed_states;      // [0, 1 or n_feed][n_embd]
    Array<float>       feed_logprobs;    // [n_feed - 1] of feed[i] given the tokens before it
    Array<float>       norms;            // [n_feed][n_layer] ‖h‖₂ of the fed tokens, NaN = not measured
    Array<llama_token> top_ids;          // [n][n_top]
    Array<float>       top_logprobs;     // [n][n_top]
    int32_t            n_decoded = 0;    // positions that this task decoded
    int32_t            n_reused  = 0;    // fed tokens that it took from the cache instead
    int32_t            n_refused = 0;    // positions of drafts that were decoded in addition, and refused
    Finish             finish    = Finish::none;

    // The arrays with a row for each generated token, with their names. The others describe the fed tokens.
    template <class F> static void each_token_array(F && visit) {
        visit("tokens", &Output::tokens);
        visit("logprobs", &Output::logprobs);
        visit("sampled_logprobs", &Output::sampled_logprobs);
        visit("entropies", &Output::entropies);
        visit("states", &Output::states);
        visit("top_ids", &Output::top_ids);
        visit("top_logprobs", &Output::top_logprobs);
    }

    // Joins this generation and the one that continued it; the fed tokens are those of this one.
    Output joined(const Output & more) const;

    // The first n of more tokens.
    Output beginning(size_t n) const;

    // Adds the tokens of `more` from `first` on.
    void append(const Output & more, size_t first);

    // Removes the first n tokens and returns them.
    Output split(size_t n);
};

// A prompt for which a remembered prefix is searched.
struct Prompt {
    std::vector<llama_token> tokens;
    std::string              digest;          // digest of its control vector and its owner; empty = none
    uint32_t                 norm_stride = 0; // residual norms are needed, those of the last layer of every such token
};

// Tokens of a block, where the batches are not smaller. Fewer are read slower, of more a repeated prompt reads more
// anew.
constexpr uint32_t most_in_block = 64;

// Way of reading prompts: in blocks of `block` tokens from the first one on; 0 = in any batches, for instance where a
// token has the same bits in every one.
struct Reading {
    uint32_t block = 0;

    // Number of the n leading tokens of a prompt that are in whole blocks.
    uint32_t whole(uint32_t n) const { return block ? n / block * block : n; }

    // Number of the n tokens behind the first n_read of a prompt that the next block has.
    size_t next(size_t n_read, size_t n) const { return block ? std::min<size_t>(n, block - n_read % block) : n; }
};

} // namespace tgr
