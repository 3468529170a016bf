"""The tables of a report: `comparison`, `outcome` have the numbers, `table_cells` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from tgr_local.lab.eval import frontier, profiles, table_accuracy, table_cost, table_geometry
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.paper import reported
from tgr_local.lab.eval.table_cells import Table


def of_task(compared: Comparison, recipes: Sequence[str]) -> list[Table]:
    """Every table for which the outcomes of one task have data, and the paper's for these
    recipes."""
    found, graded = compared.found, compared.graded
    tables = [frontier.table(compared.one)] if compared.one else []
    tables += [table_accuracy.equal_k(compared.at_k)] if compared.at_k else []
    tables += [table_accuracy.equal_tokens(compared.at_tokens)] if compared.at_tokens else []
    tables += map(profiles.table, compared.profiles)
    if compared.at_k:
        tables += [
            table_accuracy.by_seed(graded),
            table_accuracy.by_injection_seed(graded),
            table_accuracy.votes(graded),
            table_accuracy.first_k(graded),
        ]
    if found[0].metric != "pass" or "open-ended" in recipes:
        tables.append(table_accuracy.open_ended(graded or found))
    tables += [table_cost.cost(found), table_cost.overhead(found)]
    tables += [table_geometry.latent(found), table_geometry.density(found)]
    tables += [table_geometry.against_auc(graded), table_geometry.method_counts(found)]
    for recipe in recipes:
        tables += reported(recipe, found[0].task, found[0].run.manifest.model["name"])
    return [table for table in tables if table.rows]
