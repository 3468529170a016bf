"""WritingBench (Wu et al. 2025): requests for long texts, each judged by five criteria of its own.

The judge is a model behind an OpenAI-compatible URL in TGR_JUDGE_URL (its name in TGR_JUDGE_MODEL,
else the first that the server lists; its key in TGR_JUDGE_KEY); a run settles which before its
first sample. Nothing is sent anywhere else, and without a URL nothing is graded. The wording of the
question to the judge is ours, so compare scores only with scores of the same judge from here.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import NO_ANSWER, Benchmark, user
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.system.errors import TgrError

PASS_MARK = 0.7
"""Lowest mean score that passes: "above average" in the benchmark's rules."""
TRIES = 3
PATIENCE = 120.0
"""Seconds for one reply of the judge."""
QUESTION = """\
Judge the reply to a writing request by one criterion alone. Be strict: neither length nor layout \
earns anything, and a reply that only announces or outlines the text has failed.

Scores: 1-2 useless, 3-4 clear shortcomings, 5-6 adequate, 7-8 strong with small flaws, \
9-10 flawless.

## Criterion
{criterion}

## Request
{query}

## Reply
{reply}

Answer with one JSON object and nothing else: {{"reason": "what in the reply decides it", \
"score": a whole number from 1 to 10}}"""


@dataclass(frozen=True)
class WritingBench(Benchmark):
    """The score is the mean over the criteria, divided by ten."""

    domain: str = ""
    """Domain of the only requests that are asked; empty: all."""

    def problem(self, row: Row, index: str) -> Problem | None:
        if self.domain and row.text("domain1") != self.domain:
            return None
        query, criteria = row.text("query"), row.list("checklist", "criteria")
        reference = {"query": query, "criteria": criteria}
        groups = row.groups("domain1", "domain2")
        return Problem(self.name, row.text("index"), user(query), reference, query, groups)

    def seconds(self, problem: Problem) -> float:
        return TRIES * PATIENCE * len(problem.reference["criteria"])

    def grade(self, problem: Problem, text: str) -> Grade:
        reply = text.strip()
        if not reply:
            return NO_ANSWER
        if self.metric == "diversity":
            return Grade(True, 1.0, reply, "measured over all replies to a request")
        url = os.environ.get("TGR_JUDGE_URL", "")
        if not url:
            return Grade(None, 0.0, reply, "skipped: no judge (give the URL of one)")
        scores = [
            asked(url, problem.reference["query"], criterion, reply)
            for criterion in problem.reference["criteria"]
        ]
        mean = sum(scores) / len(scores) / 10
        return Grade(mean >= PASS_MARK, mean, reply, f"scores {scores}")


def asked(url: str, query: str, criterion: Any, reply: str) -> int:
    """The judge's score, 1 to 10, by one criterion. Raises TgrError where it gives none."""
    text = criterion if isinstance(criterion, str) else json.dumps(criterion, ensure_ascii=False)
    content = QUESTION.format(criterion=text, query=query, reply=reply)
    for attempt in range(TRIES):
        body = {
            "model": os.environ.get("TGR_JUDGE_MODEL") or first_model(url),
            "messages": user(content),
            "temperature": 0.0 if attempt == 0 else 1.0,
            "seed": attempt,
        }
        answer = call(f"{url.rstrip('/')}/chat/completions", body)
        try:
            points = score(str(answer["choices"][0]["message"]["content"]))
        except (KeyError, IndexError, TypeError):
            raise TgrError(f"the judge at {url} answered with no chat completion") from None
        if points is not None:
            return points
    raise TgrError(f"the judge at {url} gave no score from 1 to 10 in {TRIES} tries")


def score(answer: str) -> int | None:
    """The score in the last JSON object of an answer that has a valid one."""
    decoder, points = json.JSONDecoder(), None
    for at in [i for i, letter in enumerate(answer) if letter == "{"]:
        try:
            value = decoder.raw_decode(answer, at)[0]
        except (ValueError, RecursionError):
            continue
        said = value.get("score") if isinstance(value, dict) else None
        if isinstance(said, int) and 1 <= said <= 10:
            points = said
    return points


def judge(url: str | None = None) -> tuple[str, str]:
    """The URL of the judge, this one or else that of the environment, and its model; both empty
    where there is none. Raises ValueError for a bad URL, TgrError where the server names no model.
    """
    url = checked(url or os.environ.get("TGR_JUDGE_URL", ""))
    return url, (os.environ.get("TGR_JUDGE_MODEL") or first_model(url)) if url else ""


def checked(url: str) -> str:
    """The URL of a judge; empty for none. ValueError for an invalid one."""
    if url and not url.startswith(("http://", "https://")):
        raise ValueError(f"the judge's URL must begin with http:// or https://: {url!r}")
    return url


def first_model(url: str) -> str:
    """The first model that the judge's server lists."""
    try:
        return str(call(f"{url.rstrip('/')}/models")["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise TgrError(f"the judge at {url} lists no model; name it in TGR_JUDGE_MODEL") from None


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON answer of a URL. TgrError without one."""
    headers = {"Content-Type": "application/json"}
    if secret := os.environ.get("TGR_JUDGE_KEY"):
        headers["Authorization"] = f"Bearer {secret}"
    data = json.dumps(body).encode() if body is not None else None
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise TgrError(f"the judge at {url} cannot be asked: {error}") from error


SOURCE = Source(
    ("writingbench/benchmark_all.jsonl", "benchmark_all.jsonl", "writingbench.jsonl"),
    "https://github.com/X-PLUG/WritingBench",
)
ALL = WritingBench("writingbench", "1,000 texts to write; needs a judge", SOURCE, metric="score")
ARTS = WritingBench(
    "writingbench-arts",
    "the same, its domain Literature & Arts",
    SOURCE,
    metric="score",
    domain="Literature & Arts",
)
DIVERSITY = WritingBench(
    "writingbench-diversity",
    "Literature & Arts without a judge: how much the replies to one request differ",
    SOURCE,
    metric="diversity",
    domain="Literature & Arts",
)
