"""The training data of the code model: in the assistant's own words, answers that apply."""

from __future__ import annotations

import random
import re
import sys
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from models.code import answers, data  # noqa: E402
from models.data import Sample  # noqa: E402
from tgr_local.code.edits import FileText, Format, read_edits  # noqa: E402
from tgr_local.code.reading import prompt  # noqa: E402
from tgr_local.lab.eval.bugs import problem as problems  # noqa: E402
from tgr_local.lab.eval.bugs.problem import Bug, bug  # noqa: E402

VOCABULARY = data.shared_vocabulary()


def drawn(n: int, n_defects: int = 1) -> list[Bug]:
    rng = random.Random("models/code")
    return [bug(rng, "train", n_defects, 5) for _ in range(n)]


def samples(part: int, n: int) -> list[Sample]:
    return list(islice(data.stream(3, part), n))


@pytest.mark.parametrize("form", ["function", "file"])
def test_every_answer_repairs_the_file(form: Format):
    written = {"function": answers.function, "file": answers.whole_file}[form]
    for made in [*drawn(60), *drawn(10, n_defects=2)]:
        (change,) = read_edits(written(made), [FileText(made.path, made.file)], form)
        assert change.after == made.repaired


def test_quoted_lines_that_are_replaced_repair_the_file():
    for made in [*drawn(60), *drawn(10, n_defects=2)]:
        path, _, block = answers.replace(made).partition("\n<<<<<<< SEARCH\n")
        quoted, _, new = block.removesuffix(">>>>>>> REPLACE").partition("=======\n")
        assert path == made.path and made.file.count(quoted) == 1
        assert made.file.replace(quoted, new) == made.repaired


def test_the_prompt_is_the_assistants():
    for made in drawn(20):
        printed = problems.output(random.Random(0), made)
        block = prompt.file_block(made.path, made.file, "```")
        expected = prompt.user_message(block, "Fix it.", printed)
        assert problems.user_message(made.path, made.file, "Fix it.", printed) == expected


def test_the_second_round_is_the_assistants():
    rng = random.Random(1)
    texts = ["".join(text for text, _ in data.second(rng)) for _ in range(12)]
    twice = [text for text in texts if text.count("<|im_start|>assistant\n") == 2]
    assert twice
    for text in twice:
        asked = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", text, re.DOTALL)
        printed = re.search(r"fail:\n```\n(.*)```\n\nThe files", asked[1], re.DOTALL)
        assert printed
        assert prompt.conversation("", "…", printed[1])[2]["content"] == asked[1]


def test_samples_repeat_and_their_specials_are_whole():
    made = samples(0, 300)
    again = samples(0, 300)
    assert [one.ids.tolist() for one in made] == [one.ids.tolist() for one in again]
    assert {one.task for one in made} == set(data.MIX)
    for one in made:
        assert len(one.ids) == len(one.learnt) <= data.MAX_TOKENS
        if one.task == "drill":
            continue
        text = VOCABULARY.decode(one.ids.tolist())
        assert VOCABULARY.encode(text) == one.ids.tolist()
        assert (one.learnt == 1).any() and one.learnt[-1] == 1
        end = {"repair": "<|im_end|>", "second": "<|im_end|>"}.get(one.task, "<|endoftext|>")
        assert VOCABULARY.tokens[one.ids[-1]] == end


def test_a_hole_is_filled_with_what_stood_there():
    rng = random.Random(2)
    for _ in range(30):
        (prompt_text, _), (middle, weight) = data.hole(rng)
        before, _, rest = prompt_text.removeprefix("<|fim_prefix|>").partition("<|fim_suffix|>")
        text = before + middle.removesuffix("<|endoftext|>") + rest.removesuffix("<|fim_middle|>")
        compile(text, "<hole>", "exec")
        assert weight == 1.0 and middle.endswith("<|endoftext|>")


def test_the_vocabulary_has_its_size_and_words_of_the_answers():
    assert len(VOCABULARY) == data.N_TOKENS
    for word in (" return", " for", "::", "```", " assert", "=======\n", " range"):
        assert len(VOCABULARY.encode(word)) == 1
