#include "model/model_file.h"

#include "base/log.h"

#include "ggml-cpp.h"
#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace tgr {

void refuse_encoder(const std::string & path) {
    throw ModelError(path, " holds an encoder, in which a token looks at those after it too, but texts are read from "
                           "left to right here; use a decoder, such as Qwen3, Qwen3-Embedding or Qwen3-Reranker");
}

// The header of a model file. Reading it allocates no more than the file has bytes, whatever it claims.
struct ModelFile {
    std::string      path;
    uint64_t         size = 0;
    gguf_context_ptr gguf;

    template <class... What> [[noreturn]] void refuse(const What &... what) const { tgr::refuse(path, what...); }

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

    // Those of an array of whole numbers.
    std::optional<std::vector<uint32_t>> numbers(const std::string & key) const {
        const int64_t id   = gguf_find_key(gguf.get(), key.c_str());
        const bool    some = id >= 0 && gguf_get_kv_type(gguf.get(), id) == GGUF_TYPE_ARRAY;
        const auto    type = some ? gguf_get_arr_type(gguf.get(), id) : GGUF_TYPE_COUNT;
        if (type != GGUF_TYPE_INT32 && type != GGUF_TYPE_UINT32) {
            return {};
        }
        const auto * items = static_cast<const uint32_t *>(gguf_get_arr_data(gguf.get(), id));
        return std::vector<uint32_t>(items, items + gguf_get_arr_n(gguf.get(), id));
    }
};

static ModelFile open_file(const std::string & path) {
    namespace fs = std::filesystem;
    std::error_code ec;
    const auto      status = fs::status(fs::u8path(path), ec);
    if (status.type() == fs::file_type::not_found) {
        throw ModelError("there is no file ", path, "; correct the path, or download the model");
    }
    if (fs::is_directory(status)) {
        throw ModelError(path, " is a directory; name the GGUF file in it");
    }
    FILE * stream = fs::is_regular_file(status) ? ggml_fopen(path.c_str(), "rb") : nullptr;
    if (!stream) {
        const std::string reason = ec                            ? ec.message()
                                   : fs::is_regular_file(status) ? std::strerror(errno)
                                                                 : "not a regular file";
        throw ModelError(path, " cannot be read (", reason, "); correct the path or its permissions");
    }
    char         magic[4] = {};
    const size_t n        = std::fread(magic, 1, sizeof(magic), stream);
    std::fclose(stream);

    ModelFile file{ path, fs::file_size(fs::u8path(path), ec), nullptr };
    if (n == 0) {
        file.refuse("is empty");
    }
    if (n < sizeof(magic) || std::memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        throw ModelError(path, " is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py");
    }
    take_log_error();
    file.gguf.reset(gguf_init_from_file(path.c_str(), { /*no_alloc =*/true, nullptr }));
    if (!file.gguf) {
        file.refuse("is damaged or cut off in its header (", take_log_error(), ")");
    }
    return file;
}

// All files of a model: one, or the parts that it was split into.
static std::vector<ModelFile> open_parts(const std::string & path) {
    std::vector<ModelFile> parts;
    parts.push_back(open_file(path));
    const int         n_parts = int(parts[0].number("split.count").value_or(1));
    const int         part    = int(parts[0].number("split.no").value_or(0));
    const std::string place   = concat("part ", part + 1, " of ", n_parts);
    if (n_parts > 1) {
        std::string prefix(path.size() + 1, '\0');
        std::string name(path.size() + 32, '\0');
        if (llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), part, n_parts) <= 0) {
            parts[0].refuse("says that it is ", place, ", but its name does not");
        }
        if (part > 0) {
            throw ModelError(path, " is ", place, "; name the first part");
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
        file.refuse("holds no language model (", type.empty() ? "no general.architecture" : printable(type), ")");
    }
    if (gguf_get_n_tensors(file.gguf.get()) == 0) {
        throw ModelError(file.path, " holds a vocabulary without weights; name a file with the whole model");
    }
    if (file.number(arch + ".attention.causal").value_or(1) == 0) {
        refuse_encoder(file.path);
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
        { "ssm.conv_kernel", 1, 1 << 10 },
        { "ssm.inner_size", 1, 1 << 24 },
        { "ssm.state_size", 1, 1 << 16 },
        { "ssm.time_step_rank", 1, 1 << 16 },
        { "ssm.group_count", 1, 1 << 16 },
        { "shortconv.l_cache", 1, 1 << 10 },
        { "full_attention_interval", 1, 512 },
    };
    for (const auto & [key, low, high] : bounds) {
        const auto value = file.number(arch + "." + key);
        if (value && !(*value >= low && *value <= high)) {
            char text[128];
            std::snprintf(text, sizeof(text), " = %.12g, which must be between %.12g and %.12g", *value, low, high);
            file.refuse("says ", printable(arch), ".", key, text);
        }
    }
}

// Where a model has attention, llama.cpp divides by the number of its heads. It may be one number or one for each
// layer.
static void check_heads(const ModelFile & file, const std::string & arch) {
    if (arch.rfind("mamba", 0) == 0 || arch.find("rwkv") != std::string::npos || !file.number(arch + ".block_count")) {
        return; // no attention, or nothing that llama.cpp knows: it says what
    }
    const std::string key    = arch + ".attention.head_count";
    double            n_most = file.number(key).value_or(0);
    for (const uint32_t n : file.numbers(key).value_or(std::vector<uint32_t>())) {
        n_most = std::max(n_most, double(n));
    }
    if (!(n_most >= 1)) {
        file.refuse("does not say how many heads its attention has, in ", printable(key));
    }
}

// RoPE sections for multi-dimensional positions; ggml divides by their sum.
static void check_sections(const ModelFile & file, const std::string & arch) {
    const std::string key     = arch + ".rope.dimension_sections";
    const auto        parts   = file.numbers(key);
    const auto        is_part = [](uint32_t part) { return part <= 1 << 16; };
    if (parts && (!std::all_of(parts->begin(), parts->end(), is_part) ||
                  std::count(parts->begin(), parts->end(), 0u) == ptrdiff_t(parts->size()))) {
        file.refuse("says ", printable(key), " without a part between 1 and 65536, or with one beyond");
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
            file.refuse("has the token '", printable(text), "' twice, as ", first->second, " and as ", i);
        }
    }
}

static constexpr size_t CHARSMAP_MOST = 16 << 20; // bytes; those of known models have less than 1 MiB

// What a vocabulary of type UGM puts in the place of characters: a double array, as SentencePiece makes it, and texts,
// each with a 0 at its end. llama.cpp follows it at every text, so all ways in it are followed here once.
static void check_charsmap(const ModelFile & file) {
    const gguf_context * gguf = file.gguf.get();
    const int64_t        id   = gguf_find_key(gguf, "tokenizer.ggml.precompiled_charsmap");
    if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_ARRAY ||
        (gguf_get_arr_type(gguf, id) != GGUF_TYPE_INT8 && gguf_get_arr_type(gguf, id) != GGUF_TYPE_UINT8)) {
        return; // llama.cpp itself refuses another type
    }
    const auto damaged = [&] {
        file.refuse("has a map of characters (precompiled_charsmap) that leads out of itself");
    };
    const auto * data = static_cast<const char *>(gguf_get_arr_data(gguf, id));
    const size_t size = gguf_get_arr_n(gguf, id);
    if (size > CHARSMAP_MOST) {
        file.refuse("has a map of characters (precompiled_charsmap) of ", size, " bytes, but it may have ",
                    CHARSMAP_MOST);
    }
    uint32_t n_bytes = 0;
    if (size >= sizeof(n_bytes)) {
        std::memcpy(&n_bytes, data, sizeof(n_bytes));
    }
    if (size < sizeof(n_bytes) || n_bytes >= size - sizeof(n_bytes)) {
        damaged();
    }
    std::vector<uint32_t> nodes(n_bytes / sizeof(uint32_t));
    std::memcpy(nodes.data(), data + sizeof(n_bytes), nodes.size() * sizeof(uint32_t));
    const char * texts   = data + sizeof(n_bytes) + n_bytes;
    size_t       n_texts = data + size - texts; // up to the last text that ends
    while (n_texts > 0 && texts[n_texts - 1] != '\0') {
        --n_texts;
    }
    const auto base = [&](uint32_t node) { return (node >> 10) << ((node & (1u << 9)) >> 6); };

    std::vector<bool>     seen(nodes.size());
    std::vector<uint32_t> left; // places from which the next byte leads on
    const auto            add = [&](uint32_t place) {
        if (place >= nodes.size()) {
            damaged();
        }
        if (!seen[place]) {
            seen[place] = true;
            left.push_back(place);
        }
    };
    if (!nodes.empty()) {
        add(base(nodes[0]));
    }
    while (!left.empty()) {
        const uint32_t from = left.back();
        left.pop_back();
        for (uint32_t byte = 1; byte < 0xf5; ++byte) {
            if (byte == 0xc0 || byte == 0xc1) { // in no text of UTF-8, and neither are those from F5 on
                continue;
            }
            const uint32_t at = from ^ byte;
            if (at >= nodes.size()) {
                damaged();
            }
            if ((nodes[at] & ((1u << 31) | 0xff)) != byte) {
                continue;
            }
            const uint32_t to = at ^ base(nodes[at]);
            add(to);
            if ((nodes[at] >> 8 & 1) && (nodes[to] & ~(1u << 31)) >= n_texts) {
                damaged();
            }
        }
    }
}

// Tensors that lie in the file, of types that can be multiplied.
static void check_tensors(const ModelFile & file) {
    const gguf_context * gguf = file.gguf.get();
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); ++i) {
        const std::string name = gguf_get_tensor_name(gguf, i);
        const ggml_type   type = gguf_get_tensor_type(gguf, i);
        const uint64_t    from = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, i);
        const uint64_t    to   = from + gguf_get_tensor_size(gguf, i);
        if (to > file.size) {
            file.refuse("is cut off: it has ", file.size, " bytes, but needs at least ", to);
        }
        if (type != GGML_TYPE_F32 && !ggml_get_type_traits(type)->to_float) {
            file.refuse("has the tensor ", printable(name), " of type ", ggml_type_name(type),
                        ", which llama.cpp cannot compute with");
        }
    }
}

std::vector<std::string> check_file(const std::string & path) {
    const auto        parts = open_parts(path);
    const std::string arch  = parts[0].text("general.architecture");
    check_kind(parts[0], arch);
    check_numbers(parts[0], arch);
    check_heads(parts[0], arch);
    check_sections(parts[0], arch);
    check_tokens(parts[0]);
    check_charsmap(parts[0]);
    std::vector<std::string> paths;
    for (const auto & part : parts) {
        check_tensors(part);
        paths.push_back(part.path);
    }
    return paths;
}

uint64_t file_size(const std::string & path) {
    std::error_code ec;
    const auto      size = std::filesystem::file_size(std::filesystem::u8path(path), ec);
    return ec ? 0 : size;
}

} // namespace tgr
