"""``self-consistency``: n plain samples side by side; the most frequent final answer stays.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (ICLR 2023).
Answers are found and compared by `tgr_local.answers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tgr_local.answers import answer_key
from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.methods import best_of_n
from tgr_local.options.config import SearchConfig
from tgr_local.search.branches import Branches, text_limit
from tgr_local.search.steps import Listener, Step

resets = False


def run(
    engine: Engine,
    prompt: Sequence[int],
    config: SearchConfig,
    *,
    participant: Participant | None = None,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """Samples all n, lets them vote, then yields the likeliest sample of the winning answer."""
    with Branches(
        engine, prompt, config, limit=text_limit(engine, len(prompt), config),
        n_cells=cells(engine, len(prompt), config), n_seqs=sequences(config),
        least=config.n_samples, participant=participant, on_event=on_event, cancel=cancel,
    ) as branches:  # fmt: skip
        samples = branches.sample(config.n_samples)
        # a text that was cut has not come to its answer
        voters = [sample for sample in samples if sample.ended] or samples
        keys = [answer_key(branches.text(voter.tokens)) for voter in voters]
        kept = elect(keys, [voter.likelihood for voter in voters])
        votes = Counter(key for key in keys if key is not None)
        figures = {"samples": len(samples), "votes": votes[keys[kept] or ""], "answers": len(votes)}
        yield from branches.steps(voters[kept], figures)


def elect(keys: Sequence[str | None], likelihoods: Sequence[float]) -> int:
    """The index of the likeliest text among those with the most frequent answer; ties between
    answers go to the likeliest text too. A text without an answer stays only if none has one."""
    votes = Counter(key for key in keys if key is not None)
    return max(range(len(keys)), key=lambda i: (votes.get(keys[i] or "", 0), likelihoods[i]))


cells = best_of_n.cells
sequences = best_of_n.sequences
