"""Anchors towards where branches lead: the branches, the anchors made of them, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engines import is_free
from method_runs import PROMPT, steps_of, with_
from reference import Reference
from runs import decoded, spent

from tgr_local.engine import Engine, Output, Task
from tgr_local.errors import BudgetError
from tgr_local.search import geometry
from tgr_local.search.run import Run


@pytest.fixture
def branches(monkeypatch: pytest.MonkeyPatch) -> list[list[Output]]:
    """The outputs of the branches of every boundary, as they come."""
    found: list[list[Output]] = []
    plain = Run.generate

    def spy(run: Run, tasks: Sequence[Task], **how: Any) -> list[Output]:
        outputs = plain(run, tasks, **how)
        if all(task.injection is None for task in tasks):
            found.append(outputs)
        return outputs

    monkeypatch.setattr(Run, "generate", spy)
    return found


@pytest.mark.parametrize("d_z", [0, 16])
def test_anchors_lead_from_the_mean_of_the_branches_to_their_ends(
    engine: Engine, branches: list[list[Output]], d_z: int
) -> None:
    config = with_(proposal="branches", sigma=0.2, d_z=d_z)
    steps = steps_of(engine, "tgr-latent", config)
    assert len(branches) == len(steps) == 4 and is_free(engine)
    reference = Reference(engine.path)
    W = geometry.projection(d_z or engine.n_embd, engine.n_embd, config.injection_seed)
    written: list[int] = []
    for step, outputs in zip(steps, branches, strict=True):
        ends = []
        for output in outputs:
            context = PROMPT + written[-config.chunk_len :]
            logprobs, states = decoded(reference, context, output.tokens.tolist())
            np.testing.assert_allclose(output.logprobs, logprobs, atol=1e-4)
            ends.append(states[-1])
        z = step.origin
        assert step.candidates is not None and z is not None
        for end, anchor in zip(ends, step.candidates.anchors, strict=True):
            direction = end - np.mean(ends, axis=0)
            direction = direction if W is None else W @ direction
            u = geometry.unit(direction - (direction @ z) * z)
            wanted = geometry.unit(z + config.sigma * np.sqrt(z.size - 1) * u)
            np.testing.assert_allclose(anchor, wanted, atol=1e-4)
        # K branches and K rollouts of s tokens
        assert step.counts.rollouts == 2 * 3 * 4
        written += step.tokens.tolist()


def test_branches_are_not_the_rollouts(engine: Engine, branches: list[list[Output]]) -> None:
    (step,) = steps_of(engine, "tgr-latent", with_(proposal="branches", eta=0.0, max_chunks=1))
    assert step.candidates is not None
    ours = {tuple(tokens.tolist()) for tokens in step.candidates.tokens}
    theirs = {tuple(output.tokens.tolist()) for output in branches[0]}
    assert len(ours) == len(theirs) == 3 and not ours & theirs


def test_equal_branches_propose_noise(engine: Engine) -> None:
    noise, same = (
        steps_of(engine, "tgr-latent", with_(temperature=0.0, proposal=proposal))
        for proposal in ("noise", "branches")
    )
    for ours, theirs in zip(noise, same, strict=True):
        assert ours.candidates is not None and theirs.candidates is not None
        np.testing.assert_allclose(ours.candidates.anchors, theirs.candidates.anchors)


def test_a_budget_pays_for_the_branches(engine: Engine) -> None:
    # the query without its last token, a state, 3 branches and 3 rollouts of 4 tokens, a token, a
    # state
    first = 9 + 2 + 24 + 1 + 2
    for budget in range(first, first + 100, 9):
        config = with_(proposal="branches", max_forward_tokens=budget)
        assert spent(steps_of(engine, "tgr-latent", config)) <= budget
    with pytest.raises(BudgetError, match=f"is {first - 3}, but the first step alone takes"):
        steps_of(engine, "tgr-latent", with_(proposal="branches", max_forward_tokens=first - 3))


@pytest.mark.parametrize("method", ["tgr-token", "random-anchor", "hard-geometry"])
def test_methods_that_try_no_anchors_have_no_branches(engine: Engine, method: str) -> None:
    ours, theirs = (
        steps_of(engine, method, with_(proposal=proposal)) for proposal in ("noise", "branches")
    )
    assert [s.tokens.tolist() for s in ours] == [s.tokens.tolist() for s in theirs]
    assert spent(ours) == spent(theirs)


def test_layers_that_do_not_exist_are_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="last_layer 9, but the model has the layers 0 to 1"):
        list(steps_of(engine, "tgr-latent", with_(last_layer=9)))
    assert is_free(engine)
