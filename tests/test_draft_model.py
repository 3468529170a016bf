"""A draft model: its guesses are decoded along and change no token of a text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import EXACT, KEEPING, ROUNDING, TOKENS, assert_same, exact, held, vectors
from gguf_models import write_bert, write_mamba, write_truncated
from gguf_models import write_model as write

from tgr_local import SearchConfig, cli, generate
from tgr_local.code.edits import Document, constraint, read_edits
from tgr_local.engine import Cancel, Engine, Output, Sampling, Session, Task, check_memory
from tgr_local.errors import CancelledError, ModelError
from tgr_local.lab.bench import lookup
from tgr_local.lab.bench.peers import Settings
from tgr_local.lab.bench.plan import Plan
from tgr_local.models import library
from tgr_local.options.config import EngineConfig

testing = pytest.importorskip("tgr_testing", reason="make test builds it")

GREEDY = Sampling(temperature=0)
WARM = Sampling(temperature=0.7, top_k=2)
"""The likeliest token, or now and then the next one."""

Loads = Callable[..., Engine]


@pytest.fixture
def drafting(model: Callable[..., Path], load: Loads) -> Loads:
    """`drafting("good", draft_tokens=7)`: an engine with a draft model that is always right where
    the likeliest token is taken, or one with other weights."""

    def make(kind: str = "good", *, arch: str = "qwen3", **options: Any) -> Engine:
        draft = model(arch) if kind == "good" else model("llama", seed=5)
        return load(model(arch), **{"draft_model": str(draft), "draft_tokens": 3} | options)

    return make


def both(session: Session, feed: list[int], **options: Any) -> tuple[Output, Output]:
    """The outputs of a task with the draft model and without."""
    fixed: dict[str, Any] = {"n_generate": 60, "ignore_eog": True, "sampling": GREEDY}
    outputs = []
    for drafts in (True, False):
        task = Task(session.sequence(), feed, draft_model=drafts, **fixed | options)
        outputs += session.run([task])
        task.sequence.drop()
    return outputs[0], outputs[1]


def assert_equal(ours: Output, theirs: Output) -> None:
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert (ours.finish, ours.n_decoded) == (theirs.finish, theirs.n_decoded)
    for name in ("logprobs", "sampled_logprobs", "entropies", "states", "top_logprobs"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), atol=ROUNDING, rtol=0, err_msg=name
        )
    assert theirs.n_refused == theirs.n_draft_model == 0


# --- the same texts ---


@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize(("arch", "n"), [("qwen3", 1), ("llama", 4), ("phi3", 31)])
def test_greedy_texts_are_those_without(drafting: Loads, arch: str, n: int, kind: str) -> None:
    engine = drafting(kind, arch=arch, draft_tokens=n)
    with engine.session(700, 2) as session:
        ours, theirs = both(session, TOKENS, n_generate=100, states=True, n_top=engine.n_vocab)
    assert_same(ours, theirs)
    assert_equal(ours, theirs)
    stats = engine.stats()
    assert stats.n_drafted - stats.n_accepted == ours.n_refused
    assert stats.n_draft_model == ours.n_draft_model >= len(TOKENS) + 20
    if kind == "good":
        assert stats.n_decodes - 100 <= 100 / (n + 1) + 6 and ours.n_refused <= n
    else:
        assert ours.n_refused > 50


@pytest.mark.parametrize("kind", ["good", "bad"])
@pytest.mark.parametrize(
    "options",
    [
        {"sampling": WARM},
        {"sampling": replace(WARM, top_p=0.9, repeat_penalty=1.1, frequency_penalty=0.1)},
        {"sampling": WARM, "part": 7, "seeds": (5, 6, 7)},
        {"sampling": Sampling(temperature=0.4, grammar='root ::= ("a" | "ab" | "c")*')},
        {"n_generate": 1},
        {"n_generate": 2},
        {"n_generate": 17, "ignore_eog": False},
    ],
)  # fmt: skip
def test_sampled_texts_are_those_without(
    drafting: Loads, options: dict[str, Any], kind: str
) -> None:
    engine = drafting(kind)
    with engine.session(300, 2) as session:
        for seed in range(4):
            assert_equal(*both(session, TOKENS, seed=seed, n_top=3, **options))
    if options.get("n_generate", 60) > 2:
        assert engine.stats().n_drafted > 0


def test_edits_are_those_without(drafting: Loads) -> None:
    engine = drafting("good")
    files = [Document("a.py", "def add(values):\n    total = 0\n    return total")]
    edits = constraint(files, "replace")
    n = engine.edit_tokens(edits) + 60
    sampling = Sampling(0.8, edits=edits, edit_tokens=n)
    with engine.session(2 * n + 200, 2) as session:
        ours, theirs = both(session, TOKENS, n_generate=n, sampling=sampling, ignore_eog=False)
    assert_equal(ours, theirs)
    read_edits(engine.detokenize(ours.tokens).decode(), files, "replace")
    assert ours.n_draft_model > 0


def test_a_stop_text_ends_a_text_within_its_draft(drafting: Loads) -> None:
    engine = drafting("good", draft_tokens=7)
    with engine.session(300, 2) as session:
        _, whole = both(session, TOKENS)
        text = engine.detokenize(whole.tokens).decode("latin-1")
        for n in range(5, 40, 3):
            assert_equal(*both(session, TOKENS, stop=(text[n : n + 3],)))


def test_frequencies_are_those_without(drafting: Loads) -> None:
    """Pearson's chi-square of two samples of texts, with and without drafts, of other seeds."""
    engine, n = drafting("good"), 300
    counts: list[dict[tuple[int, ...], int]] = [{}, {}]
    for drafts in (True, False):
        with engine.session(200, 2) as session:
            root = session.sequence()
            session.run([Task(root, TOKENS[:-1])])
            for i in range(n):
                fork = root.fork()
                task = Task(
                    fork, TOKENS[-1:], n_generate=6, sampling=WARM, draft_model=drafts,
                    seed=i if drafts else n + i, ignore_eog=True,
                )  # fmt: skip
                (output,) = session.run([task])
                fork.drop()
                key = tuple(output.tokens[1:4].tolist())
                counts[drafts][key] = counts[drafts].get(key, 0) + 1
    stats = engine.stats()
    assert stats.n_accepted > 100 and stats.n_drafted - stats.n_accepted > 100
    kinds = sorted(set(counts[0]) | set(counts[1]))
    table = np.array([[count.get(kind, 0) for kind in kinds] for count in counts], float)
    expected = table.sum(0) / 2
    chi = float(((table - expected) ** 2 / expected).sum())
    degrees = len(kinds) - 1
    assert degrees >= 3
    assert chi < degrees + 4 * np.sqrt(2 * degrees) + 4, (chi, table)


def test_what_was_refused_leaves_nothing_in_the_cache(drafting: Loads) -> None:
    """The text goes on as one that was read anew."""
    engine = drafting("good")
    for seed in range(4):
        with engine.session(300, 2) as session:
            written = session.sequence()
            task = Task(written, TOKENS, n_generate=60, draft_model=True, seed=seed,
                        ignore_eog=True, sampling=WARM)  # fmt: skip
            (output,) = session.run([task])
            text = [*TOKENS, *output.tokens[:-1]]
            assert len(written) == len(text) and output.n_refused > 0
            anew = session.sequence()
            session.run([Task(anew, text)])
            more = [output.tokens[-1], *TOKENS]
            ours, theirs = session.run([Task(s, more, feed_logprobs=True) for s in (written, anew)])
        np.testing.assert_allclose(ours.feed_logprobs, theirs.feed_logprobs, atol=ROUNDING, rtol=0)


# --- several texts ---


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_drafts_of_several_texts_in_one_batch(drafting: Loads, kind: str) -> None:
    """Forks, texts without drafts and texts under an injection side by side."""
    engine = drafting(kind)

    def task(session: Session, i: int, injection: Any, drafts: bool) -> Task:
        return Task(
            session.sequence() if i % 2 else root.fork(), TOKENS[: 10 + i] if i % 2 else [5 + i],
            n_generate=30 + i, draft_model=drafts, ignore_eog=True, sampling=GREEDY, states=True,
            n_top=engine.n_vocab, injection=injection if i == 3 else None,
        )  # fmt: skip

    with engine.session(900, 15) as session:
        root = session.sequence()
        session.run([Task(root, TOKENS)])
        injection = session.injection(vectors()[0])
        together = session.run([task(session, i, injection, i != 2) for i in range(6)])
        alone = [session.run([task(session, i, injection, drafts=False)])[0] for i in range(6)]
    assert engine.stats().n_drafted > 0
    for ours, theirs in zip(together, alone, strict=True):
        assert_same(ours, theirs)
    assert together[2].n_draft_model == 0 < together[1].n_draft_model


def test_many_sessions_at_a_time(drafting: Loads) -> None:
    """Texts of other lengths come and go, more of them than the draft model follows."""
    engine = drafting("good", n_seq_max=64)
    n_texts, found = 20, {}

    def text_of(i: int, drafts: bool) -> Any:
        with engine.session(120, 1) as session:
            task = Task(
                session.sequence(), [3 + i, *TOKENS[: 2 + i]], n_generate=20 + 3 * i,
                draft_model=drafts, ignore_eog=True, sampling=GREEDY, seed=i,
            )  # fmt: skip
            return session.run([task])[0]

    def write_one(i: int) -> None:
        found[i] = text_of(i, True)

    engine.grow_cache(120, n_texts)
    threads = [threading.Thread(target=write_one, args=(i,)) for i in range(n_texts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.stats().n_draft_model > 0
    for i in range(n_texts):
        assert found[i].tokens.tolist() == text_of(i, False).tokens.tolist()


def test_a_lockstep_group_has_the_same_steps_each_time(drafting: Loads) -> None:
    engine = drafting("bad")
    seen = []
    for _ in range(3):
        before, group, outputs = engine.stats(), engine.lockstep_group(2), {}

        def write_one(i: int, group: Any = group, outputs: Any = outputs) -> None:
            with engine.session(120, 1, participant=group.participant(i)) as session:
                task = Task(
                    session.sequence(), TOKENS[: 4 + 5 * i], n_generate=40, draft_model=True,
                    ignore_eog=True, sampling=WARM, seed=i,
                )  # fmt: skip
                outputs[i] = session.run([task])[0]

        threads = [threading.Thread(target=write_one, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = engine.stats()
        seen.append(
            (
                after.n_decodes - before.n_decodes,
                after.n_draft_model - before.n_draft_model,
                [(outputs[i].tokens.tolist(), outputs[i].logprobs.tolist()) for i in range(2)],
            )
        )
    assert seen[0] == seen[1] == seen[2]


# --- when it is asked ---


def rows(
    *n_left: int, guesses: list[bool], price: float = 0.05, threads: int = 8, kernels: str = "ggml",
    widest: int = 64, slowest: float = np.inf,
) -> list[int]:  # fmt: skip
    return testing.asked_rows([*n_left], guesses, price, kernels, threads, widest, slowest)


def test_drafts_are_as_long_as_what_is_right_and_cheap() -> None:
    right = [True] * 60
    half = [True, False] * 30
    assert rows(60, guesses=[False] * 20) == [0]
    assert 1 <= rows(60, guesses=half)[0] <= 3 < rows(60, guesses=right)[0]
    assert rows(60, guesses=right, price=1.0) == [0], "a guess takes as long as a token"
    assert rows(60, guesses=half, threads=1) == [0], "a row takes as long as a token"
    assert rows(60, guesses=half, kernels="gpu")[0] > 0
    assert rows(60, guesses=[True, True, False] * 20, threads=1) == [0]
    assert rows(60, guesses=[True, True, False] * 20, threads=1, kernels="own")[0] > 0
    assert rows(2, guesses=right)[0] <= 2
    assert rows(0, guesses=right) == [0]
    assert sum(rows(60, 60, guesses=right, widest=10)) <= 8
    assert rows(60, 60, guesses=right, slowest=1.01) == [0, 0], "others would wait"


@pytest.fixture
def cheap(tmp_path: Path, load: Loads) -> Loads:
    """`cheap(seed)`: an engine whose draft model takes a twelfth of its time. Seed 0: it is always
    right."""

    def make(seed: int, **options: Any) -> Engine:
        draft = write(tmp_path / "draft.gguf", seed=seed, n_ctx_train=8192)
        path = write(tmp_path / "model.gguf", n_idle=40, n_ctx_train=8192)
        return load(path, draft_model=str(draft), **options)

    return make


@exact  # the estimate for a GPU is another one
def test_a_good_draft_model_is_asked_on_its_own(cheap: Loads) -> None:
    engine = cheap(0)
    with engine.session(700, 2) as session:
        ours, theirs = both(session, TOKENS, n_generate=200)
        assert_equal(ours, theirs)
    stats = engine.stats()
    assert stats.n_accepted > 100 and stats.n_accepted == stats.n_drafted
    assert stats.n_decodes < 2 + 200 + 100


@exact
def test_a_bad_draft_model_costs_little(cheap: Loads) -> None:
    """Its guesses are never decoded, and the time of its trials is two hundredths of the text's and
    that of the first ones."""
    engine = cheap(5)
    n = 1200
    with engine.session(n + 100, 2) as session:
        task = Task(session.sequence(), TOKENS, n_generate=n, ignore_eog=True, sampling=GREEDY,
                    draft_model=True)  # fmt: skip
        (output,) = session.run([task])
    price = Path(engine.config.draft_model).stat().st_size / engine.path.stat().st_size
    assert 0.05 < price < 0.1
    assert engine.stats().n_drafted == 0
    n_read = len(TOKENS)  # of the prompt, and a text that is read costs less than one that is drawn
    assert 8 < output.n_draft_model - n_read < (0.02 * n + 4) / (price * 24 / 64) + 8


def test_a_model_is_too_dear_to_guess_for_itself(drafting: Loads) -> None:
    engine = drafting("good", draft_tokens=0)
    with engine.session(200, 2) as session:
        assert_equal(*both(session, TOKENS))
    assert engine.stats().n_draft_model == 0


def test_a_looked_up_draft_wins_where_it_pays(drafting: Loads) -> None:
    engine = drafting("bad", draft_tokens=2)
    few = Sampling(temperature=0, logit_bias=tuple((token, 30.0) for token in TOKENS[:3]))
    prompt = (TOKENS[:9] * 6)[:50]
    with engine.session(400, 2) as session:
        ours, theirs = both(session, prompt, n_generate=150, sampling=few, drafts=True)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    stats = engine.stats()
    assert stats.n_accepted > 60 and ours.n_draft_model > 0


def test_the_same_text_has_the_same_steps(drafting: Loads) -> None:
    engine = drafting("bad", draft_tokens=3)
    counts = []
    for _ in range(3):
        before = engine.stats()
        with engine.session(200, 1) as session:
            task = Task(session.sequence(), TOKENS, n_generate=60, draft_model=True, sampling=WARM,
                        ignore_eog=True)  # fmt: skip
            (output,) = session.run([task])
        counts.append(
            (engine.stats().n_decodes - before.n_decodes, output.n_refused, output.n_draft_model)
        )
    assert len(set(counts)) == 1


# --- what it has read ---


def test_a_later_text_takes_what_the_draft_model_has_read(drafting: Loads) -> None:
    prompt = [int(t) for t in np.random.default_rng(1).integers(0, 250, 200)]
    read = []
    for options in (EXACT, KEEPING):
        engine = drafting("good", **options)
        for more in ([], [1, 2, 3]):
            with engine.session(300, 1) as session:
                task = Task(session.sequence(), [*prompt, *more], n_generate=10, draft_model=True,
                            ignore_eog=True, sampling=GREEDY)  # fmt: skip
                read.append(session.run([task])[0].n_draft_model)
        engine.close()
    assert read[:2] == [read[0], read[0] + 3] and read[2] == read[0]
    assert read[3] < 30


def test_a_text_for_which_there_is_no_room_is_written_without(
    model: Callable[..., Path], load: Loads
) -> None:
    """Two texts of one size fit into the model's cache because they share a prefix."""
    engine = load(model(), draft_model=str(model()), draft_tokens=3, n_ctx=256, prefix_cells=0)
    with engine.session(256, 3) as session:
        root = session.sequence()
        session.run([Task(root, TOKENS * 6)])
        forks = [root.fork() for _ in range(2)]
        tasks = [
            Task(fork, [1 + i], n_generate=40, draft_model=True, ignore_eog=True, sampling=GREEDY)
            for i, fork in enumerate(forks)
        ]
        outputs = session.run(tasks)
        for fork in forks:
            fork.drop()
        alone = [
            session.run([replace(task, sequence=root.fork(), draft_model=False)])[0]
            for task in tasks
        ]
    for ours, theirs in zip(outputs, alone, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert [output.n_draft_model > 0 for output in outputs] == [True, False]


def test_positions_are_counted_apart(drafting: Loads) -> None:
    engine, n_refused, n_draft_model = drafting("good"), 0, 0
    for seed in range(3):
        with engine.session(200, 2) as session:
            task = Task(session.sequence(), TOKENS, n_generate=60, draft_model=True, seed=seed,
                        ignore_eog=True, sampling=WARM)  # fmt: skip
            (output,) = session.run([task])
            parts = list(session.run_parts(replace(task, sequence=session.sequence(), part=9)))
        assert output.n_decoded == len(TOKENS) + 59 == sum(part.n_decoded for part in parts)
        n_refused += output.n_refused + sum(part.n_refused for part in parts)
        n_draft_model += output.n_draft_model + sum(part.n_draft_model for part in parts)
    stats = engine.stats()
    assert stats.n_positions == 6 * (len(TOKENS) + 59)
    assert stats.n_drafted - stats.n_accepted == n_refused > 0
    assert stats.n_draft_model == n_draft_model > 0
    assert stats.draft_seconds > 0


def test_its_memory_is_counted(model: Callable[..., Path], load: Loads) -> None:
    alone, path = load(model(), n_ctx=1024), model(seed=7)
    pair = load(model(), n_ctx=1024, draft_model=str(path))
    assert pair.memory().cache > 1.5 * alone.memory().cache
    assert pair.memory().buffers > alone.memory().buffers
    need = check_memory(model(), EngineConfig(draft_model=str(path))).need
    assert need.ram + need.gpu == model().stat().st_size + path.stat().st_size


# --- interrupts ---


def test_a_text_with_drafts_can_be_cancelled(drafting: Loads) -> None:
    engine, cancel, seen = drafting("good"), Cancel(), []

    def on_tokens(new: Any) -> None:
        seen.extend(new[0][0])
        if len(seen) > 100:
            cancel.cancel()

    with engine.session(3500, 1) as session, pytest.raises(CancelledError):
        task = Task(session.sequence(), TOKENS, n_generate=3000, draft_model=True, sampling=GREEDY,
                    ignore_eog=True)  # fmt: skip
        session.run([task], on_tokens=on_tokens, cancel=cancel)
    assert not any(held(engine.stats()).values())


def test_a_draft_model_that_reads_can_be_cancelled(tmp_path: Path, load: Loads) -> None:
    """It has many layers and the model few, so that a cancel meets the draft model; the text of
    another session goes on as without it."""
    draft = write(tmp_path / "draft.gguf", n_idle=60, n_ctx_train=8192)
    engine = load(write(tmp_path / "m.gguf", n_ctx_train=8192), draft_model=str(draft),
                  draft_tokens=3)  # fmt: skip
    engine.grow_cache(4000, 2)
    prompt = (TOKENS * 150)[:3000]
    cancel = Cancel()
    errors = []

    def cancelled() -> None:
        with engine.session(3500, 1) as session:
            task = Task(session.sequence(), prompt, n_generate=400, draft_model=True,
                        sampling=GREEDY, ignore_eog=True)  # fmt: skip
            try:
                session.run([task], on_tokens=lambda _: cancel.cancel(), cancel=cancel)
            except CancelledError as error:
                errors.append(error)

    thread = threading.Thread(target=cancelled)
    thread.start()
    with engine.session(200, 2) as session:
        ours, theirs = both(session, TOKENS)
    thread.join()
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert len(errors) == 1 and not any(held(engine.stats()).values())


def test_an_engine_closes_while_its_draft_model_works(drafting: Loads) -> None:
    engine = drafting("good")
    session = engine.session(3500, 1)
    task = Task(session.sequence(), TOKENS, n_generate=3000, draft_model=True, sampling=GREEDY,
                ignore_eog=True)  # fmt: skip
    threading.Timer(0.2, engine.close).start()
    with pytest.raises(CancelledError):
        session.run([task])


# --- files ---


def refusal(path: Path, draft: Path | str) -> str:
    with pytest.raises(ModelError) as caught:
        Engine(path, EngineConfig(**EXACT, draft_model=str(draft)))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_cannot_draft_is_refused(model: Callable[..., Path], tmp_path: Path) -> None:
    path = model()
    assert "there is no model absent" in refusal(path, "absent")
    assert "nothing.gguf" in refusal(path, tmp_path / "nothing.gguf")
    damaged = write_truncated(path, tmp_path / "damaged.gguf", 100_000)
    assert "damaged.gguf" in refusal(path, damaged)
    other = write(tmp_path / "other.gguf", n_extra=200)
    assert "its vocabulary has 464 tokens, the model's 264" in refusal(path, other)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(path.read_bytes().replace(b"\x02\0\0\0\0\0\0\0he", b"\x02\0\0\0\0\0\0\0hx"))
    assert "token 256 is 'hx' in its vocabulary of 264 tokens, 'he'" in refusal(path, renamed)
    assert "holds an encoder" in refusal(path, write_bert(tmp_path / "bert.gguf"))
    mamba = write_mamba(tmp_path / "mamba.gguf")
    assert "so it cannot be a draft model; use a transformer" in refusal(path, mamba)
    assert "leave draft_model out" in refusal(mamba, mamba)


def test_a_vocabulary_may_have_padding(
    model: Callable[..., Path], load: Loads, tmp_path: Path
) -> None:
    padded = write(tmp_path / "padded.gguf", n_extra=56)
    for path, draft in ((model(), padded), (padded, model())):
        engine = load(path, draft_model=str(draft), draft_tokens=3)
        with engine.session(300, 2) as session:
            ours, theirs = both(session, [*TOKENS, engine.n_vocab - 1])
        assert_equal(ours, theirs)


# --- the user's side ---


def test_the_method_base_drafts_with_it(drafting: Loads) -> None:
    engine = drafting("good")
    config = SearchConfig(max_tokens=60, temperature=0)
    reply = generate(engine, TOKENS, config, method="base")
    stats = engine.stats()
    assert reply.counts.draft_model == stats.n_draft_model > 0
    assert reply.counts.refused == stats.n_drafted - stats.n_accepted
    assert reply.counts.total == stats.n_positions
    latent = generate(engine, TOKENS, replace(config, chunk_len=16), method="tgr-latent")
    assert latent.counts.draft_model == 0


def test_the_embedded_model_guesses_its_own_text() -> None:
    path = library.embedded_model()
    config = EngineConfig(draft_model=str(path), draft_tokens=4, n_gpu_layers=0, prefix_cells=0)
    with Engine(path, config) as engine:
        for temperature in (0.0, 0.6):
            before = engine.stats()
            options = SearchConfig(max_tokens=200, temperature=temperature)
            reply = generate(engine, "What is 47 + 38 + 16?", options, method="base")
            after = engine.stats()
            assert reply.text.strip() and reply.counts.draft_model > 0
            n_drafted = after.n_drafted - before.n_drafted
            assert after.n_accepted - before.n_accepted > n_drafted / 2 > 10


def test_bench_measures_it(drafting: Loads) -> None:
    engine = drafting("good")
    plan = Plan(engine, Settings.of(engine), repeats=1, quick=True, long_tokens=512)
    *_, row = lookup.texts(plan)
    assert row.what.endswith("with the draft model / without") and row.result.median > 0
    assert row.note.endswith(f"decoded {engine.stats().n_draft_model}, the prompt included")


def test_the_command_line_takes_a_draft_model(
    model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--raw", "--method", "base", "--max-tokens", "40", "--temperature", "0",
                 "--n-gpu-layers", "0", "--model", str(model()), "hello"]  # fmt: skip
    drafts = ["--draft-model", str(model()), "--draft-tokens", "3"]
    assert cli.main(arguments) == 0
    plain = capsys.readouterr().out
    assert cli.main([*arguments, *drafts]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain
    assert cli.main(["doctor", "--model", str(model()), *drafts]) in (0, 1)
    assert "draft model" in capsys.readouterr().out
