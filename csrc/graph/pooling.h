// Output of a model for a whole text, instead of the next token.
//
// Compiled into our copy of libllama.
#pragma once

#include "llama.h"

#include <vector>

namespace tgr {

// Whether a token attends to those after it, as in encoders.
bool looks_ahead(const llama_model * model);

// The matrix [n_classes, n_embd] that makes the scores of a reranker from a text's state; empty = there is none.
std::vector<float> classifier_of(const llama_model * model);

} // namespace tgr
