// Loading: what a file must be before llama.cpp sees it, what the model says of itself, and the context.

#include "engine_state.h"

#include "graph.h"
#include "log.h"

#include "ggml-cpp.h"

#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <regex>
#include <unordered_map>

namespace tgr {

//
// what llama.cpp says, and how it fails
//

// Text from a file or a log as part of a one-line message: without line breaks and bytes that no terminal shows.
static std::string printable(std::string text) {
    for (char & c : text) {
        c = c >= ' ' && c <= '~' ? c : '?';
    }
    return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

// llama.cpp says why it refuses a file only in its log: keep the first error, which is the cause of the others, without
// the names of the functions that it passed through.
static thread_local std::string log_error;

static void on_log(ggml_log_level level, const char * text, void *) {
    static const bool       verbose = std::getenv("TGR_LOG") != nullptr;
    static const std::regex noise("^(([a-z_0-9]+|error loading model[a-z ]*): )+|\\s+$|\\s+(?=\\s)");
    if (verbose) {
        std::fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_ERROR && log_error.empty()) {
        log_error = printable(std::regex_replace(std::string(text).substr(0, 400), noise, ""));
    }
}

std::string take_log_error() {
    return std::exchange(log_error, std::string());
}

thread_local int AssertGuard::depth = 0;

static void on_assert(const char * message) {
    if (AssertGuard::depth > 0) {
        const std::string text = message; // "/path/file.cpp:12: GGML_ASSERT(x) failed"
        throw ModelError(text.substr(text.rfind('/', text.find(": ")) + 1));
    }
    std::fprintf(stderr, "%s\n", message);
}

static void install_log() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_assert);
        llama_backend_init();
    });
}

//
// the file, before llama.cpp sees it
//

[[noreturn]] static void refuse(const std::string & path, const std::string & what) {
    throw ModelError(path + " " + what + "; download it again, or use another file");
}

// The header of a model file. Reading it allocates no more than the file has bytes, whatever it claims.
struct ModelFile {
    std::string      path;
    uint64_t         size = 0;
    gguf_context_ptr gguf;

    [[noreturn]] void refuse(const std::string & what) const { tgr::refuse(path, what); }

    std::string text(const std::string & key) const {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        return id >= 0 && gguf_get_kv_type(gguf.get(), id) == GGUF_TYPE_STRING ? gguf_get_val_str(gguf.get(), id) : "";
    }

    std::optional<double> number(const std::string & key) const {
        const int64_t id = gguf_find_key(gguf.get(), key.c_str());
        switch (id < 0 ? GGUF_TYPE_COUNT : gguf_get_kv_type(gguf.get(), id)) {
        case GGUF_TYPE_BOOL:
            return gguf_get_val_bool(gguf.get(), id);
        case GGUF_TYPE_UINT16:
            return gguf_get_val_u16(gguf.get(), id);
        case GGUF_TYPE_UINT32:
            return gguf_get_val_u32(gguf.get(), id);
        case GGUF_TYPE_FLOAT32:
            return gguf_get_val_f32(gguf.get(), id);
        default:
            return {}; // where a number must stand, llama.cpp itself refuses another type
        }
    }
};

static ModelFile open_file(const std::string & path) {
    namespace fs = std::filesystem;
    std::error_code ec;
    const auto      status = fs::status(path, ec);
    if (status.type() == fs::file_type::not_found) {
        throw ModelError("there is no file " + path + "; correct the path, or download the model");
    }
    if (fs::is_directory(status)) {
        throw ModelError(path + " is a directory; name the GGUF file in it");
    }
    FILE * stream = fs::is_regular_file(status) ? std::fopen(path.c_str(), "rb") : nullptr;
    if (!stream) {
        const std::string reason = ec                            ? ec.message()
                                   : fs::is_regular_file(status) ? std::strerror(errno)
                                                                 : "not a regular file";
        throw ModelError(path + " cannot be read (" + reason + "); correct the path or its permissions");
    }
    char         magic[4] = {};
    const size_t n        = std::fread(magic, 1, sizeof(magic), stream);
    std::fclose(stream);

    ModelFile file{ path, fs::file_size(path, ec), nullptr };
    if (n == 0) {
        file.refuse("is empty");
    }
    if (n < sizeof(magic) || std::memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        throw ModelError(path + " is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py");
    }
    take_log_error();
    file.gguf.reset(gguf_init_from_file(path.c_str(), { /*no_alloc =*/true, nullptr }));
    if (!file.gguf) {
        file.refuse("is damaged or cut off in its header (" + take_log_error() + ")");
    }
    return file;
}

// All files of a model: one, or the parts that it was split into.
static std::vector<ModelFile> open_parts(const std::string & path) {
    std::vector<ModelFile> parts;
    parts.push_back(open_file(path));
    const int         n_parts = int(parts[0].number("split.count").value_or(1));
    const int         part    = int(parts[0].number("split.no").value_or(0));
    const std::string place   = "part " + std::to_string(part + 1) + " of " + std::to_string(n_parts);
    if (n_parts > 1) {
        std::string prefix(path.size() + 1, '\0');
        std::string name(path.size() + 32, '\0');
        if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), part, n_parts) <= 0) {
            parts[0].refuse("says that it is " + place + ", but its name does not");
        }
        if (part > 0) {
            throw ModelError(path + " is " + place + "; name the first part");
        }
        for (int i = 1; i < n_parts; ++i) {
            llama_split_path(name.data(), name.size(), prefix.c_str(), i, n_parts);
            parts.push_back(open_file(name.c_str()));
        }
    }
    return parts;
}

static void check_kind(const ModelFile & file, const std::string & arch) {
    const std::string type = file.text("general.type");
    if (arch.empty() || (!type.empty() && type != "model")) {
        file.refuse("holds no language model (" + (type.empty() ? "no general.architecture" : printable(type)) + ")");
    }
    if (gguf_get_n_tensors(file.gguf.get()) == 0) {
        throw ModelError(file.path + " holds a vocabulary without weights; name a file with the whole model");
    }
    if (file.number(arch + ".attention.causal").value_or(1) == 0 ||
        file.number(arch + ".pooling_type").value_or(0) != 0) {
        throw ModelError(file.path + " holds an embedding model (" + printable(arch) +
                         "), which cannot write text; use a model such as Qwen3");
    }
}

// Numbers that llama.cpp uses without looking at them: as sizes, as divisors, or in checks that end the process.
static void check_numbers(const ModelFile & file, const std::string & arch) {
    struct Bound {
        const char * key;
        double       low, high;
    };
    static const Bound bounds[] = {
        { "block_count", 1, 512 },
        { "context_length", 1, INT32_MAX },
        { "embedding_length", 1, 1 << 20 },
        { "attention.key_length", 1, 1 << 16 },
        { "attention.value_length", 1, 1 << 16 },
        { "attention.layer_norm_epsilon", 0, 1 },
        { "attention.layer_norm_rms_epsilon", 0, 1 },
        { "rope.dimension_count", 2, 1 << 16 },
        { "rope.dimension_count_swa", 2, 1 << 16 },
        { "rope.freq_base", 1, 1e12 },
    };
    for (const auto & [key, low, high] : bounds) {
        const auto value = file.number(arch + "." + key);
        if (value && !(*value >= low && *value <= high)) {
            char text[128];
            std::snprintf(text, sizeof(text), " = %.12g, which must be between %.12g and %.12g", *value, low, high);
            file.refuse("says " + printable(arch) + "." + key + text);
        }
    }
}

// llama.cpp takes for granted that no two tokens have the same text.
static void check_tokens(const ModelFile & file) {
    const gguf_context * gguf = file.gguf.get();
    const int64_t        id   = gguf_find_key(gguf, "tokenizer.ggml.tokens");
    if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(gguf, id) != GGUF_TYPE_STRING) {
        return;
    }
    std::unordered_map<std::string_view, size_t> seen;
    for (size_t i = 0; i < gguf_get_arr_n(gguf, id); ++i) {
        const char * text          = gguf_get_arr_str(gguf, id, i);
        const auto [first, is_new] = seen.emplace(text, i);
        if (!is_new && *text != '\0') { // empty ones get names of their own
            file.refuse("has the token '" + printable(text) + "' twice, as " + std::to_string(first->second) +
                        " and as " + std::to_string(i));
        }
    }
}

// Tensors that lie in the file, of types that can be multiplied.
static void check_tensors(const ModelFile & file, std::set<std::string> & names) {
    const gguf_context * gguf = file.gguf.get();
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
        const std::string name = gguf_get_tensor_name(gguf, i);
        const ggml_type   type = gguf_get_tensor_type(gguf, i);
        const uint64_t    from = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, i);
        const uint64_t    to   = from + gguf_get_tensor_size(gguf, i);
        if (to > file.size) {
            file.refuse("is cut off: it has " + std::to_string(file.size) + " bytes, but needs at least " +
                        std::to_string(to));
        }
        if (type != GGML_TYPE_F32 && !ggml_get_type_traits(type)->to_float) {
            file.refuse("has the tensor " + printable(name) + " of type " + ggml_type_name(type) +
                        ", which llama.cpp cannot compute with");
        }
        names.insert(name);
    }
}

// Where the attention of phi3 may be one tensor or three, llama.cpp loads a layer that has neither.
static void check_attention(const ModelFile & file, const std::set<std::string> & names) {
    const std::string output = ".attn_output.weight";
    for (const auto & name : names) {
        if (name.size() > output.size() && name.compare(name.size() - output.size(), output.size(), output) == 0) {
            const auto has = [&](const char * part) {
                return names.count(name.substr(0, name.size() - output.size()) + part) > 0;
            };
            if (!has(".attn_qkv.weight") &&
                !(has(".attn_q.weight") && has(".attn_k.weight") && has(".attn_v.weight"))) {
                file.refuse("lacks tensors that " + printable(name) + " needs: attn_qkv, or attn_q, attn_k and attn_v");
            }
        }
    }
}

// Refuses, with the reason, every file that llama.cpp would refuse without one, or would abort or crash on.
static void check_file(const std::string & path) {
    const auto        parts = open_parts(path);
    const std::string arch  = parts[0].text("general.architecture");
    check_kind(parts[0], arch);
    check_numbers(parts[0], arch);
    check_tokens(parts[0]);
    std::set<std::string> names;
    for (const auto & part : parts) {
        check_tensors(part, names);
    }
    if (arch == "phi3") {
        check_attention(parts[0], names);
    }
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

void Engine::describe_model() {
    install_log();
    check_file(params_.path);

    auto load                = llama_model_default_params();
    load.n_gpu_layers        = params_.n_gpu_layers < 0 ? 1 << 20 : params_.n_gpu_layers;
    load.main_gpu            = params_.main_gpu;
    load.load_mode           = params_.use_mlock ? params_.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK
                               : params_.use_mmap ? LLAMA_LOAD_MODE_MMAP
                                                  : LLAMA_LOAD_MODE_NONE;
    std::vector<float> split = params_.tensor_split;
    split.resize(llama_max_devices(), 0.0f);
    if (!params_.tensor_split.empty()) {
        load.tensor_split = split.data();
    }
    take_log_error();
    const AssertGuard guard;
    model_.reset(llama_model_load_from_file(params_.path.c_str(), load), llama_model_free);
    if (!model_) {
        refuse(params_.path, "cannot be loaded (" + take_log_error() + ")");
    }
    llama_model * model = model_.get();
    vocab_              = llama_model_get_vocab(model);
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
        throw ModelError(params_.path + " holds a recurrent or hybrid model, whose state cannot be rolled back to a "
                                        "prefix; use a transformer such as Qwen3");
    }
    if (!llama_model_has_decoder(model) || llama_model_has_encoder(model) || llama_model_is_diffusion(model)) {
        throw ModelError(params_.path + " holds no decoder-only model; use a transformer such as Qwen3");
    }
    if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) {
        throw ModelError(params_.path + " holds no vocabulary; use a file with tokenizer metadata");
    }
    if ((llama_vocab_get_add_bos(vocab_) && llama_vocab_bos(vocab_) == LLAMA_TOKEN_NULL) ||
        (llama_vocab_get_add_eos(vocab_) && llama_vocab_eos(vocab_) == LLAMA_TOKEN_NULL) ||
        (llama_vocab_get_add_sep(vocab_) && llama_vocab_sep(vocab_) == LLAMA_TOKEN_NULL)) {
        refuse(params_.path, "wants a begin, end or separator token around a text, but has none");
    }

    info_.n_vocab     = llama_vocab_n_tokens(vocab_);
    info_.n_embd      = llama_model_n_embd(model);
    info_.n_layer     = llama_model_n_layer(model);
    info_.n_ctx_train = llama_model_n_ctx_train(model);
    info_.bos         = llama_vocab_bos(vocab_);
    info_.eos         = llama_vocab_eos(vocab_);
    info_.fim_pad     = llama_vocab_fim_pad(vocab_);
    info_.size_bytes  = llama_model_size(model);
    info_.n_params    = llama_model_n_params(model);
    info_.description = read_text([&](char * to, size_t n) { return llama_model_desc(model, to, n); });
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
}

// On a CPU ggml's flash attention takes up to twice the time of the plain one (docs/log.md). llama.cpp always wants it
// for quantised values.
static llama_flash_attn_type flash_attention(const llama_model * model, const EngineParams & params) {
    const bool plain = params.flash_attn < 0 && on_cpu(model) && !ggml_is_quantized(params.type_v);
    return plain ? LLAMA_FLASH_ATTN_TYPE_DISABLED : llama_flash_attn_type(params.flash_attn);
}

void Engine::make_context(uint32_t n_cells) {
    const uint64_t n_ctx     = (std::max<uint64_t>(n_cells, 1) + 255) / 256 * 256;
    auto           make      = llama_context_default_params();
    make.n_ctx               = uint32_t(std::min<uint64_t>(n_ctx, UINT32_MAX - 255));
    make.n_batch             = params_.n_batch;
    make.n_ubatch            = params_.n_ubatch;
    make.n_seq_max           = params_.n_seq_max;
    make.n_outputs_max       = std::max(params_.n_seq_max, 1u);
    make.n_threads           = params_.n_threads;
    make.n_threads_batch     = params_.n_threads;
    make.flash_attn_type     = flash_attention(model_.get(), params_);
    make.type_k              = params_.type_k;
    make.type_v              = params_.type_v;
    make.kv_unified          = true; // forks share the cells of their prefix
    make.swa_full            = true; // a sliding-window cache could not be rolled back
    make.no_perf             = true;
    make.abort_callback      = interrupt_requested;
    make.abort_callback_data = &interrupt_;

    take_log_error();
    const AssertGuard guard;
    llama_context_ptr fresh(llama_init_from_model(model_.get(), make));
    if (!fresh || !graph_init(fresh.get(), int32_t(params_.n_seq_max) + 1)) {
        const std::string reason = take_log_error();
        if (reason.find("GGML_ASSERT") != std::string::npos) {
            refuse(params_.path, "cannot be run (" + reason + ")");
        }
        throw ModelError(
            "no context of " + std::to_string(n_cells) + " cells could be made: " +
            (reason.empty() ? "lower n_ctx or n_batch, or use a smaller cache type such as type_k=q8_0" : reason));
    }
    context_       = std::move(fresh);
    n_ctx_         = llama_n_ctx(context_.get());
    shift_pending_ = false;
    seq_taken_.assign(params_.n_seq_max, false);
    row_taken_.assign(params_.n_seq_max + 1, false);
}

// Replaces the context, in which nothing is, by a larger one. False, with one of the old size again, when there is no
// memory for it.
bool Engine::grow(uint32_t n_cells) {
    if (params_.n_ctx != 0) {
        return false;
    }
    const uint32_t before = std::exchange(n_ctx_, 0);
    context_.reset(); // first: there need not be memory for both
    for (const uint32_t size : { n_cells, before }) {
        try {
            make_context(size);
            return size == n_cells;
        } catch (const std::exception &) {
        }
    }
    return false;
}

// Decodes one token with a push on every layer. An architecture that llama.cpp builds without its control-vector hook
// would silently ignore the injection, and damaged weights show in what comes out. One thread: a check that fails in
// another one cannot be caught.
void Engine::check_injection() {
    const AssertGuard guard;
    llama_token       token  = info_.bos != LLAMA_TOKEN_NULL ? info_.bos : 0;
    int32_t           status = 0;
    std::string       reason;
    take_log_error();
    llama_set_n_threads(context_.get(), 1, 1);
    graph_set_seq_row(context_.get(), 0, 1);
    graph_capture(context_.get(), /*states =*/true, /*norms =*/false);
    try {
        status = llama_decode(context_.get(), llama_batch_get_one(&token, 1));
        llama_synchronize(context_.get());
        reason = take_log_error();
    } catch (const std::exception & error) {
        reason = printable(error.what());
        status = -1;
    }
    if (status != 0) {
        refuse(params_.path, "cannot be run (" + reason + ")");
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
    graph_set_seq_row(context_.get(), 0, 0);
    llama_set_n_threads(context_.get(), params_.n_threads, params_.n_threads);
    llama_memory_clear(llama_get_memory(context_.get()), true);
    if (graph_layers_reached(context_.get()) != info_.n_layer) {
        throw ModelError(params_.path + " holds an architecture in which only " +
                         std::to_string(graph_layers_reached(context_.get())) + " of " + std::to_string(info_.n_layer) +
                         " layers can be steered; use a dense transformer such as Qwen3");
    }
}

//
// vocabulary
//

// Calls f in a thread with a stack of so many bytes, of which the system gives what is used.
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
        throw Error("the text has a word that is too long for the memory here; divide it");
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

std::vector<llama_token> Engine::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    check_here();
    if (text.size() > TEXT_MOST) {
        throw std::invalid_argument("the text has " + std::to_string(text.size()) + " bytes, but may have " +
                                    std::to_string(TEXT_MOST) + "; divide it");
    }
    if (const size_t length = longest_word(text); length > WORD_MOST) {
        throw std::invalid_argument("the text has a word of " + std::to_string(length) +
                                    " bytes, but a word may have " + std::to_string(WORD_MOST) + "; divide it");
    }
    const auto               model = this->model();
    std::vector<llama_token> tokens(text.size() + 8); // more only where a byte that was added has no token
    const auto               read = [&] {
        return llama_tokenize(vocab_, text.data(), int32_t(text.size()), tokens.data(), int32_t(tokens.size()),
                              add_special, parse_special);
    };
    const auto fill = [&] {
        int32_t n = read();
        if (n < 0) {
            tokens.resize(size_t(-n));
            n = read();
        }
        tokens.resize(size_t(std::max(0, n)));
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
    } catch (const std::out_of_range &) {
        tokens.assign(1, LLAMA_TOKEN_NULL);
    }
    if (std::find(tokens.begin(), tokens.end(), LLAMA_TOKEN_NULL) != tokens.end()) {
        throw ModelError("the vocabulary of " + params_.path +
                         " has no token for a part of this text; use plain letters, or another model");
    }
    return tokens;
}

void Engine::check_grammar(const std::string & grammar) const {
    check_here();
    const auto     model = this->model();
    SamplingParams params;
    params.grammar = grammar;
    Sampler(vocab_, params, 0);
}

std::string Engine::detokenize(const std::vector<llama_token> & tokens, bool special) const {
    check_here();
    const auto  model = this->model();
    std::string text;
    for (const llama_token token : tokens) {
        if (token < 0 || token >= info_.n_vocab) {
            throw std::invalid_argument("token " + std::to_string(token) + " is not in the vocabulary, which ends at " +
                                        std::to_string(info_.n_vocab - 1));
        }
        char    piece[128];
        int32_t n = llama_token_to_piece(vocab_, token, piece, sizeof(piece), 0, special);
        if (n >= 0) {
            text.append(piece, size_t(n));
        } else {
            std::string longer(size_t(-n), '\0');
            llama_token_to_piece(vocab_, token, longer.data(), int32_t(longer.size()), 0, special);
            text += longer;
        }
    }
    return text;
}

} // namespace tgr
