"""Profiles: the accuracy of every system by group of problems, such as the levels of a benchmark.

The groups are those that a task gives its problems (`Problem.groups`), as the run folder has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.table_cells import Table, percent

FEWEST = 5
"""Problems of a group that is shown: fewer say nothing."""
MOST = 12
"""Groups that are shown, the largest ones."""


@dataclass(frozen=True, eq=False)
class Profile:
    """All compared systems by one property of the problems."""

    name: str
    """Name of the property, such as "level"."""
    groups: list[str]
    """Groups in the order of their numbers, or of the alphabet."""
    sizes: list[int]
    """Problems of each group."""
    n_left_out: int
    """Compared problems that are in no shown group."""
    rows: list[tuple[Outcome, list[Interval]]]
    """Pass@1 of each system in every group, 0 … 1, with 95% intervals over its problems."""


def of_task(graded: Sequence[Outcome]) -> list[Profile]:
    """A profile for each property that divides the compared problems into two groups or more."""
    if not graded:
        return []
    problems = list(graded[0].graded)  # the same in every outcome
    places = [(graded[0].task, problem) for problem in problems]
    known = {place: own for o in graded for place, own in o.run.groups.items()}
    members: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, place in enumerate(places):
        for name, group in known.get(place, {}).items():
            members[name][group].append(i)
    profiles = [_profile(name, groups, graded) for name, groups in members.items()]
    return [profile for profile in profiles if len(profile.groups) > 1]


def _profile(name: str, groups: dict[str, list[int]], graded: Sequence[Outcome]) -> Profile:
    large = [group for group, own in groups.items() if len(own) >= FEWEST]
    largest = sorted(sorted(large, key=lambda group: -len(groups[group]))[:MOST], key=_order)
    shares = {outcome: outcome.passed(1) for outcome in graded}
    rows = [
        (outcome, [metrics.interval(share[np.array(groups[group])]) for group in largest])
        for outcome, share in shares.items()
    ]
    sizes = [len(groups[group]) for group in largest]
    n_left_out = len(graded[0].graded) - sum(sizes)
    return Profile(name, largest, sizes, n_left_out, rows)


def _order(group: str) -> tuple[float, str]:
    try:
        return float(group), group
    except ValueError:
        return float("inf"), group


def table(profile: Profile) -> Table:
    """Pass@1 of every system in every group."""
    heads = [f"{group} ({n})" for group, n in zip(profile.groups, profile.sizes, strict=True)]
    left_out = (
        f" Shown are the {MOST} largest groups of at least {FEWEST} problems; {profile.n_left_out} "
        "problems are in none of them."
        if profile.n_left_out
        else ""
    )
    return Table(
        f"By {profile.name}",
        ["system", *heads],
        [[outcome.label, *map(percent, cells)] for outcome, cells in profile.rows],
        "Pass@1 in percent, with 95% intervals over the problems of a group, whose number is in "
        f"brackets in the head.{left_out} Of many groups some differ by chance.",
    )
