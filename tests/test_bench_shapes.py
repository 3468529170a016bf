"""Random-weight files: llama.cpp loads them, the quantizer takes them, and they are made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tgr_local.commands import cli
from tgr_local.engine import Engine, Task
from tgr_local.lab.bench import command, shapes
from tgr_local.options import model_files
from tgr_local.system.errors import TgrError


@pytest.mark.parametrize("kind", ["f16", "q8_0", "Q4_K_M"])
def test_a_shape_loads_and_generates(kind: str):
    path = shapes.model_file("tiny", kind)
    assert model_files.card(path).facts()["quantization"] == kind.upper()
    with Engine(path) as engine, engine.session(64, 1) as session:
        assert (engine.n_vocab, engine.n_embd, engine.n_layer) == (4096, 256, 2)
        text = engine.tokenize("hello<|im_end|>")
        assert engine.detokenize(text[:-1]) == b"hello" and text[-1] == engine.eos
        (output,) = session.run([Task(session.sequence(), text[:-1], n_generate=8, states=True)])
        assert len(output.tokens) == 8 and output.states.std() > 0.1


def test_a_file_is_made_once_and_is_the_same_everywhere(tmp_path):
    path = shapes.model_file("tiny", "q8_0")
    assert [path] == list(path.parent.iterdir())
    first = path.stat().st_mtime_ns, path.read_bytes()
    assert shapes.model_file("tiny", "q8_0") == path
    assert first == (path.stat().st_mtime_ns, path.read_bytes())
    shapes.write(tmp_path / "again.gguf", shapes.SHAPES["tiny"], "q8_0")
    assert (tmp_path / "again.gguf").read_bytes() == first[1]


def test_the_vocabulary_of_every_shape_has_a_text_for_each_id():
    values = shapes.metadata(shapes.SHAPES["8b"], file_type=7)
    tokens, merges = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    assert len(tokens) == len(set(tokens)) == 151_936 == len(values["tokenizer.ggml.token_type"])
    known = set(tokens)
    assert all(set(merge.split(" ")) <= known for merge in merges[:70_000:97])


def test_an_interrupted_file_is_deleted(monkeypatch):
    def stopped(path: Path, *_: object) -> None:
        path.write_bytes(b"GG")
        raise KeyboardInterrupt

    monkeypatch.setattr(shapes, "write", stopped)
    with pytest.raises(KeyboardInterrupt):
        shapes.model_file("tiny", "f16")
    assert not list(shapes.cache_folder().iterdir())


def test_a_file_larger_than_the_free_space_is_refused(monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(shapes.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(TgrError, match=r"needs .* but .* has 0\.0 MB free; free space"):
        shapes.model_file("0.6b", "q8_0")


def test_kept_files_are_listed_and_deleted(capsys):
    assert cli.main(["bench", "shapes"]) == 0 and capsys.readouterr().out == ""
    folder = shapes.cache_folder()
    folder.mkdir(parents=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = (
        "random-qwen3-0.6b-q8_0-v3.gguf", f"random-qwen3-0.6b-q8_0-v3.{gone.pid}.part",
        "random-qwen3-4b-q4_k-v2.gguf", f"random-qwen3-8b-q8_0-v3.{os.getpid()}.part",
        "another.gguf",
    )  # fmt: skip
    for name in names:
        (folder / name).write_bytes(bytes(2_000_000))

    def listed(*arguments: str) -> str:
        assert cli.main(["bench", "shapes", *arguments]) == 0
        return capsys.readouterr().out

    assert listed("list") == "".join(f"{folder / name}, 2.0 MB\n" for name in sorted(names[:3]))
    record = [{"path": str(folder / names[2]), "bytes": 2_000_000}]
    assert json.loads(listed("--shape", "4b", "--type", "Q4_K_M", "--json")) == record
    assert listed("delete", "--type", "q4_k") == f"deleted {folder / names[2]}, 2.0 MB\n"
    assert len(listed("list").split("\n")) == 3
    listed("delete")
    assert listed("list") == "" and len(list(folder.iterdir())) == 2
    assert cli.main(["bench", "shapes", "delete", "--shape", ""]) == 2
    assert "shape is '', but must be one of tiny" in capsys.readouterr().err


def test_bench_names_the_file_that_it_keeps(capsys, monkeypatch):
    monkeypatch.setattr(command, "measured", lambda *_: iter(()))
    assert cli.main(["bench", "--shape", "tiny", "--only", "plain"]) == 0
    (path,) = shapes.kept()
    err = capsys.readouterr().err
    assert f"kept for the next time: {path}, " in err and "tgr-local bench shapes delete" in err
