"""The report on one or more runs, as Markdown: verdict, tables, cases. `page` writes it as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgr_local.lab.eval import average, cases, comparison, recipe, summary, tables, verdict
from tgr_local.lab.eval.cases import Case, SideBySide
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.outcome import Outcome, reference
from tgr_local.lab.eval.run_folder import EvaluationRun
from tgr_local.lab.eval.table_cells import Table
from tgr_local.options.config import SearchConfig
from tgr_local.system.json_values import to_json_value
from tgr_local.system.sandbox import backends


@dataclass(frozen=True)
class Section:
    """One task."""

    task: str
    verdict: str
    """Verdict in one sentence."""
    compared: Comparison
    notes: list[str]
    """Notes on missing samples and grades."""
    tables: list[Table]
    cases: list[Case]
    side_by_side: list[SideBySide]

    @property
    def n_first(self) -> int:
        """Tables that go before the plots, and into a brief report."""
        return 1 if self.compared.frontier else 2


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    facts: list[list[tuple[str, str]]]
    """Name and value of the facts of each run."""
    sections: list[Section]
    all_tasks: list[Table] = field(default_factory=list)
    """Tables over several tasks."""


def build(runs: Sequence[EvaluationRun], ks: Sequence[int] = ()) -> Page:
    """The report on these runs, with tables for `ks`, or for the k of the runs. Several seeds
    together allow a larger k than that of a run."""
    recipes = list(dict.fromkeys(run.manifest.recipe for run in runs))
    known = [recipe.load(name).title for name in recipes if name in recipe.names()]
    sections = []
    for task, outcomes in summary.outcomes(runs, ks).items():
        compared = comparison.of(outcomes)
        sections.append(
            Section(
                task,
                verdict.of_task(compared),
                compared,
                _notes(outcomes),
                tables.of_task(compared, recipes),
                cases.of_task(outcomes, reference(outcomes)),
                cases.side_by_side(compared.graded, reference(outcomes)),
            )
        )
    all_tasks = average.tables([section.compared for section in sections], recipes)
    facts = [_facts(run) for run in runs]
    return Page("; ".join(known) or "Evaluation", facts, sections, all_tasks)


def _facts(run: EvaluationRun) -> list[tuple[str, str]]:
    about = run.manifest
    model = about.model
    return [
        ("run", f"{run.folder.resolve().name}, started {about.created[:10]}"),
        ("command", about.command or "not recorded"),
        ("model", f"{model['name']} ({model['description']}), sha256 {model['sha256']}"),
        ("samples", f"{len(run.samples):,}, seeds {', '.join(map(str, about.seeds))}"),
        ("forward tokens", _decoded(run)),
        *_options(about.systems),
        *_rollout_lens(about.tasks),
        ("versions", ", ".join(f"{name} {version}" for name, version in about.versions.items())),
        *_sandbox(about.grading),
        ("machines", "; ".join(dict.fromkeys(map(_machine, about.machines))) or "not recorded"),
    ]


def _sandbox(grading: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The sandbox backend, where programs of the model ran."""
    backend = grading.get("sandbox")
    if backend:
        yield "sandbox", f"{backend}: {backends.ISOLATION.get(backend, 'unknown')}"


def _decoded(run: EvaluationRun) -> str:
    """The counted forward tokens, compared with the engine's own count."""
    total = sum(sample.cost for sample in run.samples)
    positions = sum(phase["positions"] for phase in run.phases)
    counted = sum(phase["counted"] for phase in run.phases)
    relation = "equal to" if positions == counted else f"but {positions:,} were decoded, not"
    if counted == total:
        return f"{total:,} counted, {relation} the engine's own count"
    return (
        f"{total:,} counted; {counted:,} of them in uninterrupted phases, {relation} the "
        "engine's own count"
    )


def _options(systems: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Options that are not the default: of all systems, and of each."""
    defaults = to_json_value(SearchConfig())
    changed = [
        {name: value for name, value in system["config"].items() if value != defaults.get(name)}
        for system in systems
    ]
    shared = {
        name: value
        for name, value in changed[0].items()
        if all(options.get(name) == value for options in changed)
    }
    if shared:
        yield "options of all systems", _list(shared)
    for system, options in zip(systems, changed, strict=True):
        own = {name: value for name, value in options.items() if name not in shared}
        if own or system["name"] != system["method"]:
            yield system["name"], f"{system['method']} {_list(own)}".strip()


def _rollout_lens(tasks: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The rollout_len of the systems that have another one on a task."""
    for task in tasks:
        if lens := task.get("rollout_len"):
            yield f"rollout_len on {task['name']}", _list(lens)


def _list(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Missing samples and grades, and their effect on the comparison."""
    late = [o for o in outcomes if len(o.all_samples) < o.n_planned]
    ungraded = [o for o in outcomes if o.ungraded]
    compared = [o for o in outcomes if o.graded]
    notes = []
    if late:
        counts = (f"{o.label} {len(o.all_samples):,} of {o.n_planned:,}" for o in late)
        notes.append(f"Unfinished. Samples so far: {', '.join(counts)}.")
    if ungraded:
        notes.append(f"Samples without a grade: {'; '.join(map(_why_ungraded, ungraded))}.")
    if compared and (late or ungraded):
        notes.append(_comparison_note(outcomes, compared))
    if cut := [o for o in outcomes if _n_cut(o)]:
        counts = (f"{o.label} {_n_cut(o):,} of {len(o.all_samples):,}" for o in cut)
        notes.append(
            f"Texts that a limit cut before their end: {', '.join(counts)}. A higher max_tokens or "
            "budget may change the result."
        )
    return notes


def _n_cut(outcome: Outcome) -> int:
    """Samples whose text a limit ended."""
    return sum(outcome.finishes[finish] for finish in ("length", "budget", "loop"))


def _why_ungraded(outcome: Outcome) -> str:
    (why, _), *other_reasons = Counter(s.detail for s in outcome.ungraded).most_common()
    more = f" and {len(other_reasons)} other reasons" if other_reasons else ""
    return f"{outcome.label}: {len(outcome.ungraded):,} ({why:.120}{more})"


def _comparison_note(outcomes: Sequence[Outcome], compared: Sequence[Outcome]) -> str:
    first = compared[0]
    n_all, most = max(o.n_expected for o in outcomes), max(first.ks)
    without = [o.label for o in outcomes if o not in compared]
    why = "Left out, because fewer than half of the problems are graded:"
    left_out = f" {why} {', '.join(without)}." if without else ""
    return (
        f"The tables compare {len(first.graded):,} of {n_all:,} problems, at k up to {most}: those "
        f"with at least {most} graded samples in every system shown.{left_out}"
    )


def _machine(machine: dict[str, Any]) -> str:
    devices = ", ".join(map(str, machine.get("devices", [])))
    python = f", Python {machine['python']}" if "python" in machine else ""
    return (
        f"{machine.get('processor') or machine.get('system')}, {machine.get('cores')} cores, "
        f"{machine.get('threads')} threads, layers on {devices}{python}"
    )


# ---- Markdown ----


def as_markdown(page: Page, *, brief: bool = False) -> str:
    """The page without its plots; `brief` has the verdict and the two comparisons only."""
    return "\n".join(_markdown(page, brief)) + "\n"


def _markdown(page: Page, brief: bool) -> Iterator[str]:
    yield f"# {page.title}\n"
    for section in page.sections:
        task = "" if len(page.sections) == 1 else f"{_one_line(section.task)}: "
        yield f"{'- ' if task else ''}**Verdict.** {task}{_one_line(section.verdict)}"
    for facts in () if brief else page.facts:
        yield ""
        yield from (f"- {name}: `{_one_line(text)}`" for name, text in facts)
    for table in () if brief else page.all_tasks:
        yield from _markdown_table(table, "##")
    for section in page.sections:
        yield f"\n## {section.task}"
        for note in section.notes:
            yield f"\n{note}"
        for table in section.tables[: section.n_first if brief else None]:
            yield from _markdown_table(table, "###")
        for case in () if brief else section.cases:
            yield f"\n### Case: {case.title}\n"
            for name, text in fields(case):
                yield f"- {name}: `{_one_line(text)}`"
            yield ""
            yield from _markdown_rows(CANDIDATE, case.candidates)
        yield from () if brief else _markdown_side_by_side(section.side_by_side)


def _markdown_side_by_side(problems: Sequence[SideBySide]) -> Iterator[str]:
    if problems:
        yield f"\n### Side by side\n\n{cases.RULE}"
    for problem in problems:
        yield f"\n#### Problem {_one_line(problem.problem)}\n"
        yield f"- prompt: `{_one_line(problem.prompt)}`"
        for reply in problem.replies:
            mark = "✓" if reply.correct else "✗"
            said = f"`{_one_line(reply.result)}`: `{_one_line(reply.text)}`"
            yield f"- {mark} **{_one_line(reply.system)}**, {said}"


def _markdown_table(table: Table, heading: str) -> Iterator[str]:
    yield f"\n{heading} {table.title}\n"
    yield from _markdown_rows(table.columns, table.rows)
    if table.note:
        yield f"\n{table.note}"


def _markdown_rows(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(_cell, columns))} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return text.replace("\n", " ⏎ ").replace("`", "'")


CANDIDATE = ["", "V", "P_bum", "P_uni", "S", "rollout"]


def fields(case: Case) -> list[tuple[str, str]]:
    return [
        ("prompt", case.prompt),
        ("boundary", case.boundary),
        ("divergence", case.divergence),
        ("text", case.text),
        ("outcome", case.result),
    ]
