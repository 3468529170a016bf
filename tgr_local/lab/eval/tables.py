"""The tables of a report, those of cost among them: `comparison` and `outcome` have the numbers,
`table_cells` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from tgr_local.lab.eval import frontier, profiles, table_accuracy, table_geometry
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.outcome import Outcome, reference
from tgr_local.lab.eval.paper import reported
from tgr_local.lab.eval.table_cells import Table, number


def of_task(compared: Comparison, recipes: Sequence[str]) -> list[Table]:
    """Every table for which the outcomes of one task have data, and the paper's for these
    recipes."""
    outcomes, graded = compared.outcomes, compared.graded
    tables = [frontier.table(compared.frontier)] if compared.frontier else []
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
    if outcomes[0].metric != "pass" or "open-ended" in recipes:
        tables.append(table_accuracy.open_ended(graded or outcomes))
    tables += [cost(outcomes), overhead(outcomes)]
    tables += [table_geometry.latent(outcomes), table_geometry.density(outcomes)]
    tables += [table_geometry.against_auc(graded), table_geometry.method_counts(outcomes)]
    for recipe in recipes:
        tables += reported(recipe, outcomes[0].task, outcomes[0].run.manifest.model["name"])
    return [table for table in tables if table.rows]


def cost(outcomes: Sequence[Outcome]) -> Table:
    """Forward tokens and seconds of a sample."""
    drawn = [outcome for outcome in outcomes if outcome.all_samples]
    kinds = [
        kind
        for kind in dict.fromkeys(kind for outcome in drawn for kind in outcome.counts)
        if any(outcome.counts.get(kind) for outcome in drawn)
    ]
    rows = [
        [
            outcome.label,
            *(f"{outcome.counts.get(kind, 0):.0f}" for kind in kinds),
            f"{outcome.cost:.0f}",
            f"{outcome.reply_tokens:.0f}",
            f"{outcome.seconds:.2f}",
            number(outcome.rate, "{:,.0f}"),
            ", ".join(f"{name} {n}" for name, n in outcome.finishes.most_common()),
        ]
        for outcome in drawn
    ]
    return Table(
        "Cost of a sample",
        [
            "system",
            *kinds,
            "forward tokens",
            "reply tokens",
            "seconds",
            "tokens/s",
            "finish reasons",
        ],
        rows,
        "Means over all samples. A sample's seconds are measured in a batch that it shares with "
        "others; tokens/s counts the forward tokens of the whole batch.",
    )


def overhead(outcomes: Sequence[Outcome]) -> Table:
    """Seconds by part, relative to generating the chunks. Only samples that were made one at a time
    count: in a shared batch the seconds of a reply include those of others."""
    timed = [o for o in outcomes if o.parts.get("chunk") and o.was_alone]
    if not timed:
        return Table("Overhead", [], [])
    base = reference(timed)
    parts = [p for p in dict.fromkeys(p for o in timed for p in o.parts) if p != "chunk"]

    def per_token(outcome: Outcome) -> float:
        return sum(outcome.parts.values()) / max(outcome.reply_tokens, 1)

    rows = []
    for outcome in timed:
        chunk = outcome.parts["chunk"]
        shares = (f"{outcome.parts.get(part, 0) / chunk:.2f}" for part in parts)
        ratio = per_token(outcome) / per_token(base)
        tokens = outcome.cost / max(outcome.reply_tokens, 1)
        rows.append([outcome.label, "1.00", *shares, f"{ratio:.2f}", f"{tokens:.2f}"])
    return Table(
        "Overhead",
        [
            "system",
            "chunk",
            *parts,
            f"seconds per reply token / {base.label}",
            "forward tokens per reply token",
        ],
        rows,
        "Seconds by part, relative to generating the chunks, and seconds per reply token, relative "
        "to the reference; one sample at a time.",
    )
