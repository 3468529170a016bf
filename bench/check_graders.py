"""Checks every grader with the public data: correct answers pass, wrong ones fail.

Run as ``python bench/check_graders.py DATA [NAME ...]``. DATA is a folder as in
TGR_DATA; a benchmark without its file is skipped. HumanEval and BigCodeBench run code in the
sandbox. `ifeval` is compared with lm-eval's own entry point in a process of its own, for which
nltk's punkt_tab must be installed (NLTK_DATA; PUNKT names a folder that lm-eval alone gets, which
shows what its absence costs).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks import get
from tgr_local.lab.eval.tasks.data import read_file
from tgr_local.system.sandbox import backends

Answers = Iterable[tuple[Problem, str]]


def grades(grader: Grader, answers: Answers) -> list[tuple[Problem, Grade]]:
    """The grade of every answer, in order."""
    waiting = [(problem, grader.submit(problem, text)) for problem, text in answers]
    return [(problem, future.result()) for problem, future in waiting]


def report(name: str, answers: str, graded: Sequence[tuple[Problem, Grade]], wanted: bool) -> None:
    """Prints one line, and one more for each unexpected grade."""
    good = sum(grade.correct is wanted for _, grade in graded)
    print(f"{name}: {answers}: {good} of {len(graded)} {'accepted' if wanted else 'refused'}")
    for problem, grade in graded:
        if grade.correct is not wanted:
            print(f"    {problem.id}: {grade.answer!r} {grade.detail} [{problem.reference!s:.80}]")


def boxed(answer: object) -> str:
    return f"So the answer is $\\boxed{{{answer}}}$."


def solutions(data: Path, file: str, field: str) -> list[str]:
    return [row.text(field) for row in read_file(data / file)]


def math500(data: Path, grader: Grader) -> None:
    problems = get("math500").load(data)
    texts = solutions(data, "math500/test.jsonl", "solution")
    own = zip(problems, texts, strict=True)
    report("math500", "official answers in their own solutions", grades(grader, own), True)
    bare = [(p, boxed(p.reference)) for p in problems]
    report("math500", "official answers in a bare box", grades(grader, bare), True)
    wrong = [(p, boxed(f"{p.reference} + 1")) for p in problems]
    report("math500", "answers plus one", grades(grader, wrong), False)
    foreign = [(p, texts[i - 1]) for i, p in enumerate(problems) if p.reference != problems[i - 1]]
    graded = grades(grader, foreign)
    report("math500", "another problem's solution", graded, False)


def gsm8k(data: Path, grader: Grader) -> None:
    problems = get("gsm8k").load(data)
    own = zip(problems, solutions(data, "gsm8k/test.jsonl", "answer"), strict=True)
    report("gsm8k", "official solutions", grades(grader, own), True)
    bare = [(p, boxed(p.reference)) for p in problems]
    report("gsm8k", "official answers in a box", grades(grader, bare), True)
    wrong = [(p, boxed(Fraction(p.reference) + 1)) for p in problems]
    report("gsm8k", "answers plus one", grades(grader, wrong), False)


def boxes(name: str, file: str) -> Callable[[Path, Grader], None]:
    """The check of a maths benchmark that has no solutions with boxes."""

    def check(data: Path, grader: Grader) -> None:
        problems = get(name).load(data / file)
        answers = [p.reference["answer"] if name == "olympiadbench" else p.reference
                   for p in problems]  # fmt: skip
        right = [(p, boxed(a)) for p, a in zip(problems, answers, strict=True)]
        report(name, "official answers in a box", grades(grader, right), True)
        wrong = [(p, boxed(f"{a} + 1")) for p, a in zip(problems, answers, strict=True)]
        report(name, "answers plus one", grades(grader, wrong), False)

    return check


def humaneval(data: Path, grader: Grader) -> None:
    problems = get("humaneval").load(data)
    bodies = solutions(data, "humaneval/HumanEval.jsonl.gz", "canonical_solution")
    report(
        "humaneval", "canonical bodies", grades(grader, zip(problems, bodies, strict=True)), True
    )
    blocks = [
        (p, f"Here it is:\n```python\n{p.raw}{body}```\nIt works.")
        for p, body in zip(problems, bodies, strict=True)
    ]
    report("humaneval", "canonical functions in a code block", grades(grader, blocks), True)
    wrong = [(p, "    return 'wrong'\n") for p in problems]
    report("humaneval", "bodies replaced", grades(grader, wrong), False)
    early = [(p, "    import os\n    os._exit(0)\n") for p in problems]
    report("humaneval", "bodies that exit early", grades(grader, early), False)


def bigcodebench(data: Path, grader: Grader) -> None:
    file = data / "samples" / "bigcodebench_hard.jsonl"
    problems = get("bigcodebench").load(file)
    graded = grades(
        grader,
        (
            (p, f"```python\n{row.text('code_prompt')}{row.text('canonical_solution')}\n```")
            for p, row in zip(problems, read_file(file), strict=True)
        ),
    )
    report("bigcodebench", "canonical solutions", graded, True)


def expressions(numbers: tuple[Fraction, ...], texts: tuple[str, ...]) -> Iterable[tuple]:
    """Every value that the numbers make, with its expression."""
    if len(numbers) == 1:
        yield numbers[0], texts[0]
        return
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [k for k in range(len(numbers)) if k not in (i, j)]
        for sign in "+-*/":
            if sign == "/" and numbers[j] == 0:
                continue
            a, b = numbers[i], numbers[j]
            value = {"+": a + b, "-": a - b, "*": a * b}[sign] if sign != "/" else a / b
            yield from expressions(
                (value, *(numbers[k] for k in rest)),
                (f"({texts[i]} {sign} {texts[j]})", *(texts[k] for k in rest)),
            )


def puzzles(name: str) -> Callable[[Path, Grader], None]:
    def check(data: Path, grader: Grader) -> None:
        problems = get(name).load(data)
        right, wrong = [], []
        for problem in problems:
            numbers, target = problem.reference["numbers"], problem.reference["target"]
            for value, text in expressions(tuple(map(Fraction, numbers)), tuple(map(str, numbers))):
                if value == target:
                    right.append((problem, f"\\boxed{{{text}}}"))
                    wrong.append(
                        (problem, f"<answer>{text} + {numbers[0]} - {numbers[0]}</answer>")
                    )
                    break
        report(name, "solutions found by brute force", grades(grader, right), True)
        report(name, "the same with a number used three times", grades(grader, wrong), False)
        if len(right) < len(problems):
            print(f"    {len(problems) - len(right)} puzzles have no solution")

    return check


WORDS = (
    "the quick brown fox, however, JUMPS over my lazy dog. Dr. Smith paid 3.5 dollars at 5 p.m. "
    "yesterday! Is it true? *highlighted part* P.S. see Fig. 2 [address] <<A Title>> Yes. "
    "- point one\n* point two\n\n*** \n\nParagraph SECTION 1 WOW e.g. this one; “quoted” no way. "
    "Inc. was founded in the U.S. in Jan. 1999. I am, i.e. we are, here. "
)


def made_up(problem: Problem, rng: random.Random) -> str:
    """A response of random words, sometimes in the form that an instruction requires."""
    words = WORDS.split(" ")
    text = " ".join(rng.choice(words) for _ in range(rng.choice((3, 20, 80, 350))))
    shapes: tuple[Callable[[str], str], ...] = (
        lambda t: t,
        lambda t: t.lower(),
        lambda t: t.upper(),
        lambda t: f'"{t}"',
        lambda t: t.replace(",", ""),
        lambda t: f"<<{t[:20]}>>\n\n{t}\n\nP.S. bye",
        lambda t: json.dumps({"text": t}),
        lambda t: f"{problem.raw}\n{t}",
        lambda t: f"{t}\n******\n{t}",
        lambda t: "\n".join(f"* {part}" for part in t.split(". ")[: rng.randint(1, 6)]),
        lambda t: f"Sure:\n{t}\nIs there anything else I can help with?",
        lambda t: "",
    )
    return rng.choice(shapes)(text)


ORACLE = """
import json, random, sys
import langdetect
langdetect.DetectorFactory.seed = 0
from lm_eval.tasks.ifeval import utils
for line in sys.stdin:
    doc, text = json.loads(line)
    random.seed(0)
    found = utils.process_results(doc, [text])
    print(json.dumps([found["prompt_level_strict_acc"], found["prompt_level_loose_acc"],
                      found["inst_level_strict_acc"], found["inst_level_loose_acc"]]))
"""


def ifeval(data: Path, grader: Grader) -> None:
    strict = get("ifeval").load(data)
    rng = random.Random(0)
    texts = [made_up(problem, rng) for problem in strict]
    lines = "".join(json.dumps([p.reference, t]) + "\n" for p, t in zip(strict, texts, strict=True))
    run = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | ({"NLTK_DATA": os.environ["PUNKT"]} if "PUNKT" in os.environ else {}),
    )
    if run.returncode:
        print(f"ifeval: skipped, lm-eval itself failed: {run.stderr.strip().splitlines()[-1]}")
        return
    wanted = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    for column, name in enumerate(("ifeval", "ifeval-loose")):
        problems = get(name).load(data)
        graded = grades(grader, zip(problems, texts, strict=True))
        same = [
            grade.correct is row[column] and grade.score == sum(row[column + 2]) / len(row[2])
            for (_, grade), row in zip(graded, wanted, strict=True)
        ]
        passed = sum(row[column] for row in wanted)
        n_ok, all_ = sum(sum(row[column + 2]) for row in wanted), sum(len(r[2]) for r in wanted)
        print(
            f"{name}: {sum(same)} of {len(same)} grades as lm-eval's ({passed} prompts, {n_ok} of "
            f"{all_} instructions followed)"
        )
        for (problem, grade), row, is_same in zip(graded, wanted, same, strict=True):
            if not is_same:
                print(f"    {problem.id}: {row[column]} there, {grade.correct} {grade.detail}")


CHECKS: dict[str, Callable[[Path, Grader], None]] = {
    "math500": math500,
    "gsm8k": gsm8k,
    "aime25": boxes("aime25", "aime25/test.jsonl"),
    "olympiadbench": boxes("olympiadbench", "samples/olympiadbench.jsonl"),
    "omnimath": boxes("omnimath", "samples/omni_math_rule.jsonl"),
    "countdown": puzzles("countdown"),
    "game24": puzzles("game24"),
    "ifeval": ifeval,
    "humaneval": humaneval,
    "bigcodebench": bigcodebench,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("data", type=Path, help="the folder of public data")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CHECKS)}; all by default")
    parser.add_argument("--sandbox", choices=backends.CHOICES, default=backends.DEFAULT)
    options = parser.parse_args()
    programs.check(options.sandbox)
    print(f"programs run in the sandbox {options.sandbox}")
    for name in options.names or CHECKS:
        started = time.monotonic()
        try:
            with Grader(1, timeout=20, allow_exec=True, backend=options.sandbox) as grader:
                CHECKS[name](options.data, grader)
        except (OSError, ValueError) as error:
            print(f"{name}: skipped, {error}")
        print(f"    {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
