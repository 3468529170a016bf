"""``self-consistency``: n plain samples side by side; the most frequent final answer wins.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (ICLR 2023).
Answers are found and compared by `tgr_local.system.answers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tgr_local.lab.methods import best_of_n
from tgr_local.options.groups import SampleOptions
from tgr_local.search.branches import Branches
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step
from tgr_local.system.answers import answer_key


def run(run: Run) -> Iterator[Step]:
    """Samples all n, lets them vote, then yields the likeliest sample of the winning answer."""
    limit = best_of_n.longest_sample(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=run.config.n_samples) as branches:
        samples = best_of_n.sampled(branches, run.config.n_samples)
        # a text that was cut has not come to its answer
        voters = [sample for sample in samples if sample.ended] or samples
        keys = [answer_key(branches.text(voter.tokens)) for voter in voters]
        kept = elect(keys, [voter.likelihood for voter in voters])
        votes = Counter(key for key in keys if key is not None)
        figures = {"samples": len(samples), "votes": votes[keys[kept] or ""], "answers": len(votes)}
        yield from branches.steps(voters[kept], figures)


def elect(keys: Sequence[str | None], likelihoods: Sequence[float]) -> int:
    """The index of the likeliest text among those with the most frequent answer; ties between
    answers go to the likeliest text too. A text without an answer is chosen only if
    no text has one."""
    votes = Counter(key for key in keys if key is not None)
    return max(range(len(keys)), key=lambda i: (votes.get(keys[i] or "", 0), likelihoods[i]))


METHOD = Method(
    "self-consistency",
    run,
    best_of_n.cells,
    best_of_n.sequences,
    about="writes several texts, shows the most frequent answer",
    options=(SampleOptions,),
)
