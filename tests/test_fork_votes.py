"""bench/fork_votes.py, fork_record.py: recorded texts, and rules on texts whose result is known."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from surroundings import ROOT

from tgr_local import load
from tgr_local.lab.eval import tasks

BENCH = Path(ROOT, "bench", "fork_votes.py")

if not BENCH.exists():
    pytest.skip("bench is not next to the tests", allow_module_level=True)


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCH.with_name(f"{name}.py"))
    assert spec and spec.loader
    sys.modules[name] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


module("oracle_statistics")
fork_record, fork_votes = module("fork_record"), module("fork_votes")


def text(answer: str, likelihood: float = -0.5, cost: int = 10) -> fork_votes.Text:
    return fork_votes.Text(answer or None, answer == "7", likelihood, cost)


def test_a_fork_is_its_text_up_to_the_place_and_costs_what_follows():
    problem = tasks.get("arithmetic4").load(limit=1, seed=1)[0]
    with load() as engine:
        greedy, *others = fork_record.written(engine, problem, 5, 3)
        samples = [other for other in others if "kinds" not in other]
        forks = [other for other in others if "kinds" in other]

        assert len(samples) == 3
        assert {kind for fork in forks for kind in fork["kinds"]} >= {"mass", "early", "free"}
        for fork in forks:
            root = (greedy, samples[0])[fork["root"]]
            is_free, at = fork["kinds"] == ["free"], fork["at"]
            assert fork["logprobs"][:at] == root["logprobs"][:at]
            assert len(fork["logprobs"]) == at + (not is_free) + fork["cost"]
            begun = engine.tokenize(root["text"])
            assert fork["text"].startswith(engine.detokenize(begun[:at]).decode())
            if not is_free and root is greedy:  # the second likeliest token is there
                assert fork["logprobs"][at] < root["logprobs"][at]


def test_the_tokens_of_a_place_are_completed_with_the_same_seeds():
    problem = tasks.get("arithmetic4").load(limit=1, seed=1)[0]
    with load() as engine:
        texts = fork_record.completed(engine, problem, 5)

    assert len(texts) == fork_record.N_TOKENS * fork_record.N_COMPLETIONS
    at = texts[0]["at"]
    assert len({tuple(text["logprobs"][:at]) for text in texts}) == 1
    tokens = [text["logprobs"][at] for text in texts]
    assert len(set(tokens)) == fork_record.N_TOKENS
    assert tokens == sorted(tokens, reverse=True)


def test_likely_texts_and_equal_answers_win():
    assert fork_votes.elected([text("7"), text("3"), text("7")])
    assert not fork_votes.elected([text("7"), text("3"), text("3"), text("")])
    assert not fork_votes.elected([text("")])
    likely = [text("7", -0.1), text("3", -0.9), text("3", -0.9)]
    assert not fork_votes.elected(likely)
    assert fork_votes.elected(likely, "likelihood")


def test_a_vote_stops_once_two_agree_and_pays_what_was_written_beside():
    assert fork_votes.stopped([text("7"), text("7"), text("3")]) == (True, 20)
    # two differ; of the next two the shorter one decides, and the other has come as far
    texts = [text("7"), text("3"), text("7", cost=4), text("7", cost=30), text("3")]
    right, cost = fork_votes.stopped(texts)
    assert right and cost == 20 + 2 * 4 + (30 - 4)
    assert fork_votes.stopped([text(""), text("")]) == (False, 20)


def test_beginnings_cost_their_tokens_and_the_likeliest_goes_on():
    records = [
        {"text": answer, "logprobs": logprobs, "cost": 3, "ended": True, "right": answer == "7"}
        for answer, logprobs in (
            ("0", [0.0, 0.0, 0.0]), ("3", [-1.0, -1.0, -0.0]), ("7", [-0.1, -0.1, -9.0])
        )
    ]  # fmt: skip
    q = fork_votes.question(json.dumps({"id": "1", "texts": records}))
    rng = np.random.default_rng(0)

    assert fork_votes.begun(2, 2)(q, rng) == (True, 2 + 3)
    assert fork_votes.begun(2, 9)(q, rng) == (False, 3 + 3)


def test_two_rules_by_lot_cost_what_lies_between():
    curve = fork_votes.Curve([
        (np.array([0.0, 1.0]), np.array([10.0, 10.0])),
        (np.array([1.0, 1.0]), np.array([20.0, 40.0])),
    ])  # fmt: skip
    assert curve.at(20.0).tolist() == [0.5, 1.0]
    assert curve.at(5.0).tolist() == [0.0, 1.0]
    assert curve.at(99.0).tolist() == [1.0, 1.0]
