"""One task from the command line: the best edit as a diff, accepted or not, and an exit code."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tgr_local.code import table
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.rounds import TaskOutcome
from tgr_local.code.session import CodeSession, print_diff
from tgr_local.console.dialog import is_interactive
from tgr_local.system.errors import TgrError, describe
from tgr_local.system.sanitize import printable_json, printable_line

ACCEPTED, FAILED, NONE_PASSES, NOT_ACCEPTED = 0, 1, 3, 4
"""Exit codes; `command` has their meaning."""


def one_task(session: CodeSession, text: str, *, accepts: bool, as_json: bool) -> int:
    """Carries out a task, shows the best edit, and accepts it if `accepts` and it passes, or if
    the person says so. Returns the exit code."""
    asks = not accepts and not as_json and is_interactive()
    if asks:
        session.ask_for_tests()
    outcome = session.carry_out(text, can_stop=asks)
    best, offered = outcome.best, outcome.offered
    accepted = None
    if offered is not None and not as_json:
        print_diff(offered)
    if not as_json:
        session.explain()
    if offered is not None:
        if accepts and offered.passes:
            accepted = offered
        elif asks:
            accepted = ask(session, offered)
    if accepted is not None:
        try:
            said = session.accept(accepted.number)
        except (TgrError, OSError) as error:
            if as_json:
                result = as_object(session, text, outcome, None, FAILED)
                print(printable_json({**result, "error": describe(error)}))
            raise
        session.say(f"{said}; tgr-local code --undo restores it")
    elif best is None or not best.passes:
        gains = "passes" if offered else "gains anything"
        session.say(f"no edit {gains}; the folder is unchanged")
    else:
        session.say("not accepted; the folder is unchanged")
    code = _exit_code(best, accepted)
    if as_json:
        print(printable_json(as_object(session, text, outcome, accepted, code)))
    return code


def _exit_code(best: Candidate | None, accepted: Candidate | None) -> int:
    if accepted is not None:
        return ACCEPTED if accepted.passes else NONE_PASSES
    return NOT_ACCEPTED if best is not None and best.passes else NONE_PASSES


def ask(session: CodeSession, best: Candidate) -> Candidate | None:
    """Asks the person which edit to accept; None = none."""
    candidate = best
    while True:
        warning = "" if candidate.passes else ", which does not pass"
        question = f"accept candidate {candidate.number}{warning}? yes, no, or another's number: "
        try:
            answer = input(question).strip().lower()
        except EOFError:
            print()
            return None
        if answer in ("y", "yes"):
            return candidate
        if answer in ("n", "no", ""):
            return None
        try:
            if not answer.isdecimal():
                known = "yes, no or the number of a candidate"
                raise ValueError(f"the answer is {answer!r:.40}, but must be {known}")
            candidate = session.candidate(int(answer[:9]))
            print_diff(candidate)
        except ValueError as error:
            print(printable_line(str(error)))


def as_object(
    session: CodeSession,
    text: str,
    outcome: TaskOutcome,
    accepted: Candidate | None,
    code: int,
) -> dict[str, Any]:
    """The result of a task for programs."""
    best = outcome.best
    context = outcome.context
    return {
        "task": text,
        "model": session.engine.path.name,
        "method": session.method.name,
        "edit_format": outcome.form,
        "test": session.code.test or None,
        "before": _verdict(outcome.baseline),
        "context": {
            "tokens": context.n_tokens,
            "budget": context.budget,
            "shown": [dataclasses.asdict(file) for file in context.shown],
            "not_shown": [{"path": path, "why": why} for path, why in context.left_out],
        },
        "rounds": [[_candidate(c) for c in candidates] for candidates in outcome.rounds],
        "ranking": [candidate.number for candidate in outcome.ranked],
        "best": best.number if best else None,
        "passes": best is not None and best.passes,
        "accepted": accepted.number if accepted else None,
        "second": outcome.second.number if outcome.second else None,
        "diff": table.diff(outcome.offered.changes) if outcome.offered else "",
        "forward_tokens": outcome.forward_tokens,
        "seconds": round(outcome.seconds, 3),
        "exit_code": code,
    }


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else {**dataclasses.asdict(verdict), "passes": verdict.passes}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    added, removed = table.n_lines(candidate.changes)
    return {
        "number": candidate.number,
        "seed": candidate.seed,
        "parts": list(candidate.parts),
        "state": candidate.state,
        "passes": candidate.passes,
        "problem": candidate.problem or None,
        "verdict": _verdict(candidate.verdict),
        "lines_added": added,
        "lines_removed": removed,
        "tokens": candidate.n_tokens,
        "forward_tokens": candidate.forward_tokens,
        "logprob": candidate.logprob if math.isfinite(candidate.logprob) else None,
        "seconds": round(candidate.seconds, 3),
        "answer": candidate.answer,
        "thinking": candidate.thinking,
        "diff": table.diff(candidate.changes),
    }
