// llama_decode without what it does for sequences that are not there.
#pragma once

#include "llama.h"

namespace tgr {

// Decodes a batch in which every token has one sequence below n_seqs; llama_decode's status. llama.cpp looks at every
// pair of the sequences that the batch may have, which for 256 of them takes as long as a fifth of a very small model's
// step.
int32_t decode(llama_context * context, const llama_batch & batch, int32_t n_seqs);

} // namespace tgr
