"""``markov``: the chunk-wise reset alone. Every chunk is sampled from Q and the last chunk."""

from __future__ import annotations

from tgr_local.search.chunkwise import chunk_method

METHOD = chunk_method(
    "markov",
    about="plain sampling in chunks, each from the question and the last chunk alone",
)
