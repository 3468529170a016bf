// The memory of a context, below llama.cpp's own calls: the keys and values of cells, and the states of recurrent
// layers. memory.cpp knows every kind of memory that llama.cpp has.
//
// A model without attention layers has no cells: calls about cells then do nothing, and their bytes are none.
//
// Call these between decodes, from the thread that decodes. Cells and sizes that do not fit are an Error; the memory is
// unchanged then, unless it says otherwise.
#pragma once

#include "base/cells.h"

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

class llama_kv_cache;

namespace tgr {

// Memory that a model keeps of a sequence: per token the keys and values of its attention layers, in a cell; for all
// tokens one state of its recurrent layers, which cannot go back to fewer tokens.
struct memory_kind {
    bool   cells       = false; // the model has attention layers
    bool   recurrent   = false; // the model has recurrent layers
    size_t cell_bytes  = 0;     // size of one cell
    size_t state_bytes = 0;     // size of one state
};

// Kind of a context's memory; neither cells nor recurrent: one that this engine does not know.
memory_kind memory_of(llama_context * ctx);

// Bytes of one state, from what the file says. Zero where no layer is recurrent.
uint64_t memory_state_bytes(const llama_model * model);

// Text that the raw bytes below depend on: layers, types, sizes, order. Bytes fit wherever it is the same.
std::string memory_layout(llama_context * ctx);

// The caches that hold the cells: none, one, or two of equal size (one of them for layers with a sliding window).
std::vector<llama_kv_cache *> memory_caches(llama_context * ctx);

// Makes cells, whose keys and values are in the tensors, part of a sequence: the first one at first_pos, the others at
// the positions that follow. A cell is free, or held by other sequences at that position.
void memory_attach(llama_context * ctx, llama_seq_id seq_id, uint32_t first_pos, const std::vector<extent> & cells);

// The keys and values of these cells in all layers. Slow where values lie transposed on a GPU (without flash
// attention): one access for every number of a value.
std::vector<uint8_t> memory_read_cells(llama_context * ctx, const std::vector<extent> & cells);
void memory_write_cells(llama_context * ctx, const std::vector<extent> & cells, const std::vector<uint8_t> & bytes);

// The recurrent state of a sequence; empty where the model has no recurrent layers.
std::vector<uint8_t> memory_read_state(llama_context * ctx, llama_seq_id seq_id);

// Gives a sequence that state, after n_tokens, so that decoding continues at that position. Its cells are attached
// apart from this.
void memory_write_state(llama_context * ctx, llama_seq_id seq_id, uint32_t n_tokens,
                        const std::vector<uint8_t> & bytes);

// Copies all cells, also those that no sequence holds, and all states, at the same indices, with their sequences and
// positions. False, and `to` is unchanged, when it is of another layout or has fewer cells or states.
bool memory_copy(llama_context * from, llama_context * to);

// Copies the keys and values of these cells to the first cells of `to`, one after the other. No sequence may hold any.
// False, and `to` is unchanged, as in memory_copy.
bool memory_gather(llama_context * from, llama_context * to, const std::vector<extent> & cells);

} // namespace tgr
