#include "graph/memory.h"

#include "base/errors.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "llama-context.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <numeric>
#include <typeinfo>

namespace tgr {

// What the patch opens of llama_kv_cache. All sequences are in one stream, because the cache is unified.
struct kv_access {
    static llama_kv_cells &      cells(llama_kv_cache & kv) { return kv.v_cells[0]; }
    static const auto &          layers(const llama_kv_cache & kv) { return kv.layers; }
    static bool                  transposed(const llama_kv_cache & kv) { return kv.v_trans; }
    static bool                  known(const llama_kv_cache & kv) { return kv.n_stream == 1 && !kv.other; }
    static std::pair<bool, bool> rotated(const llama_kv_cache & kv) { return { kv.attn_rot_k, kv.attn_rot_v }; }
};

struct memory_parts {
    std::vector<llama_kv_cache *> caches;
    llama_memory_recurrent *      recurrent = nullptr;
};

template <class Memory> static Memory * exactly(llama_memory_i * memory) {
    return memory && typeid(*memory) == typeid(Memory) ? static_cast<Memory *>(memory) : nullptr;
}

// Empty for a kind that is unknown. By exact type: what llama.cpp derives from these classes keeps more than they do.
static memory_parts parts_of(llama_context * ctx) {
    memory_parts     parts;
    llama_memory_i * memory = ctx->get_memory();
    const auto add_both     = [&](llama_kv_cache_iswa * iswa) { parts.caches = { iswa->get_base(), iswa->get_swa() }; };
    if (auto * kv = exactly<llama_kv_cache>(memory)) {
        parts.caches = { kv };
    } else if (auto * iswa = exactly<llama_kv_cache_iswa>(memory)) {
        add_both(iswa);
    } else if (auto * recurrent = exactly<llama_memory_recurrent>(memory)) {
        parts.recurrent = recurrent;
    } else if (auto * hybrid = exactly<llama_memory_hybrid>(memory)) {
        parts.caches    = { hybrid->get_mem_attn() };
        parts.recurrent = hybrid->get_mem_recr();
    } else if (auto * hybrid_iswa = exactly<llama_memory_hybrid_iswa>(memory)) {
        add_both(hybrid_iswa->get_mem_attn());
        parts.recurrent = hybrid_iswa->get_mem_recr();
    }
    for (const llama_kv_cache * kv : parts.caches) {
        if (!kv_access::known(*kv) || kv->get_size() != parts.caches[0]->get_size()) {
            return {};
        }
    }
    if (parts.recurrent && parts.recurrent->n_rs_seq != 0) {
        return {};
    }
    return parts;
}

//
// tensors
//

// Rows of equal size in a tensor, one after the other at a distance; a cell is a row, or a column of one-number rows.
struct part {
    ggml_tensor * tensor;
    size_t        bytes;    // of one cell in one row
    size_t        n_rows;   // of the tensor: 1, or as many as a transposed value has numbers
    size_t        distance; // from one row to the next

    size_t cell_bytes() const { return bytes * n_rows; }
};

static part rows_of(ggml_tensor * tensor) {
    return { tensor, ggml_row_size(tensor->type, tensor->ne[0]), 1, 0 };
}

// Of all caches and layers, in the order of the raw bytes.
static std::vector<part> cell_parts(const memory_parts & parts) {
    std::vector<part> all;
    for (const llama_kv_cache * kv : parts.caches) {
        for (const auto & layer : kv_access::layers(*kv)) {
            all.push_back(rows_of(layer.k));
            if (!layer.v) {
                continue;
            }
            if (kv_access::transposed(*kv)) {
                const size_t bytes = ggml_type_size(layer.v->type);
                all.push_back({ layer.v, bytes, size_t(layer.v->ne[0]), bytes * kv->get_size() });
            } else {
                all.push_back(rows_of(layer.v));
            }
        }
    }
    return all;
}

static std::vector<part> state_parts(const memory_parts & parts) {
    std::vector<part> all;
    if (parts.recurrent) {
        const auto & recurrent = *parts.recurrent;
        for (size_t il = 0; il < recurrent.r_l.size(); ++il) {
            for (ggml_tensor * tensor : { recurrent.r_l[il], recurrent.s_l[il], recurrent.p_l[il] }) {
                if (tensor && tensor->ne[0] > 0) {
                    all.push_back(rows_of(tensor));
                }
            }
        }
    }
    return all;
}

static size_t bytes_of(const std::vector<part> & parts) {
    return std::accumulate(parts.begin(), parts.end(), size_t(0),
                           [](size_t sum, const part & one) { return sum + one.cell_bytes(); });
}

// Of every part: its rows, and in each the cells in the order of `runs`.
template <class Move>
static void for_each_run(const std::vector<part> & parts, const std::vector<extent> & runs, Move && move) {
    const size_t n_cells = n_cells_of(runs);
    size_t       at      = 0;
    for (const part & part : parts) {
        size_t done = 0;
        for (const extent & run : runs) {
            move(part, run.begin * part.bytes, run.n * part.bytes, at + done, n_cells * part.bytes);
            done += run.n * part.bytes;
        }
        at += n_cells * part.cell_bytes();
    }
}

static std::vector<uint8_t> read(const std::vector<part> & parts, const std::vector<extent> & runs) {
    std::vector<uint8_t> bytes(n_cells_of(runs) * bytes_of(parts));
    for_each_run(parts, runs, [&](const part & part, size_t offset, size_t size, size_t at, size_t stride) {
        ggml_backend_tensor_get_2d(part.tensor, bytes.data() + at, offset, size, part.n_rows, part.distance, stride);
    });
    return bytes;
}

static void write(const std::vector<part> & parts, const std::vector<extent> & runs,
                  const std::vector<uint8_t> & bytes) {
    const size_t expected = n_cells_of(runs) * bytes_of(parts);
    if (bytes.size() != expected) {
        throw Error("stored keys, values or states have ", bytes.size(), " bytes, but this model and cache need ",
                    expected, "; read the text again");
    }
    for_each_run(parts, runs, [&](const part & part, size_t offset, size_t size, size_t at, size_t stride) {
        ggml_backend_tensor_set_2d(part.tensor, bytes.data() + at, offset, size, part.n_rows, part.distance, stride);
    });
}

// The first n_cells of every part; on one device without a way through the host.
static void copy_cells(const std::vector<part> & from, const std::vector<part> & to, size_t n_cells) {
    const ggml_context_ptr views(ggml_init({ 2 * ggml_tensor_overhead() * from.size(), nullptr, /*no_alloc =*/true }));
    const auto             view = [&](const part & part) {
        ggml_tensor * made = ggml_new_tensor_1d(views.get(), GGML_TYPE_I8, int64_t(n_cells * part.bytes));
        made->buffer       = part.tensor->buffer;
        return made;
    };
    for (size_t i = 0; i < from.size(); ++i) {
        ggml_tensor * source = view(from[i]);
        ggml_tensor * target = view(to[i]);
        for (size_t row = 0; row < from[i].n_rows; ++row) {
            source->data = static_cast<char *>(from[i].tensor->data) + row * from[i].distance;
            target->data = static_cast<char *>(to[i].tensor->data) + row * to[i].distance;
            ggml_backend_tensor_copy(source, target);
        }
    }
}

//
// interface
//

memory_kind memory_of(llama_context * ctx) {
    const memory_parts parts = parts_of(ctx);
    // PLE layers look at the tokens of cells, which nobody else keeps
    if (ctx->get_model().hparams.ple_n_heads > 0) {
        return {};
    }
    return { !parts.caches.empty(), parts.recurrent != nullptr, bytes_of(cell_parts(parts)),
             bytes_of(state_parts(parts)) };
}

uint64_t memory_state_bytes(const llama_model * model) {
    const llama_hparams & hparams = model->hparams;
    const uint64_t        numbers = uint64_t(hparams.n_embd_r()) + hparams.n_embd_s() + hparams.ple_conv_state();
    uint64_t              bytes   = 0;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        bytes += hparams.is_recr(il) ? numbers * sizeof(float) : 0;
    }
    return bytes;
}

std::vector<llama_kv_cache *> memory_caches(llama_context * ctx) {
    return parts_of(ctx).caches;
}

static std::string text_of(const std::vector<part> & parts) {
    std::string text;
    for (const part & part : parts) {
        text += concat(" ", ggml_type_name(part.tensor->type), " ", part.cell_bytes(), part.n_rows == 1 ? "" : "t");
    }
    return text;
}

std::string memory_layout(llama_context * ctx) {
    const memory_parts parts = parts_of(ctx);
    std::string        text  = "cells" + text_of(cell_parts(parts)) + "; states" + text_of(state_parts(parts));
    for (const llama_kv_cache * kv : parts.caches) {
        const auto [k, v] = kv_access::rotated(*kv);
        text += concat("; rotated ", k ? "k" : "", v ? "v" : "");
    }
    const llama_model & model = ctx->get_model();
    const bool has_long = std::any_of(model.layers.begin(), model.layers.end(), [](auto & l) { return l.rope_long; });
    if (has_long) {
        text += ctx->get_cparams().n_ctx_seq > model.hparams.n_ctx_orig_yarn ? "; long rotations" : "; short rotations";
    }
    return text;
}

// The runs, after a check that the cache has these cells; none without attention layers. Waits for the last decode.
static std::vector<extent> checked(llama_context * ctx, const memory_parts & parts, const std::vector<extent> & cells) {
    if (parts.caches.empty()) {
        return {};
    }
    const uint32_t size = parts.caches[0]->get_size();
    for (const extent & run : cells) {
        if (run.begin > size || run.n > size - run.begin) {
            throw Error("the cells ", run.begin, " to ", uint64_t(run.begin) + run.n,
                        " are not in the cache, which has ", size);
        }
    }
    ctx->synchronize();
    return cells;
}

void memory_attach(llama_context * ctx, llama_seq_id seq_id, uint32_t first_pos, const std::vector<extent> & cells) {
    const memory_parts parts    = parts_of(ctx);
    const auto         runs     = checked(ctx, parts, cells);
    const auto         for_each = [&](auto && visit) {
        for (llama_kv_cache * kv : parts.caches) {
            llama_pos pos = llama_pos(first_pos);
            for (const extent & run : runs) {
                for (uint32_t cell = run.begin; cell < run.begin + run.n; ++cell, ++pos) {
                    visit(kv_access::cells(*kv), cell, pos);
                }
            }
        }
    };
    for_each([](const llama_kv_cells & in, uint32_t cell, llama_pos pos) {
        if (!in.is_empty(cell) && in.pos_get(cell) != pos) {
            throw Error("cell ", cell, " holds position ", in.pos_get(cell), " and cannot hold ", pos, " too");
        }
    });
    for_each([&](llama_kv_cells & in, uint32_t cell, llama_pos pos) {
        if (in.is_empty(cell)) {
            in.pos_set(cell, pos);
            llama_kv_cell_ext ext;
            if (ctx->get_model().hparams.n_pos_per_embd() > 1) { // as llama.cpp places text
                ext.x = ext.y = pos;
            }
            in.ext_set(cell, ext);
        }
        if (!in.seq_has(cell, seq_id)) {
            in.seq_add(cell, seq_id);
        }
    });
}

std::vector<uint8_t> memory_read_cells(llama_context * ctx, const std::vector<extent> & cells) {
    const memory_parts parts = parts_of(ctx);
    return read(cell_parts(parts), checked(ctx, parts, cells));
}

void memory_write_cells(llama_context * ctx, const std::vector<extent> & cells, const std::vector<uint8_t> & bytes) {
    const memory_parts parts = parts_of(ctx);
    write(cell_parts(parts), checked(ctx, parts, cells), bytes);
}

std::vector<uint8_t> memory_read_state(llama_context * ctx, llama_seq_id seq_id) {
    const memory_parts parts = parts_of(ctx);
    if (!parts.recurrent) {
        return {};
    }
    const int32_t tail = parts.recurrent->cells[seq_id].tail;
    if (tail < 0) {
        throw Error("sequence ", seq_id, " has no recurrent state yet; decode a token of it first");
    }
    ctx->synchronize();
    return read(state_parts(parts), { { uint32_t(tail), 1 } });
}

void memory_write_state(llama_context * ctx, llama_seq_id seq_id, uint32_t n_tokens,
                        const std::vector<uint8_t> & bytes) {
    const memory_parts parts = parts_of(ctx);
    if (!parts.recurrent) {
        return write({}, {}, bytes);
    }
    auto &     memory = *parts.recurrent;
    const auto free   = [&](const auto & cell) { return cell.is_empty(); };
    // there are as many cells as sequences, so that one is free, or held by this sequence alone
    memory.seq_rm(seq_id, -1, -1);
    const auto cell = std::find_if(memory.cells.begin(), memory.cells.end(), free);
    if (cell == memory.cells.end()) {
        throw Error("there is no room for the recurrent state of sequence ", seq_id);
    }
    const uint32_t row = uint32_t(cell - memory.cells.begin());
    ctx->synchronize();
    write(state_parts(parts), { { row, 1 } }, bytes);
    cell->pos = llama_pos(n_tokens) - 1;
    cell->src = int32_t(row);
    cell->seq_id.insert(seq_id);
    memory.cells[seq_id].tail = int32_t(row);
    memory.used += 1;
}

// Whether both contexts lay their bytes out alike, and the second has place for n_cells of the first.
static bool fits(llama_context * from, llama_context * to, uint64_t n_cells) {
    const auto caches = memory_caches(to);
    return memory_layout(from) == memory_layout(to) && (caches.empty() || caches[0]->get_size() >= n_cells);
}

bool memory_copy(llama_context * from, llama_context * to) {
    const memory_parts source  = parts_of(from);
    const memory_parts target  = parts_of(to);
    const uint32_t     n_cells = source.caches.empty() ? 0 : source.caches[0]->get_size();
    if (!fits(from, to, n_cells) || (source.recurrent && target.recurrent->size < source.recurrent->size)) {
        return false;
    }
    from->synchronize();
    to->synchronize();
    copy_cells(cell_parts(source), cell_parts(target), n_cells);
    for (size_t i = 0; i < source.caches.size(); ++i) {
        const llama_kv_cells & in = kv_access::cells(*source.caches[i]);
        target.caches[i]->clear(/*data =*/false);
        kv_access::cells(*target.caches[i]).set(0, in.cp(0, in.size()));
    }
    if (source.recurrent) {
        copy_cells(state_parts(source), state_parts(target), source.recurrent->size);
        target.recurrent->clear(/*data =*/false);
        std::copy(source.recurrent->cells.begin(), source.recurrent->cells.end(), target.recurrent->cells.begin());
        target.recurrent->head = source.recurrent->head;
        target.recurrent->used = source.recurrent->used;
    }
    return true;
}

bool memory_gather(llama_context * from, llama_context * to, const std::vector<extent> & cells) {
    if (!fits(from, to, n_cells_of(cells))) {
        return false;
    }
    const memory_parts source     = parts_of(from);
    const auto         runs       = checked(from, source, cells);
    const auto         from_parts = cell_parts(source);
    const auto         to_parts   = cell_parts(parts_of(to));
    to->synchronize();
    uint32_t at = 0;
    for (const extent & run : runs) {
        for (size_t i = 0; i < from_parts.size(); ++i) { // by parts: all of a long run at once would be much memory
            write({ to_parts[i] }, { { at, run.n } }, read({ from_parts[i] }, { run }));
        }
        at += run.n;
    }
    return true;
}

} // namespace tgr
