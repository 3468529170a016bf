// Compiled with llama.cpp: it uses its private headers.

#include "decode.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-model.h"

namespace tgr {

int32_t decode(llama_context * context, const llama_batch & batch, int32_t n_seqs) {
    const llama_hparams & hparams = llama_get_model(context)->hparams;
    llama_batch_ext       given(
        size_t(batch.n_tokens), hparams.n_embd_inp(), hparams.n_embd_inp_enc(), n_seqs, llama_get_memory(context),
        llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context))), hparams.n_pos_per_embd());
    llama_batch_compat::init(given, batch);
    return context->decode(given);
}

} // namespace tgr
