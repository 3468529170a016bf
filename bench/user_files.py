"""Every kind of file that a person can hand to tgr-local, except models: a sound one, and its use.

`KINDS` has for each kind the function that writes a sound one into an empty folder, and the one
that uses what lies there as the commands do. The second may raise what the commands report in a
line: a TgrError, ValueError or OSError.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from run_folders import both
from run_folders import write as write_run

from tgr_local.chat import store
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.code.edits import Change
from tgr_local.code.folder import journal
from tgr_local.code.folder.project import Project
from tgr_local.commands import cli
from tgr_local.engine import Engine, Task
from tgr_local.engine.prefix_files import load_prefix, save_prefix
from tgr_local.generation.control_vectors import ControlVector
from tgr_local.lab.eval import recipe
from tgr_local.lab.eval.tasks import data
from tgr_local.options import settings
from tgr_local.options.model_files import embedded_model
from tgr_local.system.errors import TgrError


@dataclass(frozen=True)
class Kind:
    """A kind of file; `write` and `use` take the folder in which they lie."""

    name: str
    write: Callable[[Path], object]
    use: Callable[[Path], object]
    stays: bool = False
    """Whether it can only be used in the folder in which it was written."""


@functools.cache
def engine() -> Engine:
    """The embedded model, once for each process."""
    return Engine(embedded_model())


def command(*words: str) -> str:
    """Runs a command in this process; its stdout. Raises the TgrError of its last line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(words))
    last = err.getvalue().rstrip("\n").rpartition("\n")[2]
    if code:
        raise TgrError(last or f"exit code {code} without a word")
    return out.getvalue()


# ---- writing ----


def _prefix(folder: Path) -> None:
    tokens = engine().tokenize("what is 12 + 30? " * 4, add_special=True)
    with engine().session(len(tokens) + 8, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, tokens)])
        session.remember(sequence)
    assert save_prefix(engine(), tokens, folder / "a.prefix")


def _trace(folder: Path) -> None:
    command(
        "run", "--seed=7", "--n-candidates=3", "--max-chunks=2", "--trace-vectors",
        f"--trace={folder}/a.jsonl", "What is 12 + 23?",
    )  # fmt: skip


def _conversation(folder: Path) -> None:
    talk = Conversation(engine(), {"seed": 7, "temperature": 0.5, "stop": ("x",)}, "tgr-latent")
    talk.system = "Be brief."
    talk.turns = [Turn("What is 1 + 2?", "3", "1+2=3"), Turn("ü½\n", "no\tidea", "")]
    (folder / "a.jsonl").write_bytes(store.encoded(talk))


def _recipe(folder: Path) -> None:
    source = Path(recipe.FOLDER) / "main.toml"
    shutil.copy(source, folder / "a.toml")


def _settings(folder: Path) -> None:
    text = 'method = "tgr-latent"\nseed = 7\ntemperature = 0.5\nstop = ["a", "b"]\n'
    (folder / "tgr-local.toml").write_text(text, encoding="utf-8")


def _vector(folder: Path) -> None:
    drawn = np.random.default_rng(0).standard_normal((engine().n_layer, engine().n_embd))
    ControlVector(drawn.astype(np.float32)).save(folder / "a.gguf")


ROWS = [{"question": f"What is {i} + 1?", "answer": f"so\n#### {i + 1}"} for i in range(4)]


def _data(ending: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in ROWS)
        if ending == ".json":
            lines = json.dumps(ROWS, indent=1)
        if ending == ".csv":
            lines = "question,answer\n" + "".join(
                f'"{r["question"]}","{r["answer"]}"\n' for r in ROWS
            )
        raw = lines.encode()
        (folder / f"a{ending}").write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)

    return write


def _parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "a.parquet")


BEFORE, AFTER = "a = 1\n", "a = 2\n"


def _journal(folder: Path) -> None:
    project = folder / "state" / "project"  # of the files here only those of the journal get damage
    project.mkdir(parents=True)
    (project / "a.py").write_text(BEFORE, encoding="utf-8")
    with _state(folder):
        journal.accept(Project(project), [Change("a.py", BEFORE, AFTER)])


@contextlib.contextmanager
def _state(folder: Path) -> Iterator[None]:
    """The user's state and settings folders lie in `folder`."""
    known = {name: os.environ.get(name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    os.environ.update(dict.fromkeys(known, str(folder / "state")))
    try:
        yield
    finally:
        for name, value in known.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ---- using ----


def _use_prefix(folder: Path) -> None:
    prefix = load_prefix(engine(), folder / "a.prefix")
    with engine().session(len(prefix.tokens) + 8, 1) as session:
        session.run([Task(session.sequence(), prefix.tokens, n_generate=2, reuse=True)])


def _use_conversation(folder: Path) -> None:
    talk = Conversation(engine(), {}, "base")
    store.load(folder / "a.jsonl").restore(talk)
    (folder / "again.jsonl").write_bytes(store.encoded(talk))
    assert talk.config and talk.tokens()


def _use_recipe(folder: Path) -> None:
    loaded = recipe.load(str(folder / "a.toml"))
    assert loaded.title is not None


def _use_settings(folder: Path) -> None:
    (folder / "state" / "tgr-local").mkdir(parents=True, exist_ok=True)
    with _state(folder):
        shutil.copy(folder / "tgr-local.toml", settings.user_file())
        command("run", "--show-config", "hi")


def _use_data(folder: Path) -> None:
    (file,) = (path for path in folder.iterdir() if path.name.startswith("a."))
    for row in data.read_file(file):
        row.text("question", "answer")


def _use_journal(folder: Path) -> None:
    project = folder / "state" / "project"
    try:
        with _state(folder):
            journal.undo(Project(project))
    finally:
        text = (project / "a.py").read_text(encoding="utf-8")
        if text not in (BEFORE, AFTER):
            raise AssertionError(f"the file has become {text!r:.60}")


KINDS = (
    Kind("prefix", _prefix, _use_prefix),
    Kind("trace", _trace, lambda folder: command("trace", f"{folder}/a.jsonl")),
    Kind("conversation", _conversation, _use_conversation),
    Kind("recipe", _recipe, _use_recipe),
    Kind("run folder", lambda folder: write_run(folder / "run", both()),
         lambda folder: command("eval", "report", str(folder / "run"))),
    Kind("settings", _settings, _use_settings),
    Kind("control vector", _vector,
         lambda folder: ControlVector.load(folder / "a.gguf", engine().n_layer).added),
    *(Kind(f"task data {ending}", _data(ending), _use_data)
      for ending in (".jsonl", ".json", ".csv", ".jsonl.gz")),
    *([Kind("task data .parquet", _parquet, _use_data)] if find_spec("pyarrow") else []),
    Kind("journal of changes", _journal, _use_journal, stays=True),
)  # fmt: skip
