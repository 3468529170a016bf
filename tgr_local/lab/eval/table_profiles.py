"""Tables of accuracy by group of problems."""

from __future__ import annotations

from tgr_local.lab.eval.profiles import FEWEST, MOST, Profile
from tgr_local.lab.eval.table_cells import Table, percent


def profile(found: Profile) -> Table:
    """Pass@1 of every system in every group."""
    heads = [f"{group} ({n})" for group, n in zip(found.groups, found.sizes, strict=True)]
    left_out = (
        f" Shown are the {MOST} largest groups of at least {FEWEST} problems; {found.n_left_out} "
        "problems are in none of them."
        if found.n_left_out
        else ""
    )
    return Table(
        f"By {found.name}",
        ["system", *heads],
        [[outcome.label, *map(percent, cells)] for outcome, cells in found.rows],
        "Pass@1 in percent, with 95% intervals over the problems of a group, whose number is in "
        f"brackets in the head.{left_out} Of many groups some differ by chance.",
    )
