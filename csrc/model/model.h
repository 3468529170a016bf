// The model: its weights, its vocabulary, and the llama.cpp context that decodes.
//
// In: a GGUF file; text or tokens; batches, each token with the cache cell that it goes to. Out: tokens or text; the
// logits, states and norms of the last batch. The model does not know sessions or which cells are free, and of jobs
// only whether they were cancelled.
#pragma once

#include "constrain/token_texts.h"
#include "graph/adapters.h"
#include "graph/context_memory.h"
#include "graph/graph.h"
#include "job/drafts.h"
#include "job/interrupt.h"
#include "job/records.h"
#include "machine/thread_count.h"
#include "model/batch.h"
#include "model/layer_fit.h"
#include "model/loading.h"

#include "llama-cpp.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace tgr {

// Parameters of a context for such a model, without a way to end its decodes.
llama_context_params context_params(const llama_model * model, const EngineParams & params, uint32_t n_cells);

// Number of sequences at a time.
uint32_t n_sequences(const llama_model * model, const EngineParams & params);

class Model {
public:
    // Loads the file, makes a context, and checks that every layer can be steered. Throws ModelError. `interrupt` ends
    // decodes early, `check` the load.
    Model(const EngineParams & params, Interrupt & interrupt, const LoadCheck & check);

    const EngineParams & params() const { return params_; }
    const ModelInfo &    info() const { return info_; }
    const llama_vocab *  vocab() const { return vocab_; }
    const TokenTexts &   token_texts() const { return *token_texts_; }

    // --- any thread ---

    // The weights, which live as long as somebody holds them. CancelledError after release().
    std::shared_ptr<llama_model> weights() const;

    // Text to tokens and back. CancelledError after release(), which does not wait for them.
    std::vector<llama_token> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string              detokenize(const std::vector<llama_token> & tokens, bool special,
                                        const std::vector<llama_token> & shown = {}) const;

    // Throws ArgumentError for a grammar that does not parse.
    void check_grammar(const std::string & grammar, const std::string & prefix) const;

    // --- one thread at a time: the worker, or who made the model while there is none ---

    // Null after a resize that failed for lack of memory.
    llama_context * context() const { return context_.get(); }
    void            count_graphs(EngineStats & stats) const; // adds the graphs since loading
    uint32_t        n_ctx() const { return context_ ? llama_n_ctx(context_.get()) : 0; } // cells

    bool    is_on_cpu() const { return on_cpu(weights_.get()); } // all layers
    Kernels kernels() const;                                     // kernels of most weights
    Reading reading() const;                                     // way of reading prompts

    // Enlarges a cache without a fixed size to at least n_cells, and by half where the memory and most_cells allow.
    // With `contents`, its cells, sequences and states are copied, and old and new must fit into the memory together;
    // without, the new cache is empty and takes the place of the old one. False where that cannot be; the cache has its
    // old size, and with `contents` is as it was. Injections are copied with the contents.
    bool resize(uint32_t n_cells, bool contents);

    // Makes a cache without a fixed size as small as n_cells, in which these cells are the first. No sequence may hold
    // any. False, and the cache is as it was, where the memory for both together is not there.
    bool shrink(uint32_t n_cells, const std::vector<extent> & kept);

    // Throws CapacityError, with the numbers, when the memory that is available now, and that of the present cache, are
    // too little for a cache of n_cells.
    void check_memory(uint32_t n_cells);
    bool is_known_to_fit(uint32_t n_cells) const; // check_memory() would not measure

    // The most cells that the cache may have: what the memory allows, at most `most_cells`. An estimate.
    uint32_t n_cells_possible();

    // Sets the scales of the adapters from now on; the contents of the cache were computed with the old scales. Throws
    // CapacityError, and keeps the old scales, where there is no memory for the buffers.
    void set_scales(const std::vector<float> & scales);

    std::atomic<uint32_t> most_cells{ INT32_MAX }; // the owner's bound for a cache that grows; any thread

    // Bytes of the context on all devices, and of these what decoding computes in.
    std::pair<uint64_t, uint64_t> memory() const;

    // Decodes a batch; llama_decode's status: 0 = done, 2 = interrupted.
    int32_t decode(Batch & batch);
    int32_t n_threads() const { return threads_.now(); } // threads of a step of few tokens

    // Continues to interleave weights for some seconds. False where nothing is left to do, or where it would take
    // memory that other programs need: the remaining weights stay as they are in the file.
    bool   interleave(double seconds);
    bool   has_to_interleave() const { return interleaved_->needed().has_value(); }
    size_t interleaved_bytes() const { return interleaved_ ? interleaved_->n_bytes() : 0; }

    // Turns the keys of moved tokens to their new positions. Throws Error, with what llama.cpp says, when that failed;
    // the cache is lost then.
    void apply_shift();

    // Fills the rows of the last batch: logits, their distribution, and the next tokens, several rows at a time; those
    // of a draft one after the other, as far as each token is the one that was sampled before it. Sets a row's error
    // where that failed; `closed` ends what takes long.
    void sample(Batch & batch, const std::atomic<bool> & closed);

    // State and norm of a token of the last batch, by index in it. The state is null where none was read, the norm
    // negative.
    const float * state(int32_t index) const { return graph_state(context_.get(), index); }
    float         norm(int32_t layer, int32_t index) const { return graph_norm(context_.get(), layer, index); }

    // Frees the context, and the weights unless somebody else holds them.
    void release();

private:
    void                       sample(Row & row, const std::atomic<bool> & closed) const;
    void                       load(const LoadCheck & check);
    void                       check_kind();
    void                       describe();
    llama_context_params       context_params(uint32_t n_cells) const;
    DeviceBytes                planned(uint32_t n_cells);
    std::string                obstacle(uint32_t n_cells, bool beside);
    std::string                obstacle_now(uint32_t n_cells, bool beside);
    llama_context_ptr          made_context(uint32_t n_cells);
    const DeviceBytes &        cell_bytes(); // bytes of every further cell, buffers included
    bool                       replace_context(uint32_t n_cells);
    template <class Fill> bool move_context(uint32_t n_cells, Fill && fill);
    void                       check_memory_kind();
    void                       check_injection();
    void                       check_reproducible();

    EngineParams                        params_;
    Interrupt &                         interrupt_;
    ModelInfo                           info_;
    mutable std::shared_mutex           weights_mutex_; // guards the pointer
    std::shared_ptr<llama_model>        weights_;
    bool                                in_blocks_ = false; // prompts are read in blocks, so that replies repeat
    Adapters                            adapters_;
    EngineStats                         before_;      // the graphs of contexts before this one
    std::unique_ptr<InterleavedWeights> interleaved_; // by the graphs of the context
    llama_context_ptr                   context_;
    const llama_vocab *                 vocab_ = nullptr;
    std::unique_ptr<TokenTexts>         token_texts_;

    DeviceBytes cell_bytes_;       // empty = not measured yet
    uint32_t    known_to_fit_ = 0; // cells

    ThreadCount                 threads_;
    int32_t                     n_threads_ = 1; // threads of the last step
    std::vector<llama_seq_id *> seq_ids_;       // buffer of decode
    std::vector<int32_t>        n_seq_ids_;
};

} // namespace tgr
