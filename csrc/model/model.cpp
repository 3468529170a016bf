// Decoding, and what is known of the model. Weights are loaded by loading.cpp; the context is in context.cpp, the
// vocabulary in text.cpp.

#include "model/model.h"

#include "base/errors.h"
#include "base/log.h"
#include "graph/memory.h"
#include "graph/pooling.h"
#include "machine/available.h"
#include "machine/rpc.h"
#include "model/model_file.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tgr {

static constexpr uint32_t few_cells      = 256;     // of a cache that grows, at the start
static constexpr uint64_t left_to_others = 1 << 30; // bytes of RAM that stay available when weights are interleaved

Model::Model(const EngineParams & params, Interrupt & interrupt, const LoadCheck & check) :
    params_(params),
    interrupt_(interrupt),
    threads_(params.n_threads, false) {
    LayerFit fit(params, check);
    for (bool is_loaded = false; !is_loaded;) {
        context_.reset();
        weights_.reset();
        fit.apply(params_);
        try {
            load(check);
            is_loaded = true;
        } catch (const Error & error) {
            const bool lacks_memory =
                dynamic_cast<const MemoryError *>(&error) || dynamic_cast<const CapacityError *>(&error);
            if (!lacks_memory || !fit.lower()) {
                throw;
            }
        }
    }
    info_.fitted    = fit.was_needed();
    info_.lowered   = fit.is_lowered();
    info_.fit_cells = fit.n_cells();
    info_.n_cpu_moe = params_.n_cpu_moe;
    threads_        = ThreadCount(params_.n_threads, !params_.fixed_threads && is_on_cpu());
    check_memory_kind();
    check_injection();
    check_reproducible();
}

void Model::load(const LoadCheck & check) {
    weights_     = load_weights(params_, check);
    interleaved_ = std::make_unique<InterleavedWeights>();
    check_kind();
    adapters_ = Adapters(weights_.get(), params_); // before the context, whose graphs have room for them
    info_     = ModelInfo();
    describe();
    params_.n_seq_max      = n_sequences(weights_.get(), params_);
    const uint32_t n_cells = params_.n_ctx ? params_.n_ctx : few_cells;
    if (const std::string why = obstacle(n_cells, /*beside =*/true); !why.empty()) {
        throw CapacityError(why);
    }
    context_ = made_context(n_cells);
}

template <class Read> static std::string read_text(Read && read) {
    std::string text(256, '\0');
    int32_t     n = read(text.data(), text.size());
    if (n >= int32_t(text.size())) {
        text.resize(size_t(n) + 1);
        n = read(text.data(), text.size());
    }
    text.resize(n < 0 ? 0 : size_t(n));
    return text;
}

void Model::check_kind() {
    const AssertGuard guard;
    llama_model *     model = weights_.get();
    vocab_                  = llama_model_get_vocab(model);
    token_texts_            = std::make_unique<TokenTexts>(vocab_);
    if (!llama_model_has_decoder(model) || llama_model_has_encoder(model) || llama_model_is_diffusion(model)) {
        throw ModelError(params_.path, " holds no decoder-only model; use a transformer such as Qwen3");
    }
    if (looks_ahead(model)) {
        refuse_encoder(params_.path);
    }
    if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) {
        throw ModelError(params_.path, " holds no vocabulary; use a file with tokenizer metadata");
    }
    if ((llama_vocab_get_add_bos(vocab_) && llama_vocab_bos(vocab_) == LLAMA_TOKEN_NULL) ||
        (llama_vocab_get_add_eos(vocab_) && llama_vocab_eos(vocab_) == LLAMA_TOKEN_NULL) ||
        (llama_vocab_get_add_sep(vocab_) && llama_vocab_sep(vocab_) == LLAMA_TOKEN_NULL)) {
        refuse(params_.path, "wants a begin, end or separator token around a text, but has none");
    }
}

void Model::describe() {
    const AssertGuard guard;
    llama_model *     model = weights_.get();
    info_.n_vocab           = llama_vocab_n_tokens(vocab_);
    info_.n_embd            = llama_model_n_embd(model);
    info_.n_layer           = llama_model_n_layer(model);
    info_.n_ctx_train       = llama_model_n_ctx_train(model);
    info_.rolls_back        = !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
    info_.bos               = llama_vocab_bos(vocab_);
    info_.eos               = llama_vocab_eos(vocab_);
    info_.fim_pad           = llama_vocab_fim_pad(vocab_);
    info_.size_bytes        = llama_model_size(model);
    info_.n_params          = llama_model_n_params(model);
    info_.description       = read_text([&](char * to, size_t n) { return llama_model_desc(model, to, n); });
    info_.classifier        = classifier_of(model);
    if (const char * chat = llama_model_chat_template(model, nullptr)) {
        info_.chat_template = chat;
    }
    for (llama_token token = 0; token < info_.n_vocab; ++token) {
        if (llama_vocab_is_eog(vocab_, token)) {
            info_.eog.push_back(token);
        }
    }
    for (int32_t i = 0; i < llama_model_meta_count(model); ++i) {
        info_.metadata.emplace_back(
            read_text([&](char * to, size_t n) { return llama_model_meta_key_by_index(model, i, to, n); }),
            read_text([&](char * to, size_t n) { return llama_model_meta_val_str_by_index(model, i, to, n); }));
    }
    for (int32_t layer = 0; layer <= info_.n_layer; ++layer) {
        info_.devices.emplace_back(layer_device(model, layer));
    }
    info_.without_attention = without_attention(model, params_.type_k, params_.type_v);
}

uint32_t n_sequences(const llama_model * model, const EngineParams & params) {
    const uint64_t bytes = std::max<uint64_t>(memory_state_bytes(model), 1);
    if (bytes > llama_model_size(model)) {
        refuse(params.path, "says that a text's recurrent state has ", bytes, " bytes, more than its weights have");
    }
    if (params.n_seq_max != 0) {
        return params.n_seq_max;
    }
    // states of recurrent layers that take half a gigabyte; no fewer than a search with the default options needs
    const auto n_states = uint32_t(std::max<uint64_t>((uint64_t(512) << 20) / bytes, 10));
    // output rows of a large vocabulary are large
    uint32_t n = std::min(llama_vocab_n_tokens(llama_model_get_vocab(model)) <= 16384 ? 256u : 96u, n_states);
    if (params.reproducible) { // who comes first must not depend on what was before (Scheduler::schedule)
        n = std::min(n, std::max(params.n_batch * 3 / 4, 1u));
    }
    return n;
}

void Model::check_memory_kind() {
    const memory_kind kind = memory_of(context_.get());
    if (!kind.cells && !kind.recurrent) {
        throw ModelError(params_.path, " holds an architecture whose memory keeps more than keys, values and recurrent "
                                       "states, such as an index of sparse attention, which cannot be shared between "
                                       "texts here; use another model such as Qwen3");
    }
    info_.cell_bytes  = kind.cell_bytes;
    info_.state_bytes = kind.state_bytes;
}

Kernels Model::kernels() const {
    const bool on_gpu = std::find(info_.devices.begin(), info_.devices.end(), "CPU") == info_.devices.end();
    return on_gpu ? Kernels::gpu : has_own_products(context_.get()) ? Kernels::own : Kernels::ggml;
}

Reading Model::reading() const {
    return { in_blocks_ ? std::min({ most_in_block, params_.n_batch, params_.n_ubatch }) : 0 };
}

// Where attention looks at the whole cache, masked, it rounds by what else lies there.
void Model::check_reproducible() {
    info_.repeats = params_.loras.empty() && graph_has_same_bits(context_.get());
    if (!params_.reproducible) {
        return;
    }
    if (!is_on_cpu()) {
        throw ModelError(params_.path, " is not on the CPU alone, so a reply may change with what else is in the "
                                       "cache; set n_gpu_layers to 0 and rpc to nothing, or leave reproducible out");
    }
    if (graph_n_whole(context_.get()) > 0) {
        throw ModelError(params_.path, " has an attention that looks at the whole cache, so a reply may change with "
                                       "what else is there; leave reproducible out");
    }
    // where a token has the same bits in every batch, a text does not depend on what else is decoded
    in_blocks_ = !info_.repeats;
    if (in_blocks_ && params_.n_batch * 3 / 4 < params_.n_seq_max && params_.n_seq_max > 1) {
        throw ModelError("n_seq_max is ", params_.n_seq_max,
                         ", but with reproducible it can be three quarters of n_batch at most, which is ",
                         params_.n_batch, "; lower n_seq_max or raise n_batch");
    }
}

void Model::count_graphs(EngineStats & stats) const {
    stats.n_graphs       = before_.n_graphs + (context_ ? graph_n_built(context_.get()) : 0);
    stats.n_whole_graphs = before_.n_whole_graphs + (context_ ? graph_n_whole(context_.get()) : 0);
    stats.n_splits       = context_ ? graph_n_splits(context_.get()) : 0;
}

// Decodes one token with an injection after every layer: an architecture that llama.cpp builds without its
// control-vector hook would ignore the injection, and damaged weights show in the results. On one thread, because a
// check that fails in another one cannot be caught.
void Model::check_injection() {
    const AssertGuard guard;
    llama_token       token  = info_.bos != LLAMA_TOKEN_NULL ? info_.bos : 0;
    int32_t           status = 0;
    std::string       reason;
    take_log_error();
    llama_set_n_threads(context_.get(), 1, 1);
    graph_place(context_.get(), { 0 }, { 1 }, { 0 }, { { { 0, 1 } } }, /*states =*/true, /*norms =*/false);
    try {
        status = llama_decode(context_.get(), llama_batch_get_one(&token, 1));
        llama_synchronize(context_.get());
        reason = take_log_error();
    } catch (const std::exception & error) {
        reason = printable(error.what());
        status = -1;
    }
    require_servers(params_.rpc);
    if (status != 0) {
        refuse(params_.path, "cannot be run (", reason, ")");
    }
    const float * state    = graph_state(context_.get(), 0);
    const float * logits   = llama_get_logits_ith(context_.get(), -1);
    const auto [low, high] = std::minmax_element(logits, logits + info_.n_vocab);
    if (!std::all_of(state, state + info_.n_embd, [](float x) { return std::isfinite(x); }) ||
        !std::all_of(logits, logits + info_.n_vocab, [](float x) { return x < INFINITY; })) {
        refuse(params_.path, "computes numbers that are not finite: its weights are damaged");
    }
    if (*low == *high) {
        refuse(params_.path, "gives every token the same probability, as an embedding model does");
    }
    llama_set_n_threads(context_.get(), params_.n_threads, params_.n_threads);
    llama_memory_clear(llama_get_memory(context_.get()), true);
    if (const int32_t reached = graph_layers_reached(context_.get()); reached != info_.n_layer) {
        throw ModelError(params_.path, " holds an architecture in which only ", reached, " of ", info_.n_layer,
                         " layers can be steered; use a model such as Qwen3");
    }
}

int32_t Model::decode(Batch & batch) {
    const size_t n = batch.size();
    n_seq_ids_.assign(n, 1);
    seq_ids_.resize(n);
    for (size_t i = 0; i < n; ++i) {
        seq_ids_[i] = &batch.sequences[i];
    }
    graph_place(context_.get(), batch.cells, batch.injections, batch.view_of, batch.views, batch.states, batch.norms);

    llama_batch tokens    = {};
    tokens.n_tokens       = int32_t(n);
    tokens.token          = batch.tokens.data();
    tokens.pos            = batch.positions.data();
    tokens.n_seq_id       = n_seq_ids_.data();
    tokens.seq_id         = seq_ids_.data();
    tokens.logits         = batch.output.data();
    const int32_t n_seqs  = 1 + *std::max_element(batch.sequences.begin(), batch.sequences.end());
    n_threads_            = threads_.next(n);
    const uint64_t n_lost = cores_lost();
    const auto     start  = std::chrono::steady_clock::now();
    llama_set_n_threads(context_.get(), n_threads_, n_threads_);
    const int32_t status = graph_decode(context_.get(), tokens, n_seqs);
    llama_synchronize(context_.get());
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (status == 0) {
        threads_.took(time.count(), cores_lost() - n_lost);
    }
    require_servers(params_.rpc); // of a lost one the results are zeros
    return status;
}

void Model::sample(Batch & batch, const std::atomic<bool> & closed) {
    auto &        rows   = batch.rows;
    const int32_t n_rows = int32_t(rows.size());
    for (Row & row : rows) {
        row.logits = llama_get_logits_ith(context_.get(), row.batch_index);
    }
#pragma omp parallel for schedule(dynamic) num_threads(n_threads_) if (n_rows > 1 && info_.n_vocab > 8192)
    for (int32_t i = 0; i < n_rows; ++i) {
        if (rows[i].draft) { // follows in its text
            continue;
        }
        sample(rows[i], closed);
        for (int32_t next = i + 1; next < n_rows && rows[next].draft; ++next) {
            const Row & before = rows[next - 1];
            if (!before.sample || before.error || before.draw.token != batch.tokens[rows[next].batch_index]) {
                break;
            }
            rows[next].sample = true;
            sample(rows[next], closed);
        }
    }
}

void Model::sample(Row & row, const std::atomic<bool> & closed) const {
    const Task & task = *row.task->task;
    if (!row.sample && !task.feed_logprobs) {
        return;
    }
    const GrammarWatch watch{ &closed, &row.task->job->cancelled };
    try {
        row.stats = distribution(row.logits, info_.n_vocab);
        if (row.sample) {
            row.draw = row.task->sampler->sample(row.logits, row.stats);
            if (task.n_top > 0) {
                row.top = top_tokens(row.logits, info_.n_vocab, task.n_top, row.stats);
            }
        }
    } catch (const GrammarStopped &) { // its job ends before the next step
        row.sample = false;
    } catch (const std::invalid_argument &) { // of the task, and no failure of the engine
        row.error = std::current_exception();
    } catch (const std::exception & error) {
        row.error = std::make_exception_ptr(Error(error.what()));
    }
}

// llama.cpp would do so in its next decode, where a cancelled job could interrupt it halfway.
void Model::apply_shift() {
    take_log_error();
    llama_set_abort_callback(context_.get(), nullptr, nullptr);
    const bool done = graph_apply_shift(context_.get());
    llama_set_abort_callback(context_.get(), Interrupt::requested, &interrupt_);
    if (!done) {
        throw Error(take_log_error());
    }
}

std::shared_ptr<llama_model> Model::weights() const {
    std::shared_lock lock(weights_mutex_);
    if (!weights_) {
        throw CancelledError("the engine is closed");
    }
    return weights_;
}

bool Model::interleave(double seconds) {
    using Clock    = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    try {
        while (const auto bytes = interleaved_->needed()) {
            if (const auto available = *bytes > 0 ? available_ram() : std::nullopt;
                available && *available < *bytes + left_to_others) {
                interleaved_->stop();
                return false;
            }
            interleaved_->go_on();
            if (Clock::now() >= end) {
                return true;
            }
        }
    } catch (const std::exception &) { // such as no memory: the address space is limited
        interleaved_->stop();
    }
    return false;
}

void Model::release() {
    context_.reset();
    interleaved_.reset();
    std::unique_lock lock(weights_mutex_);
    const auto       weights = std::move(weights_);
    lock.unlock(); // the weights are freed outside of it
}

} // namespace tgr
