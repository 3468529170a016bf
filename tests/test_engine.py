"""The engine: its numbers against the plain numpy reference, its options, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any

import gguf
import numpy as np
import pytest
from engines import (
    DEVICE,
    ENDLESS,
    ROUNDING,
    TOKENS,
    exact,
    generated,
    held,
    is_free,
    vectors,
    written,
)
from fixture_types import Load, Model
from gguf_models import N_VOCAB, token_id, write_model
from numpy.typing import NDArray
from reference import Outputs, Reference, log_softmax

from tgr_local.engine import Cancel, Engine, New, Output, Sampling, Task
from tgr_local.system.errors import CancelledError, CapacityError, TgrError

BOUND = ROUNDING if DEVICE else 1e-4  # to the reference
SHAPES = [
    ("qwen3", {"tied": False}),
    ("qwen3", {"tied": True, "head_dim": 32, "n_head_kv": 1}),
    ("llama", {"tied": False}),
    ("llama", {"tied": True, "head_dim": 32, "n_head_kv": 1}),
    ("phi3", {"tied": False}),
    ("phi3", {"tied": True, "n_head_kv": 4}),
]


def observe(
    engine: Engine, feed: list[int] = TOKENS, injection: NDArray[Any] | None = None, n: int = 8
) -> Output:
    """Feeds and samples with everything kept that an output can hold."""
    with engine.session(len(feed) + n, 1) as session:
        injection = None if injection is None else session.injection(injection)
        task = Task(
            session.sequence(), feed, n_generate=n, injection=injection, seed=1, ignore_eog=True,
            states=True, feed_states="all", feed_logprobs=True, norms=True, n_top=engine.n_vocab,
        )  # fmt: skip
        return session.run([task])[0]


def whole_text(output: Output, feed: list[int] = TOKENS) -> list[int]:
    """What the model has read when the last token is sampled."""
    return feed + output.tokens.tolist()[:-1]


def errors(output: Output, wanted: Outputs, feed: list[int] = TOKENS) -> dict[str, float]:
    """The largest deviation of everything in the output from a forward pass over the same text."""
    n_feed, n = len(feed), len(output.tokens)
    text = whole_text(output, feed)
    logprobs = log_softmax(wanted.logits)
    sampled = logprobs[n_feed - 1 :]
    distributions = np.empty_like(sampled)
    np.put_along_axis(distributions, output.top_ids, output.top_logprobs, axis=1)
    pairs = {
        "feed_logprobs": (output.feed_logprobs, logprobs[range(n_feed - 1), text[1:n_feed]]),
        "feed_states": (output.feed_states, wanted.states[:n_feed]),
        "residual norms": (output.norms, wanted.residual_norms[:, :n_feed].T),
        "logprobs": (output.logprobs, sampled[range(n), output.tokens]),
        "distributions": (distributions, sampled),
        "entropies": (output.entropies, -np.sum(np.exp(sampled) * sampled, axis=1)),
        "states": (output.states, wanted.states[n_feed - 1 :]),
    }
    return {name: float(np.abs(ours - theirs).max()) for name, (ours, theirs) in pairs.items()}


def compare(
    engine: Engine, reference: Reference, injection: NDArray[Any] | None, feed: list[int] = TOKENS
) -> dict[str, float]:
    output = observe(engine, feed, injection)
    text = whole_text(output, feed)
    everywhere = None if injection is None else np.tile(injection, (len(text), 1, 1))
    return errors(output, reference.forward(text, everywhere), feed)


# --- numbers ---


@pytest.mark.parametrize("injected", [False, True], ids=["plain", "injected"])
@pytest.mark.parametrize(("arch", "shape"), SHAPES)
def test_f32_file_and_cache_agree_with_the_reference(
    model: Model, load: Load, arch: str, shape: Any, injected: bool
):
    """Measured: 4e-6 at most."""
    path = model(arch, n_layer=3, **shape)
    injection = vectors(n_layer=3)[0] if injected else None
    worst = compare(load(path), Reference(path), injection)
    assert max(worst.values()) <= BOUND, worst


@exact
@pytest.mark.parametrize("injected", [False, True], ids=["plain", "injected"])
@pytest.mark.parametrize("arch", ["qwen3", "llama", "phi3"])
def test_f16_cache_agrees_within_its_rounding(model: Model, load: Load, arch: str, injected: bool):
    """Measured: 2e-3 from a reference that rounds as the cache does, since a value next to a
    rounding boundary may fall on either side; 5e-3 from the exact one; 1.1e-2 with flash attention,
    which keeps its sums in F16 too."""
    path = model(arch, n_layer=3)
    injection = vectors(n_layer=3)[0] if injected else None
    off = load(path, type_k="f16", type_v="f16")
    on = load(path, type_k="f16", type_v="f16", flash_attn="on")
    rounded = compare(off, Reference(path, f16_cache=True), injection)
    assert np.median(list(rounded.values())) <= 1e-3 and max(rounded.values()) <= 5e-3, rounded
    assert max(compare(off, Reference(path), injection).values()) <= 1e-2
    assert max(compare(on, Reference(path), injection).values()) <= 3e-2


@exact
@pytest.mark.parametrize("injected", [False, True], ids=["plain", "injected"])
@pytest.mark.parametrize("arch", ["qwen3", "llama", "phi3"])
def test_q8_file_agrees_with_a_reference_that_rounds_activations(
    model: Model, load: Load, arch: str, injected: bool
):
    """Measured: 2e-6, except after an activation that falls on the other side of a rounding
    boundary (0.1). Most short texts have none, which the median says."""
    path = model(arch, dtype="Q8_0")
    engine, reference = load(path), Reference(path, round_activations=True)
    injection = vectors()[0] if injected else None
    texts = [TOKENS[i : i + 4] for i in range(0, 20, 4)]
    worst = [max(compare(engine, reference, injection, text).values()) for text in texts]
    assert np.median(worst) <= 1e-4 and max(worst) <= 0.5, worst


def test_residual_norms_of_long_feeds_sample_the_last_layer(engine: Engine):
    output = written(engine, TOKENS * 4, norms=True)
    measured = np.isfinite(output.norms)
    assert measured[:, 0].all()
    assert np.flatnonzero(measured[:, 1]).tolist() == list(range(0, 96, 4))


# --- what one task does ---


def test_hand_counted_work(engine: Engine):
    before = engine.stats().n_positions
    with engine.session(16, 2) as session:
        sequence = session.sequence()
        (fed,) = session.run([Task(sequence, [1, 2, 3])])
        assert (fed.n_decoded, fed.finish, len(fed.tokens), len(sequence)) == (3, "", 0, 3)
        task = Task(sequence, [4], n_generate=5, ignore_eog=True)
        (output,) = session.run([task])
        # the last token is sampled, not decoded
        assert (output.n_decoded, output.finish, len(output.tokens)) == (5, "length", 5)
        assert len(sequence) == 8
        fork = sequence.fork()
        assert len(fork) == 8 and session.peak_cells() == 8
        session.run([Task(fork, [1, 2])])
        assert session.peak_cells() == 10
        fork.truncate(4)
        assert (len(fork), len(sequence)) == (4, 8)
        assert engine.stats().cells_used == 8
        sequence.drop()
        assert engine.stats().cells_used == 4
        assert session.peak_cells(reset=True) == 10 and session.peak_cells() == 4
    assert engine.stats().n_positions - before == 3 + 5 + 2


def test_outputs_hold_what_was_asked_for_and_no_more(engine: Engine):
    with engine.session(64, 4) as session:
        plain, last, top = session.run(
            [
                Task(session.sequence(), TOKENS[:4], n_generate=2, ignore_eog=True),
                Task(session.sequence(), TOKENS[:4], feed_states="last"),
                Task(session.sequence(), TOKENS[:4], n_generate=2, n_top=3, ignore_eog=True),
            ]
        )
    d = engine.n_embd
    assert plain.states.shape == plain.feed_states.shape == (0, d)
    assert len(plain.feed_logprobs) == len(plain.norms) == len(plain.top_ids) == 0
    assert last.feed_states.shape == (1, d)
    assert top.top_ids.shape == top.top_logprobs.shape == (2, 3)
    assert (np.diff(top.top_logprobs, axis=1) <= 0).all()


def test_an_end_token_ends_unless_ignored(engine: Engine):
    end = Sampling(0, logit_bias=((token_id("<|im_end|>"), 1e9),))
    assert generated(engine, sampling=end, ignore_eog=False) == [token_id("<|im_end|>")]
    assert generated(engine, sampling=end) == [token_id("<|im_end|>")] * 12


def test_stop_texts_end_over_token_borders_and_over_the_tail(engine: Engine):
    word = Sampling(0, grammar='root ::= "one two three" [x]*')
    with engine.session(64, 4) as session:

        def stopped(**options: Any) -> tuple[str, str]:
            task = Task(session.sequence(), [5], n_generate=16, sampling=word, **options)
            output = session.run([task])[0]
            return engine.detokenize(output.tokens).decode(), output.finish

        assert stopped(stop=("e tw", "zzz")) == ("one tw", "stop")
        assert stopped(stop=("so one",), tail=b"also ") == ("one", "stop")
        text, finish = stopped(stop=("never",))
        assert text.startswith("one two threex") and finish == "length"


def test_new_tokens_are_handed_out_as_they_come(engine: Engine):
    pieces: list[list[list[int]]] = []
    with engine.session(4000, 2) as session:
        tasks = [
            Task(session.sequence(), [i], n_generate=n, seed=i, ignore_eog=True)
            for i, n in enumerate((2000, 1000))
        ]
        outputs = session.run(tasks, on_tokens=pieces.append)
    for i, output in enumerate(outputs):
        assert [token for piece in pieces for token in piece[i][0]] == output.tokens.tolist()
    assert len(pieces) > 1


def test_a_deadline_keeps_what_there_is(engine: Engine):
    with engine.session(ENDLESS + 10, 1) as session:
        task = Task(session.sequence(), [1], n_generate=ENDLESS, ignore_eog=True)
        output = session.run([task], deadline=0.001)[0]
        assert output.finish == "cancelled" and len(output.tokens) < ENDLESS
        assert len(output.logprobs) == len(output.tokens)
        assert session.run([Task(task.sequence, [1], n_generate=2)])[0].finish != "cancelled"


@pytest.mark.parametrize("stage", ["prefill", "generation"])
def test_cancel_ends_a_run(engine: Engine, stage: str):
    cancel = Cancel()
    feed, n = ([1] * ENDLESS, 1) if stage == "prefill" else ([1], ENDLESS)
    with engine.session(ENDLESS + 10, 1) as session:
        task = Task(session.sequence(), feed, n_generate=n, ignore_eog=True)
        started = engine.stats().n_positions
        threading.Timer(0.02, cancel.cancel).start()
        with pytest.raises(CancelledError, match="cancelled"):
            session.run([task], cancel=cancel)
        assert engine.stats().n_positions - started < len(feed) + n - 1
        assert engine.stats().n_jobs == 0
        # the sequence holds what was decoded and can go on
        assert len(session.run([Task(task.sequence, [1], n_generate=2)])[0].tokens) > 0


def test_an_error_in_on_tokens_ends_the_job(engine: Engine):
    def fail(fresh: list[New]) -> None:
        raise ZeroDivisionError

    with engine.session(ENDLESS, 1) as session:
        task = Task(session.sequence(), [1], n_generate=ENDLESS, ignore_eog=True)
        with pytest.raises(ZeroDivisionError):
            session.run([task], on_tokens=fail)
        assert engine.stats().n_jobs == 0


# --- shifts ---


def test_a_shift_that_cannot_be_is_refused_and_changes_nothing(engine: Engine):
    with engine.session(100, 3) as session:
        sequence = session.sequence()
        session.run([Task(sequence, TOKENS)])
        fork = sequence.fork()
        session.run([Task(sequence, [1]), Task(fork, [1])])
        with pytest.raises(TgrError, match=r"shared with a fork.*drop the fork"):
            sequence.shift(2, 5)
        for start, end in ((5, 2), (0, 26), (26, 26)):
            with pytest.raises(ValueError, match=f"from {start} to {end} are not in .* of 25"):
                sequence.shift(start, end)
        with pytest.raises(ValueError, match="start is -1"):
            sequence.shift(-1, 3)
        assert len(sequence) == len(fork) == 25
        fork.drop()
        sequence.shift(2, 5)
        assert len(sequence) == 22
        sequence.shift(0, 22)
        assert len(sequence) == 0 == engine.stats().cells_used


def test_a_shift_of_quantised_keys_is_refused(model: Model, load: Load):
    shape = {"n_embd": 128, "head_dim": 32}
    engine = load(model(**shape), type_k="q8_0")
    with engine.session(100, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, TOKENS)])
        with pytest.raises(TgrError, match="keys are quantised, set type_k to f16; truncate"):
            sequence.shift(2, 5)
        sequence.shift(20, 24)  # nothing moves
        assert len(sequence) == 20


# --- reservations, handles ---


def test_garbage_gives_its_cells_back(engine: Engine):
    session = engine.session(64, 3)
    sequence, fork, injection = session.sequence(), None, session.injection(vectors()[0])
    session.run([Task(sequence, [1, 2, 3], injection=injection)])
    fork = sequence.fork()
    session.run([Task(fork, [4])])
    assert held(engine.stats())["cells_used"] == 4
    del fork
    assert held(engine.stats())["cells_used"] == 3 and engine.stats().n_sequences == 1
    del sequence, injection
    assert held(engine.stats())["cells_used"] == 0 and engine.stats().n_sessions == 1
    del session
    assert is_free(engine)


def test_dropped_injections_make_room(engine: Engine):
    with engine.session(8, 2) as session:
        kept = [session.injection(injection) for injection in vectors(2)]
        with pytest.raises(CapacityError, match="reserved 2 injections"):
            session.injection(vectors()[0])
        kept.pop().drop()
        session.injection(vectors()[0])


def test_a_session_gets_no_more_than_it_asked_for(engine: Engine):
    with engine.session(8, 1) as session:
        sequence = session.sequence()
        with pytest.raises(CapacityError, match="reserved 1 sequences"):
            sequence.fork()
        with pytest.raises(CapacityError, match=r"needs 9 cache cells.*reserved 8"):
            session.run([Task(sequence, [1] * 5, n_generate=5)])
        session.run([Task(sequence, [1] * 4, n_generate=5)])


def test_what_can_never_fit_is_refused_with_the_numbers(model: Model, load: Load):
    engine = load(model(), n_ctx=256, n_seq_max=4)
    with pytest.raises(CapacityError, match=r"needs 257 cache cells, but n_ctx is 256"):
        engine.session(257, 1)
    with pytest.raises(CapacityError, match=r"needs 5 sequences at a time.*holds 4"):
        engine.session(10, 5)
    engine.session(256, 4).close()
    assert is_free(engine)


def test_an_impossible_size_of_the_cache_changes_nothing(engine: Engine):
    n_ctx = engine.n_ctx
    for size in ((2**31, 2), (-1, 1), (8, 2**31)):
        with pytest.raises(ValueError, match=r"n_(cells|sessions) is"):
            engine.grow_cache(*size)
    engine.grow_cache(2**31 - 1, 2)
    assert engine.n_ctx == n_ctx


# --- the model ---


def test_properties_of_a_model(engine: Engine):
    assert (engine.n_layer, engine.n_embd, engine.n_vocab) == (2, 64, N_VOCAB)
    assert engine.n_ctx_train == 4096
    assert engine.metadata["general.architecture"] == "qwen3"
    assert engine.eos == token_id("<|im_end|>") and engine.fim_pad == token_id("<|fim_pad|>")
    assert engine.bos == token_id("<|endoftext|>")
    assert {token_id("<|im_end|>"), token_id("<|endoftext|>")} <= engine.end_tokens
    expected = "CPU" if DEVICE != "gpu" else engine.devices()[0]
    assert engine.devices() == [expected] * 3
    assert engine.size_bytes == pytest.approx(engine.path.stat().st_size, rel=0.1)
    assert len(engine.model_hash) == 64


def test_the_delimiter_is_one_token(engine: Engine):
    assert engine.eoc_token() == token_id("<|fim_pad|>")
    assert engine.eoc_token("<|im_start|>") == token_id("<|im_start|>")
    with pytest.raises(ValueError, match="eoc_token is 'ab', which is 2 tokens"):
        engine.eoc_token("ab")


def test_the_chat_template_opens_the_reply(engine: Engine):
    prompt = engine.chat_prompt([{"role": "user", "content": "he"}])
    assert prompt == "<|im_start|>user\nhe<|im_end|>\n<|im_start|>assistant\n"
    assert engine.tokenize(prompt)[0] == token_id("<|im_start|>")


def test_words_of_any_length_are_tokenized(tmp_path, load: Load, monkeypatch):
    """Where llama.cpp divides words by std::regex, each character takes some of the stack."""
    name = gguf.GGUFWriter.add_tokenizer_pre
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda self, _: name(self, "tekken"))
    engine = load(write_model(tmp_path / "m.gguf"))
    short = "he said\n" + "the thing " * 100
    for long in ("a" * 200_000, " " * 200_000, "\n" * 200_000, "é" * 100_000):
        tokens = engine.tokenize(short + "\n\nx" + long)
        assert engine.detokenize(tokens).decode() == short + "\n\nx" + long
        assert tokens[: len(engine.tokenize(short))] == engine.tokenize(short)
