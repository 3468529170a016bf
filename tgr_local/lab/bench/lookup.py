"""Texts with drafts (``draft_lookup``) compared with the same texts without.

A grammar with one token at every place decides the texts, since random weights copy nothing by
themselves; each row costs as if the model had chosen it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.lab.bench import subject
from tgr_local.lab.bench.measure import Row, Spread, Target, alternate_timed
from tgr_local.lab.bench.plan import Plan

PREFIX = 384  # tokens of the prompt
CHANGE = 24  # tokens from one that is not copied to the next


def texts(plan: Plan) -> Iterator[Row]:
    """A text that copies its prompt with changes, one that says nothing again, and one of few
    words whose order nothing foretells."""
    engine, n = plan.engine, 96 if plan.quick else 384
    rng = np.random.default_rng(2)
    words = [int(t) for t in rng.permutation(engine.n_vocab) if _is_word(engine, int(t))]
    n_prompt = min(PREFIX, len(words) // 2)  # of a small vocabulary
    n = min(n, n_prompt)
    prompt, new = words[:n_prompt], words[n_prompt : n_prompt + n]
    copied = [new[i] if i % CHANGE == CHANGE - 1 else prompt[i] for i in range(n)]
    few = [prompt[int(i)] for i in rng.integers(0, 8, n)]
    for what, text, least in (
        (f"that copies its prompt but for every {CHANGE}th token", copied, 1.8),
        ("that repeats nothing", new, 0.98),
        ("of eight words in random order", few, 0.98),
    ):
        before = engine.stats()
        plain, drafted = alternate_timed(
            plan.few, [partial(_write, engine, prompt, text, drafts) for drafts in (False, True)]
        )
        after = engine.stats()
        n_drafted = after.n_drafted - before.n_drafted
        n_accepted = after.n_accepted - before.n_accepted
        yield Row(
            "lookup",
            f"text of {n} tokens {what}: with drafts / without",
            Spread.of(plain / drafted),
            "of its speed",
            {"tokens/s with": Spread.of(n / drafted), "tokens/s without": Spread.of(n / plain)},
            Target(least, at_least=True),
            f"{n_accepted} of {n_drafted} drafted positions were accepted" if n_drafted else "",
        )


def _is_word(engine: Engine, token: int) -> bool:
    """Whether a grammar may ask for it: a token of whole, visible characters."""
    text = engine.detokenize([token])
    return text.isascii() and text.isalnum()


def _write(engine: Engine, prompt: list[int], text: list[int], drafts: bool) -> float:
    """Seconds of the text, without those of its prompt."""
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in text)
    sampling = Sampling(temperature=subject.SAMPLING.temperature, grammar=grammar)
    with engine.session(len(prompt) + len(text) + 8, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, prompt[:-1])])
        task = Task(sequence, prompt[-1:], n_generate=len(text), sampling=sampling, drafts=drafts)
        start = time.perf_counter()
        session.run([task])
        return time.perf_counter() - start
