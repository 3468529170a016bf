"""Systems and recipes: how they are written, and which are refused."""

from __future__ import annotations

import re

import pytest
from surroundings import ROOT

from tgr_local.lab.eval import recipe, systems, tasks
from tgr_local.lab.eval.systems import System
from tgr_local.options import resolve
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import describe


def test_a_system_is_a_method_with_options():
    text = "tgr-latent:lambda_b=0,rank=4,reuse-winner=on"
    found = systems.from_text(text)
    assert (found.name, found.method) == (text, "tgr-latent")
    config = found.resolve(SearchConfig(temperature=0.9), 64)
    assert (config.lambda_b, config.rank, config.reuse_winner) == (0, 4, True)
    assert config.temperature == 0.9


def test_a_factor_scales_the_options_of_the_run():
    options = {"chunk_len": "0.5x", "max_chunks": "2x", "d_z": "0.5x", "eta": "0.5x"}
    config = System("half", "tgr-latent", options).resolve(SearchConfig(chunk_len=32), 192)
    assert (config.chunk_len, config.max_chunks, config.d_z, config.eta) == (16, 48, 96, 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tgr-latnet", "did you mean tgr-latent"),
        ("tgr-latent:lambda", "must be as in"),
        ("base:stop=a,b", "'b' has no =; a comma ends a value"),
        ("base:temp=1", r"did you mean temperature\?$"),
        ("base:zzzz=1", r"unknown option 'zzzz'; tgr-local run --help"),
        ("tgr-latent:lamda_b=0", "did you mean lambda_b"),
        ("tgr-latent:lambda_b=-1", "at least 0"),
        ("tgr-latent:rank=few", "whole number"),
        ("tgr-latent:rank=ax", "as in 0.5x"),
        ("base:seed=3", "--seeds"),
    ],
)
def test_a_bad_system_is_refused(text: str, says: str):
    with pytest.raises(ValueError, match=says):
        systems.from_text(text)


def test_rollouts_are_longer_where_answers_are_programs_unless_they_are_given():
    searching = ("tgr-latent", "tgr-token", "tgr-think", "tgr-latent:rank=4")
    names = ("base", "tgr-latent:rollout_len=8", *searching)
    some = [systems.from_text(name) for name in names]
    wanted = dict.fromkeys(searching, 64)
    assert systems.rollout_lens(some, resolve.DEFAULT) == wanted
    for source in (resolve.USER, resolve.MODEL_FILE):
        assert systems.rollout_lens(some, source) == {}


def test_two_systems_of_one_name_are_refused():
    a, b = System("x", "base"), System("x", "markov")
    assert systems.distinct([a, a]) == (a,)
    with pytest.raises(ValueError, match="'x'"):
        systems.distinct([a, b])


def test_systems_that_inject_run_at_each_injection_seed():
    own = System("own", "tgr-latent", {"injection_seed": "7"})
    some = [System("base", "base"), own, System("search", "tgr-latent", {"rank": "4"})]
    found = systems.at_injection_seeds(some, [1, 2])
    names = ["search, injection seed 1", "search, injection seed 2"]
    assert [one.name for one in found] == ["base", "own", *names]
    configs = [one.resolve(SearchConfig(), 64) for one in found[2:]]
    assert [(c.injection_seed, c.rank) for c in configs] == [(1, 4), (2, 4)]
    thinking = systems.at_injection_seeds([System("think", "tgr-think")], [1, 2])
    assert [one.name for one in thinking] == ["think, injection seed 1", "think, injection seed 2"]
    with pytest.raises(ValueError, match="injection_seeds has no effect: no system injects"):
        systems.at_injection_seeds(some[:2], [1, 2])


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_has_known_tasks_and_options(name: str):
    found = recipe.load(name)
    assert set(found.tasks) <= set(tasks.TASKS) and found.tasks
    assert len(found.systems) > 1 and found.title != name
    assert not found.reference or found.reference in [system.name for system in found.systems]
    for system in found.systems:
        for model in (SearchConfig(), SearchConfig(chunk_len=12, rollout_len=6, max_chunks=5)):
            system.resolve(model, 192)


def test_a_recipe_has_values_of_toml(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "[options]\nstop = ['a', 'b']\n[[systems]]\nmethod = 'base'\nthinking = false\n"
        "stop = ['c', 'd']\nchunk_len = '0.5x'\n",
        encoding="utf-8",
    )
    made = recipe.load(str(path))
    assert made.options == {"stop": ("a", "b")}
    (system,) = made.systems
    assert system.name.startswith("base:thinking=off,stop=")
    wanted = SearchConfig(thinking=False, stop=("c", "d"), chunk_len=256)
    assert system.resolve(SearchConfig(), 64) == wanted


def test_the_recipes_are_those_that_the_documentation_names():
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in recipe.names())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("titel = 'x'", "did you mean title"),
        ("k = 3", "type str"),
        ("[[systems]]\nname = 'x'", "no method"),
        ("[options]\nlamda_b = 1", "did you mean lambda_b"),
        ("k = ", "recipe"),
        (f"seeds = [{'9' * 4301}]", "toml: it has a number of more than 4300 digits$"),
        (f"[options]\nseed = 0x{'f' * 5000}", "toml: it has a number of more than 4300 digits$"),
        ("metric = 'two'", "metric is 'two', but must be one of samples, one"),
        pytest.param("seeds = " + "[" * 10**5, "nested", id="deep"),
    ],
)
def test_a_bad_recipe_is_refused(tmp_path, text: str, says: str):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as error:
        recipe.load(str(path))
    assert re.search(says, describe(error.value))
