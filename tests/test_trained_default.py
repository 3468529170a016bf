"""The search at its defaults leaves a trained model whole: right answers stay likely, and easy
questions are answered as plain sampling answers them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from trained_models import TrainedModel
from trained_texts import ANSWERED, EASY, question

from tgr_local import SearchConfig, generate
from tgr_local.engine import Engine, Task
from tgr_local.generation import advised
from tgr_local.search import geometry, maps, strength
from tgr_local.search.steering import injected

pytestmark = pytest.mark.trained

RISE = 0.05  # nats a token
N_ANCHORS = 2  # for each answer, others for each
STORIES = ("Write a short story about a storm.", "Explain how bread is made, step by step.")


def default_vectors(engine: Engine, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """The injections [n, n_layer, n_embd] of n random anchors by the default options, with the
    strength that is measured for the model; then each with ten times of it."""
    config = advised(engine)
    found = strength.prepare(engine, config)
    assert found is not None
    anchors = geometry.unit(rng.standard_normal((n, config.d_z or engine.n_embd)))
    drawn = maps.of(engine, config).injection
    unused = np.ones(engine.n_layer)
    vectors = injected(config, drawn, anchors, unused, found.zeta)
    return np.asarray(np.concatenate([vectors, 10 * vectors]), np.float32)


def likelihoods(
    engine: Engine, prompt: list[int], answer: list[int], rng: np.random.Generator
) -> tuple[float, float, float]:
    """The mean negative log-likelihood of an answer, nats a token: plain, under the default's
    injection, which acts on what follows the prompt, and under ten times of it."""
    vectors = default_vectors(engine, N_ANCHORS, rng)
    n_rows = 1 + 2 * N_ANCHORS
    n_cells = len(prompt) + n_rows * (len(answer) + 1)
    with engine.session(n_cells, 1 + n_rows) as session:
        root = session.sequence()
        session.run([Task(root, prompt[:-1])])
        injections = [None, *(session.injection(one) for one in vectors)]
        feed = [prompt[-1], *answer]
        tasks = [Task(root.fork(), feed, injection=i, feed_logprobs=True) for i in injections]
        plain, *others = (-float(out.feed_logprobs.mean()) for out in session.run(tasks))
    return plain, float(np.mean(others[:N_ANCHORS])), float(np.mean(others[N_ANCHORS:]))


def test_right_answers_stay_likely(trained: TrainedModel, trained_engine: Engine):
    rng = np.random.default_rng(0)
    end = "" if trained.chats else " "
    found = np.array(
        [
            likelihoods(
                trained_engine,
                question(trained, trained_engine, asked),
                trained_engine.tokenize(end + answer, parse_special=False),
                rng,
            )
            for asked, answer in ANSWERED
        ]
    )
    plain, by_default, strong = found.mean(axis=0)
    rise = found[:, 1] - found[:, 0]
    measured = strength.known(trained_engine, advised(trained_engine))
    assert measured is not None
    said = (
        f"{measured}, {measured.n_positions} positions in {measured.seconds:.1f} s; "
        f"{plain:.3f} plain, {rise.mean():+.3f} injected, {rise.max():+.3f} at most, "
        f"{strong - plain:+.2f} at ten times"
    )
    print(said)
    assert plain < 2.5, "the answers are what the model may say"
    assert by_default - plain <= RISE, said


@pytest.mark.parametrize("asked", STORIES)
def test_ten_times_too_strong_is_still_text(
    trained: TrainedModel, trained_engine: Engine, asked: str
):
    """The guard writes what the injection throws off its course plainly: the text is as likely as
    plain text."""
    query = question(trained, trained_engine, asked)
    config = SearchConfig(chunk_len=48, max_tokens=192, eta=10.0, divergence=0.02)
    plain = generate(trained_engine, query, config, method="markov")
    strong = generate(trained_engine, query, config, method="tgr-latent")
    assert 0 < strong.n_plain < len(strong.steps)
    for step in strong.steps[1:]:
        assert step.figures["plain"] == (step.figures["excess"] > config.guard)
    found = [np.mean(np.concatenate([s.logprobs for s in r.steps])) for r in (plain, strong)]
    print(f"{found[0]:.2f} plain, {found[1]:.2f} ten times too strong: {strong.text[-60:]!r}")
    assert found[1] > found[0] - 0.7


def test_easy_questions_are_answered_as_by_plain_sampling(
    trained: TrainedModel, trained_engine: Engine
):
    stop = () if trained.chats else ("\n",)
    config = SearchConfig(max_tokens=32, stop=stop)
    differ = []
    for asked in EASY:
        query = question(trained, trained_engine, asked)
        # from here on the prompt is remembered, and both read the same
        generate(trained_engine, query, SearchConfig(max_tokens=1), method="base")
        plain = generate(trained_engine, query, config, method="base")
        searched = generate(trained_engine, query, config, method="tgr-latent")
        if searched.text != plain.text:
            differ.append(f"{asked} {plain.text!r}, searched {searched.text!r}")
    assert not differ, "\n".join(differ)
