"""Work of `TgrLlama` with single tokens: a text token by token, the tokenizer as an object."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.generation import longest_text
from tgr_local.options.config import SearchConfig

_BLOCK = 64  # tokens that are asked for at a time


def continued(engine: Engine, tokens: Seq[int], config: SearchConfig) -> Iterator[int]:
    """The tokens that continue a text, until the context is full or a grammar is complete. Each
    block of them has a session of its own, which takes the text before it
    from the cache: what is reserved grows with the text. Raises ValueError for an empty text, and
    for what is no list of tokens."""
    try:
        text = [operator.index(token) for token in tokens]
    except TypeError:
        raise ValueError(f"tokens is {tokens!r:.80}, but must be a list of token numbers") from None
    if not text:
        raise ValueError("tokens is empty, but must have one at least")
    n_prompt, sampling = len(text), Sampling.of(config)
    while (n := min(_BLOCK, longest_text(engine) - len(text))) > 0:
        with engine.session(len(text) + n + 1, 1, prompt=text) as session:
            sequence = session.sequence()
            task = Task(
                sequence,
                text,
                n_generate=n,
                reuse=True,
                sampling=sampling,
                seed=(config.seed + len(text) - n_prompt) % 2**63,
                grammar_history=text[n_prompt:],
                ignore_eog=not config.grammar,
            )
            (output,) = session.run([task])
            session.remember(sequence)
        for token in output.tokens.tolist():
            text.append(token)
            yield token
        if output.finish == "stop":
            return


class Tokenizer:
    """The tokens of a model, as ``llama_cpp.LlamaTokenizer`` has them."""

    def __init__(
        self, tokenize: Callable[..., list[int]], detokenize: Callable[..., bytes]
    ) -> None:
        self._tokenize, self._detokenize = tokenize, detokenize

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Tokenizes as `TgrLlama.tokenize` does, but reads control tokens."""
        return self._tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Seq[int], prev_tokens: Seq[int] | None = None, special: bool = False
    ) -> bytes:
        """Detokenizes as `TgrLlama.detokenize` does."""
        return self._detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text."""
        return self.tokenize(text.encode(), add_bos, special)

    def decode(self, tokens: Seq[int]) -> str:
        """The text of tokens, without what is not UTF-8."""
        return self.detokenize(tokens).decode("utf-8", "ignore")
