"""Where a seed comes from: a person, a file, or chance; and that what was drawn is shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import fake_user
import pytest
from command_line import finished, run, shown_config
from fixture_types import Model
from serving import served_here

from tgr_local import TgrLlama
from tgr_local.chat.commands import handle_line
from tgr_local.options.config import RANDOM_SEED, SearchConfig
from tgr_local.options.fields import updated
from tgr_local.options.resolve import DEFAULT, MODEL_FILE, USER, resolve

DRAWN = range(10**9)


def differ(seeds: list[int]) -> bool:
    """Whether they were drawn: three equal ones have the chance 10⁻¹⁸."""
    return len(seeds) == 3 and len(set(seeds)) > 1 and all(seed in DRAWN for seed in seeds)


def test_minus_one_draws_a_seed_in_every_config():
    assert SearchConfig().seed == 42
    assert differ([SearchConfig(seed=-1).seed for _ in range(3)])
    assert differ([updated(SearchConfig(sigma=0.1), {"seed": -1}).seed for _ in range(3)])
    drawn = SearchConfig(seed=-1)
    assert dataclasses.replace(drawn, sigma=0.2).seed == drawn.seed  # once
    with pytest.raises(ValueError, match="seed is -2, but must be between -1 and 9223372036854775"):
        SearchConfig(seed=-2)


def test_a_seed_that_nobody_names_is_drawn_where_that_is_wanted():
    assert resolve({}).config.seed == 42
    found = resolve({}, for_people=True)
    assert (found.seed_is_drawn, found.sources["seed"]) == (True, DEFAULT)
    assert differ([resolve({}, for_people=True).config.seed for _ in range(3)])
    assert found.shown() == dataclasses.asdict(found.config) | {"seed": "random"}
    for metadata, user_options, seed, source in (
        ({}, {"seed": 42}, 42, USER), ({"tgr.seed": "5"}, {}, 5, MODEL_FILE),
    ):  # fmt: skip
        found = resolve(metadata, user_options, for_people=True)
        assert (found.config.seed, found.sources["seed"], found.seed_is_drawn) == (
            seed, source, False,
        )  # fmt: skip
        assert found.shown()["seed"] == seed
    for metadata, user_options in (({}, {"seed": -1}), ({"tgr.seed": "-1"}, {})):
        found = resolve(metadata, user_options)
        assert found.seed_is_drawn and found.config.seed in DRAWN


def replies(capsys, *flags: str) -> list[int]:
    """The seeds of three runs, as their JSON has them."""
    seeds = []
    for _ in range(3):
        assert run("run", "2+2?", "--model", "f.gguf", "--json", *flags) == 0
        reply = json.loads(capsys.readouterr().out)
        assert reply["seed"] == reply["config"]["seed"]
        seeds.append(reply["seed"])
    return seeds


def test_run_draws_a_seed_unless_one_is_named(double: None, capsys, monkeypatch):
    assert differ(replies(capsys))
    assert differ(replies(capsys, "--seed", "-1"))
    assert replies(capsys, "--seed", "42") == [42] * 3
    monkeypatch.setenv("TGR_SEED", "6")
    assert replies(capsys) == [6] * 3


def test_the_seed_that_is_shown_gives_the_same_reply_again(small: Path):
    flags = ["hello", "--model", str(small), "--raw", "--method", "base", "-n", "8"]
    _, text, line = finished("run", *flags, double=False)
    seed = line.strip().rpartition("seed ")[2]
    assert int(seed) in DRAWN
    assert finished("run", *flags, "--seed", seed, double=False)[1] == text


def test_a_trace_has_the_seed_that_was_drawn(double: None, capsys, tmp_path):
    path = tmp_path / "t"
    assert run("run", "2+2?", "--model", "f.gguf", "--trace", str(path)) == 0
    seed = capsys.readouterr().err.strip().rpartition("seed ")[2]
    assert json.loads(path.read_text().splitlines()[0])["seed"] == int(seed)


def test_show_config_says_that_it_is_random(capsys):
    assert shown_config(capsys)["seed"] == ("random", "default")
    assert shown_config(capsys, "--seed", "-1")["seed"] == ("random", "--seed")
    assert shown_config(capsys, "--seed", "7")["seed"] == (7, "--seed")
    assert run("chat", "--help") == 0
    assert "(default: random; -1 to 9223372036854775807)" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run("code", "--help-all") == 0
    assert "(default: 42; -1 to 9223372036854775807)" in " ".join(capsys.readouterr().out.split())


def test_every_reply_of_a_conversation_has_a_seed_of_its_own(monkeypatch):
    session: Any = fake_user.make_session(monkeypatch)
    conversation = session.conversation

    def asked(line: str, question: str = "one") -> list[int]:
        """The seeds of three replies after a command."""
        handle_line(session, line, lambda: "")
        return [(session.ask(question), conversation.replies[-1].seed)[1] for _ in range(3)]

    assert differ(asked("/set seed -1"))
    assert conversation.resolved.seed_is_drawn
    del conversation.user_options["seed"]
    assert differ(asked("/clear"))
    assert asked("/set seed 7") == [7] * 3


def test_set_shows_a_random_seed_as_such(monkeypatch):
    session: Any = fake_user.make_session(monkeypatch)

    def said(line: str) -> list[str]:
        return fake_user.output(session, line)

    assert said("/set seed")[0].split()[:2] == ["seed", "random"]
    assert said("/set seed 7")[0].split()[:2] == ["seed", "7"]
    assert "seed 7 (set here)" in said("/show options")
    assert said("/set seed -1")[0].split()[:2] == ["seed", "random"]
    assert not [line for line in said("/show options") if line.startswith("seed")]


def test_a_server_gives_a_request_its_own_seed_or_a_random_one(model: Model):
    def seeds(server: Any, **body: Any) -> list[int]:
        made = [server.chat("hi", max_tokens=1, **body).json() for _ in range(3)]
        return [one["tgr"]["seed"] for one in made]

    with served_here(model(), method="base", seed=-1) as server:
        assert server.client.get("/props").json()["options"]["seed"] == RANDOM_SEED
        assert differ(seeds(server)) and differ(seeds(server, seed=-1))
        assert differ(seeds(server, tgr={"seed": -1}))
        assert seeds(server, seed=5) == seeds(server, tgr={"seed": 5}) == [5] * 3
    with served_here(model(), method="base", seed=9) as server:
        assert server.client.get("/props").json()["options"]["seed"] == 9
        assert seeds(server) == [9] * 3
        assert seeds(server, seed=5) == seeds(server, tgr={"seed": 5}) == [5] * 3
        assert differ(seeds(server, seed=-1)) and differ(seeds(server, tgr={"seed": -1}))
        made = server.client.post(
            "/v1/messages",
            json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "model": "any"},
        )
        assert made.json()["tgr"]["seed"] == 9


def test_the_python_class_takes_minus_one(model: Model):
    ask: dict[str, Any] = {"max_tokens": 1}
    with TgrLlama(model(), method="base", n_gpu_layers=0, seed=-1) as llama:
        assert differ([llama("he", **ask)["tgr"]["seed"] for _ in range(3)])
        assert llama("he", seed=4, **ask)["tgr"]["seed"] == 4


def test_an_evaluation_keeps_its_seeds(capsys):
    assert run("eval", "run", "arithmetic3", "--seeds", "-1") == 2
    assert "seeds is '-1', but must be different numbers from 0" in capsys.readouterr().err
