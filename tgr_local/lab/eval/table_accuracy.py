"""Tables of accuracy: at equal k, at equal forward tokens, by seed, of one answer from k, of open
answers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from tgr_local.lab.eval.comparison import Curves
from tgr_local.lab.eval.outcome import Outcome, common_seeds, equal_texts
from tgr_local.lab.eval.systems import SEED_IN_NAME
from tgr_local.lab.eval.table_cells import Table, mean, mean_and_sd, percent, signed


def equal_k(at_k: Curves) -> Table:
    """Pass@k, AUC, and the difference to the reference."""
    base, several = at_k.base, len(at_k.places) > 1
    ks = [f"{k:.0f}" for k in at_k.places]
    name = "AUC" if several else f"Pass@{ks[0]}"
    rows = []
    for curve in at_k.curves:
        outcome = curve.outcome
        cells = [percent(share) for share in curve.intervals]
        cells += [mean(outcome.aucs, scale=1)] if several else []
        n_samples = sum(map(len, outcome.graded.values()))
        sizes = f"{len(outcome.graded):,}", f"{n_samples:,}"
        rows.append([outcome.label, *cells, signed(at_k.gain(outcome)), *sizes])
    columns = ["system", *(f"Pass@{k}" for k in ks), *(["AUC"] if several else [])]
    return Table(
        "At equal k",
        [*columns, f"{name}, minus {base.label}", "problems", "samples"],
        rows,
        "Percent, with 95% intervals over problems in brackets. Pass@k is the unbiased "
        "estimate, AUC the area under it over log2 k; differences are paired by problem."
        + _chosen_base(at_k, name),
    )


def by_seed(graded: Sequence[Outcome]) -> Table:
    """AUC of each seed alone, over the k that every seed has samples for, with mean and SD."""
    seeds, ks = common_seeds(graded)
    rows = []
    for outcome in graded if len(seeds) > 1 and len(ks) > 1 else ():
        aucs = np.array([outcome.auc_of_seed(seed, ks) for seed in seeds])
        rows.append([outcome.label, *(f"{auc:.1f}" for auc in aucs), mean_and_sd(aucs)])
    return Table(
        "AUC of each seed",
        ["system", *(f"seed {seed}" for seed in seeds), "mean ± SD"],
        rows,
        f"Over k = {ks[0]} to {ks[-1]}, for which every seed has samples; the AUC of all samples "
        "together goes to the largest k. SD is the standard deviation over seeds."
        if rows
        else "",
    )


def by_injection_seed(graded: Sequence[Outcome]) -> Table:
    """AUC of systems that differ in the seed of their maps alone, with mean and SD over seeds."""
    alike: dict[str, dict[int, Outcome]] = {}
    for outcome in graded:
        config = dict(outcome.system["config"])
        seed = config.pop("injection_seed", None)
        if seed is not None:
            name = outcome.label.replace(f"{SEED_IN_NAME}{seed}", "")
            facts = [name, outcome.system["method"], config, outcome.run.manifest.model["sha256"]]
            alike.setdefault(json.dumps(facts, sort_keys=True), {})[seed] = outcome
    groups = {json.loads(facts)[0]: of for facts, of in alike.items() if len(of) > 1}
    seeds = list(dict.fromkeys(seed for of_seed in groups.values() for seed in of_seed))
    several = len(graded[0].ks) > 1
    rows = []
    for name, of_seed in groups.items():
        shares = {
            seed: o.aucs if several else 100 * o.passed(o.ks[0]) for seed, o in of_seed.items()
        }
        means = {seed: values.mean() for seed, values in shares.items()}
        cells = (f"{means[seed]:.1f}" if seed in means else "-" for seed in seeds)
        rows.append([name, *cells, mean_and_sd(np.array(list(means.values())))])
    return Table(
        f"{'AUC' if several else f'Pass@{graded[0].ks[0]}'} of each injection seed",
        ["system", *(f"injection seed {seed}" for seed in seeds), "mean ± SD"],
        rows,
        "Systems with the same options but for the seed of the maps A, B and W; all have the same "
        "seeds of their samples. SD is the standard deviation over injection seeds.",
    )


def equal_tokens(at_tokens: Curves) -> Table:
    """Pass@budget at budgets that the samples of every system fill; - where no sample fits."""
    names = [f"{place:,.0f}" for place in at_tokens.places]
    rows = [
        [
            curve.outcome.label,
            *(percent(share) for share in curve.intervals),
            signed(at_tokens.gain(curve.outcome)),
            f"{curve.bought:.1f}",
        ]
        for curve in at_tokens.curves
    ]
    return Table(
        "At equal forward tokens",
        [
            "system",
            *(f"{name} tokens" for name in names),
            f"{names[-1]}, minus {at_tokens.base.label}",
            "samples bought",
        ],
        rows,
        "Percent of problems with a correct sample when samples are bought in random order until "
        "the budget of forward tokens is spent. The last sample counts in proportion to the part "
        "of its cost that the budget covers; - means that the budget buys less than one sample. "
        + (
            "Every problem has the same budget."
            if len(set(at_tokens.budgets[-1].of.values())) == 1
            else "The largest budget of a problem is the cost of all samples of the cheapest "
            "system on it; the others are a half, a quarter and so on. The column heads are "
            "means over problems."
        )
        + _chosen_base(at_tokens, f"the share at {names[-1]} tokens"),
    )


def votes(graded: Sequence[Outcome]) -> Table:
    """One answer out of k: the most frequent, or that of the likeliest reply."""
    ks = [k for k in graded[0].ks if k > 1]
    rows = []
    for outcome in graded if ks else ():
        if any(sample.answer is not None for sample in outcome.all_samples):
            rows.append([f"{outcome.label}, majority", *(mean(outcome.majority(k)) for k in ks)])
        rows.append([f"{outcome.label}, likeliest", *(mean(outcome.best_of(k)) for k in ks)])
    return Table(
        "One answer from k",
        ["system", *(f"k={k}" for k in ks)],
        rows,
        "Percent correct of the most frequent extracted answer, and of the reply with the highest "
        "mean log-likelihood, from the same samples.",
    )


def first_k(graded: Sequence[Outcome]) -> Table:
    """Pass@k measured on the first k samples of each seed, without an estimator."""
    rows = []
    ks = [k for k in graded[0].ks if not any(np.isnan(o.passed_first(k)).any() for o in graded)]
    for outcome in graded if ks else ():
        rows.append([outcome.label, *(mean(outcome.passed_first(k)) for k in ks)])
    return Table(
        "Any of the first k",
        ["system", *(f"k={k}" for k in ks)],
        rows,
        "Percent of problems with a correct sample among the first k of a seed, averaged over "
        "seeds: Pass@k measured directly, noisier than the estimate above.",
    )


def open_ended(outcomes: Sequence[Outcome]) -> Table:
    """Scores from 0 to 1, and the similarity of the texts of a problem."""
    ks = outcomes[0].ks
    scored = outcomes[0].metric == "score"
    n, problems = equal_texts(outcomes)
    rows = []
    for outcome in outcomes:
        cells = [mean(outcome.top_score(k)) for k in ks] if scored else []
        rows.append([outcome.label, *cells, mean(outcome.self_bleu(n, problems), scale=1)])
    columns = [f"best score of {k}" for k in ks] if scored else []
    return Table(
        "Open answers",
        ["system", *columns, f"Self-BLEU@{n}"],
        rows if scored or n else [],
        f"{'Scores in percent. ' if scored else ''}Self-BLEU compares the first {n} texts of each "
        f"of {len(problems)} problems, the same number in every system; low is diverse.",
    )


def _chosen_base(curves: Curves, measure: str) -> str:
    """States how the reference was chosen, where there were several `base` systems."""
    base = curves.base
    n = sum(curve.outcome.system["method"] == "base" for curve in curves.curves)
    fixed = base.system["name"] == base.run.manifest.reference
    return "" if fixed or n < 2 else f" {base.label} is the best of {n} base systems by {measure}."
