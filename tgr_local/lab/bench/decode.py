"""Steps, prefill and plain replies compared with llama_cpp; the cost of capture, of sampling and of
drafts (``draft_lookup``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import zip_longest

import numpy as np

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.lab.bench import subject
from tgr_local.lab.bench.measure import (
    Figure,
    Floats,
    Spread,
    Target,
    alternate,
    alternate_timed,
    clock,
)
from tgr_local.lab.bench.peers import Library, Raw, Subprocess
from tgr_local.lab.bench.plan import Plan

K = 8
PREFIX = 256  # cached tokens that the sequences share
PLAIN = 32  # tokens of one plain reply
PROMPT = 384  # tokens of the prompt of a text with drafts
CHANGE = 24  # tokens of it from one that is not copied to the next


def steps(plan: Plan) -> Iterator[Figure]:
    """One token for each of n sequences that share a prefix. The peer does not sample."""
    counts = (1, K) if plan.quick else (1, 2, 4, K, 16, 32)
    n_steps = {n: plan.n_steps if n <= K else 8 for n in counts}
    prefix, most = subject.prompt(plan.engine, PREFIX), counts[-1]
    n_ctx = PREFIX + most * plan.n_steps + 8
    with (
        subject.Forks(plan.engine, prefix, most, plan.n_steps) as forks,
        Subprocess(Raw, plan.engine.path, plan.settings, n_ctx, most) as raw,
    ):
        raw.feed(prefix)
        contenders: list[Callable[[], object]] = []
        for n in counts:
            contenders.append(partial(forks.steps, n, n_steps[n]))
            contenders.append(partial(raw.forked_steps, n, PREFIX, n_steps[n]))
        seconds = alternate(plan.repeats, contenders)
    own = {n: seconds[2 * i] / n_steps[n] for i, n in enumerate(counts)}
    peer = {n: seconds[2 * i + 1] / n_steps[n] for i, n in enumerate(counts)}
    for n in counts:
        yield Figure(
            "decode",
            f"decode step of {n} sequence{'s' * (n > 1)}: tgr-local / raw llama_decode",
            Spread.of(own[n] / peer[n]),
            "of its time",
            {"ms tgr-local": Spread.of(1e3 * own[n]), "ms raw": Spread.of(1e3 * peer[n])},
        )
    yield Figure(
        "decode",
        f"decode step of {K} sequences / of one",
        Spread.of(own[K] / own[1]),
        "times",
        {"raw llama_decode": Spread.of(peer[K] / peer[1])},
        Target(2.8),
    )


def prefill(plan: Plan) -> Iterator[Figure]:
    """A prompt up to the first new token, which llama.cpp does not sample."""
    for n in (128,) if plan.quick else (128, 512, 2048):
        tokens = subject.prompt(plan.engine, n)
        with Subprocess(Raw, plan.engine.path, plan.settings, n + 8, 1) as raw:
            rates = n / alternate_timed(
                plan.few if n > 128 else plan.repeats,
                [
                    partial(clock, partial(subject.prefill, plan.engine, tokens)),
                    partial(clock, partial(raw.read, tokens)),
                    *(partial(seconds, n, 0) for seconds in plan.programs.values()),
                ],
            )
        names = ("raw llama_decode", *plan.programs)
        yield from _compared("prefill", f"prefill of {n} tokens", names, rates)


def plain(plan: Plan) -> Iterator[Figure]:
    """A plain reply of one sequence; llama.cpp too samples from the full vocabulary."""
    engine, n_ctx = plan.engine, PLAIN + 8
    with (
        Subprocess(Library, engine.path, plan.settings, n_ctx) as library,
        Subprocess(Raw, engine.path, plan.settings, n_ctx, 1) as raw,
    ):
        rates = PLAIN / alternate_timed(
            2 * plan.repeats,  # the reply is short and the three are close
            [
                partial(clock, partial(subject.generate, engine, PLAIN)),
                partial(clock, partial(library.generate, PLAIN)),
                partial(clock, partial(raw.generate, PLAIN)),
                *(partial(seconds, 0, PLAIN) for seconds in plan.programs.values()),
            ],
        )
    names = ("Llama.generate", "raw loop", *plan.programs)
    targets = (Target(1.0, at_least=True), Target(0.98, at_least=True))
    yield from _compared("plain", f"plain reply of {PLAIN} tokens", names, rates, targets)


def _compared(
    group: str, what: str, names: Iterable[str], rates: Floats, targets: Iterable[Target] = ()
) -> Iterator[Figure]:
    """A row for each peer; the first rates are the engine's."""
    own = rates[0]
    for name, rate, target in zip_longest(names, rates[1:], targets):
        yield Figure(
            group,
            f"{what}: tgr-local / {name}",
            Spread.of(own / rate),
            "of its speed",
            {"tokens/s tgr-local": Spread.of(own), f"tokens/s {name}": Spread.of(rate)},
            target,
        )


def capture(plan: Plan) -> Iterator[Figure]:
    """The cost of an injection and of captured states in a step. Log-probabilities are always on:
    the pass that samples also computes them."""
    n = plan.n_steps
    variants = ((False, False), (True, False), (False, True), (True, True))
    with subject.Forks(plan.engine, subject.prompt(plan.engine, PREFIX), K, n) as forks:
        seconds = alternate(
            plan.repeats,
            [
                partial(forks.steps, K, n, inject=inject, states=states)
                for inject, states in variants
            ],
        )
    without = seconds[0]
    names = ("injection", "states", "injection and states")
    for name, with_ in zip(names, seconds[1:], strict=True):
        yield Figure(
            "capture",
            f"decode step of {K} sequences: with {name} / with neither",
            Spread.of(100 * (with_ / without - 1)),
            "% more",
            {"ms with": Spread.of(1e3 * with_ / n), "ms neither": Spread.of(1e3 * without / n)},
            Target(3) if name.endswith("and states") else None,
        )


def sampling(plan: Plan) -> Iterator[Figure]:
    """The parts of a step by the engine's own clocks."""
    share, remainder = np.zeros(plan.repeats), np.zeros(plan.repeats)
    n = plan.n_steps
    with subject.Forks(plan.engine, subject.prompt(plan.engine, PREFIX), K, n) as forks:
        forks.steps(K, n, inject=True, states=True)
        for i in range(plan.repeats):
            at_start, start = plan.engine.stats(), time.perf_counter()
            forks.steps(K, n, inject=True, states=True)
            took, at_end = time.perf_counter() - start, plan.engine.stats()
            sampling_seconds = at_end.sample_seconds - at_start.sample_seconds
            decoded = at_end.decode_seconds - at_start.decode_seconds
            share[i] = 100 * sampling_seconds / took
            remainder[i] = 1e6 * (took - sampling_seconds - decoded) / n
    yield Figure(
        "sampling",
        f"sampling of {K} sequences, {plan.engine.n_vocab:,} tokens, log-probabilities included",
        Spread.of(share),
        "% of the step",
        target=Target(3 if plan.settings.on_cpu else 12),
    )
    yield Figure(
        "sampling",
        f"everything except decoding and sampling, {K} sequences",
        Spread.of(remainder),
        "µs a step",
        target=Target(100),
    )


def lookup(plan: Plan) -> Iterator[Figure]:
    """Speed of drafts on a text that copies its prompt with changes, one without repetition, and
    one of few words in random order. A grammar with one token at every place decides the texts,
    since random weights copy nothing by themselves; each row costs as if the model had chosen
    it."""
    engine, n = plan.engine, 96 if plan.quick else 384
    rng = np.random.default_rng(2)
    words = [int(t) for t in rng.permutation(engine.n_vocab) if _is_word(engine, int(t))]
    n_prompt = min(PROMPT, len(words) // 2)  # of a small vocabulary
    n = min(n, n_prompt)
    prompt, new = words[:n_prompt], words[n_prompt : n_prompt + n]
    copied = [new[i] if i % CHANGE == CHANGE - 1 else prompt[i] for i in range(n)]
    few = [prompt[int(i)] for i in rng.integers(0, 8, n)]
    for kind, text, least in (
        (f"that copies its prompt but for every {CHANGE}th token", copied, 1.8),
        ("that repeats nothing", new, 0.98),
        ("of eight words in random order", few, 0.98),
    ):
        at_start = engine.stats()
        plain, drafted = alternate_timed(
            plan.few, [partial(_write, engine, prompt, text, drafts) for drafts in (False, True)]
        )
        at_end = engine.stats()
        n_drafted = at_end.n_drafted - at_start.n_drafted
        n_accepted = at_end.n_accepted - at_start.n_accepted
        yield Figure(
            "lookup",
            f"text of {n} tokens {kind}: with drafts / without",
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
