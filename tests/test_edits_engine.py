"""Edits that the engine writes: models of random weights, under every kind of reply."""

from __future__ import annotations

import pytest
from gguf_models import CONTROL, token_id

from tgr_local import Engine, SearchConfig, TgrLlama, generate, generate_many
from tgr_local.code.edits import FORMATS, Document, Format, constraint, read_edits
from tgr_local.engine import Sampling, Task

FILES = [
    Document("calc.py", "def double(x):\n    return x * x\n\n\ndef half(x):\n    return x / 2"),
    Document("docs/é.md", "```\n</think>\n<think>\n```\n<|im_start|>\n"),
    Document("empty.txt", ""),
]


def short(**options: object) -> SearchConfig:
    small = {"chunk_len": 16, "max_tokens": 90, "n_candidates": 2, "rollout_len": 4, "n_mc": 1}
    small |= {"n_samples": 2, "tree_breadth": 1, "tree_proposals": 2}
    return SearchConfig(**small | options)  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FORMATS)
def test_noise_becomes_edits_that_apply_within_the_limit(engine: Engine, format: Format) -> None:
    edits = constraint(FILES, format, new_paths=["new.py"])
    least = engine.edit_tokens(edits)
    with engine.session(4000, 16) as session:
        tasks = [
            Task(
                session.sequence(), [i], n_generate=least + 8 * i, seed=i,
                sampling=Sampling(1.0, edits=edits, edit_tokens=least + 8 * i),
            )
            for i in range(16)
        ]  # fmt: skip
        outputs = session.run(tasks)
    paths = set()
    for output in outputs:
        text = engine.detokenize(output.tokens).decode()
        paths |= {one.path for one in read_edits(text, FILES, format, new_paths=["new.py"])}
        assert output.finish == "stop"
        assert not set(output.tokens.tolist()) & {token_id(text) for text in CONTROL[1:2]}
    assert len(paths) > (format != "function")


def test_the_constraint_goes_on_from_task_to_task(engine: Engine) -> None:
    edits = constraint(FILES, "replace")
    sampling = Sampling(0.0, edits=edits, edit_tokens=100)
    with engine.session(400, 3) as session:
        whole = session.run([Task(session.sequence(), [1], n_generate=100, sampling=sampling)])[0]
        tokens = whole.tokens.tolist()
        for n in (1, 20, len(tokens) - 3):
            sequence = session.sequence()
            session.run([Task(sequence, [1, *tokens[: n - 1]])])
            task = Task(
                sequence, tokens[n - 1 : n], n_generate=100, sampling=sampling,
                grammar_history=tokens[:n],
            )  # fmt: skip
            assert session.run([task])[0].tokens.tolist() == tokens[n:]
            sequence.drop()
        refused = Task(
            session.sequence(), [1], n_generate=1, sampling=sampling, grammar_history=[0]
        )
        with pytest.raises(ValueError, match="token 0, which the edits do not allow there"):
            session.run([refused])


@pytest.mark.parametrize("method", ["base", "tgr-latent", "best-of-n", "power", "tot"])
def test_edits_apply_under_every_method(engine: Engine, method: str) -> None:
    edits = constraint(FILES[:1], "function")
    config = short(stop=("def", "\n"), loop_guard=2, power_steps=1, seed=3)
    reply = generate(engine, "Fix it.", config, method=method, raw=True, edits=edits)
    read_edits(reply.text, FILES[:1], "function")
    assert reply.finish == "stop" and reply.n_tokens <= 90 and not reply.thinking


def test_thinking_stays_free_and_tags_in_the_answer_are_text(engine: Engine) -> None:
    tags = Document("a", "<think>\n</think>\n" * 2)
    edits = constraint([tags], "replace")
    config = short(max_tokens=120, thinking_budget=20)
    query = [1, token_id("<think>")]
    reply = generate(engine, query, config, method="base", edits=edits)
    assert reply.closed == 20 and reply.thinking and reply.finish == "stop"
    read_edits(reply.text, [tags], "replace")
    assert "think>" in reply.text.partition("=======")[0]


def test_several_replies_and_llama_cpp_pythons_functions_take_edits(engine: Engine) -> None:
    edits = constraint(FILES, "file")
    for reply in generate_many(engine, "Fix it.", short(), 3, method="base", raw=True, edits=edits):
        read_edits(reply.text, FILES, "file")
    with TgrLlama(engine.path, n_gpu_layers=0) as llama:
        made = llama.create_completion("x", max_tokens=90, stop=["c"], edits=edits)
        read_edits(made["choices"][0]["text"], FILES, "file")
        made = llama.create_chat_completion(
            [{"role": "user", "content": "x"}], max_tokens=90, stop=["c"], edits=edits
        )
        read_edits(made["choices"][0]["message"]["content"], FILES, "file")
        with pytest.raises(ValueError, match="leave one out"):
            llama.create_completion("x", grammar='root ::= "x"', edits=edits)


def test_a_limit_below_the_shortest_edit_is_refused(engine: Engine) -> None:
    edits = constraint(FILES, "replace")
    least = engine.edit_tokens(edits)
    for method in ("base", "best-of-n"):
        config = short(max_tokens=least)
        reply = generate(engine, "x", config, method=method, raw=True, edits=edits)
        read_edits(reply.text, FILES, "replace")
    with pytest.raises(ValueError, match=f"but the shortest edit takes {least}"):
        generate(engine, "x", short(max_tokens=least - 1), raw=True, edits=edits)
    budget = short(max_forward_tokens=least + 30, max_tokens=0)
    reply = generate(engine, "x", budget, method="base", raw=True, edits=edits)
    read_edits(reply.text, FILES, "replace")
