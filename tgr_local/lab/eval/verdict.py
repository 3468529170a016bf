"""The verdict of a report: one sentence on what a comparison shows, and what it does not.

In: a `Comparison`. Out: a sentence in plain words. Its numbers are those of the tables. With
the metric "one" it names the frontier. Else it compares at equal forward tokens where the budget
buys every system a sample, or at equal k. A difference counts where its 95% interval excludes zero
and at least `FEWEST` problems differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tgr_local.lab.eval.comparison import Comparison, Curves
from tgr_local.lab.eval.frontier import MARGIN, Frontier, Point
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Outcome

FEWEST = 6
"""Problems that have to differ for a difference to count: where five do, all of them have the same
sign by chance in 2 of 2⁵ cases, which is more than 5%."""
_NAMED = 3  # systems with their intervals in one part of the sentence


@dataclass(frozen=True, eq=False)
class _SystemGain:
    """One system against the reference."""

    outcome: Outcome
    gain: Interval
    n_differing: int

    @property
    def is_clear(self) -> bool:
        return self.n_differing >= FEWEST and (self.gain.low > 0 or self.gain.high < 0)


def of_task(compared: Comparison) -> str:
    """The sentence on one task."""
    outcomes, graded = compared.outcomes, compared.graded
    if outcomes[0].metric == "diversity":
        return "This task has no wrong answers, so it cannot tell which system is better."
    unfinished = any(len(outcome.all_samples) < outcome.n_planned for outcome in outcomes)
    if compared.frontier:
        return _begin(unfinished, _one_answer(compared.frontier, len(outcomes) - len(graded)))
    if compared.at_k is None or compared.at_tokens is None:
        return "Nothing can be concluded yet: no problem has a graded sample in every system."
    if len(graded) == 1:
        return _begin(unfinished, _alone(compared.at_k, len(outcomes) - 1))
    at_cost = _findings(compared.at_tokens)
    sentence = (
        _compare(_at_cost(compared.at_tokens), at_cost, compared.at_tokens)
        if at_cost
        else _compare(_at_k(compared.at_k), _findings(compared.at_k), compared.at_k)
    )
    return _begin(unfinished, f"{sentence}{_out_of_reach(compared.at_tokens)}.")


def _one_answer(frontier: Frontier, n_left_out: int) -> str:
    """The frontier, and the cheapest system that keeps up with the reference."""
    place, base = f"with one answer to each of {_problems(frontier.n_problems)}", frontier.base
    if len(frontier.points) == 1:
        return (
            f"{place}, {base.outcome.label} is right in {100 * base.accuracy.mean:.1f}% (95% "
            f"interval {100 * base.accuracy.low:.1f} to {100 * base.accuracy.high:.1f}) for "
            f"{base.tokens:,.0f} forward tokens; {_nothing_compared(n_left_out)}."
        )
    names = _all_listed([_accuracy(point) for point in frontier.best])
    order = ", fewest tokens first," if len(frontier.best) > 1 else ""
    is_or_are = "is" if len(frontier.best) == 1 else "are"
    return (
        f"{place}, {names}{order} {is_or_are} on the frontier of accuracy against forward tokens; "
        f"{_cheapest(frontier)}."
    )


def _accuracy(point: Point) -> str:
    return f"{point.outcome.label} ({100 * point.accuracy.mean:.1f}%, {point.tokens:,.0f} tokens)"


def _cheapest(frontier: Frontier) -> str:
    cheapest, label = frontier.cheapest, frontier.base.outcome.label
    if frontier.points[0] is frontier.base:
        return f"no system is cheaper than {label}"
    if cheapest.gain is None:
        return (
            f"that a cheaper system loses at most {MARGIN:g} point to {label} cannot be concluded"
        )
    return (
        f"the cheapest one that loses at most {MARGIN:g} point to {label} is "
        f"{cheapest.outcome.label} ({cheapest.gain.mean:+.1f} points, 95% interval "
        f"{cheapest.gain.low:+.1f} to {cheapest.gain.high:+.1f}), "
        f"with {100 * cheapest.share:.0f}% of its tokens"
    )


def _begin(unfinished: bool, sentence: str) -> str:
    return f"So far, {sentence}" if unfinished else sentence[:1].upper() + sentence[1:]


def _findings(curves: Curves) -> list[_SystemGain]:
    """Every comparison that there is."""
    return [
        _SystemGain(curve.outcome, gain, curves.n_differing(curve.outcome))
        for curve in curves.curves
        if (gain := curves.gain(curve.outcome)) is not None
    ]


def _alone(at_k: Curves, n_left_out: int) -> str:
    (curve,) = at_k.curves
    label, (n, first) = curve.outcome.label, (len(curve.outcome.graded), curve.intervals[0])
    assert first is not None
    solves = f"{_tries(at_k.places[0])}, {label} solves {100 * first.mean:.1f}% of {_problems(n)}"
    interval = f"(95% interval {100 * first.low:.1f} to {100 * first.high:.1f})"
    return f"{solves} {interval}; {_nothing_compared(n_left_out)}."


def _nothing_compared(n_left_out: int) -> str:
    if n_left_out:
        return "no other system has enough graded samples for a comparison"
    return "it is the only system, so nothing is compared"


def _at_cost(at_tokens: Curves) -> str:
    return f"at equal cost ({at_tokens.places[-1]:,.0f} forward tokens a problem)"


def _at_k(at_k: Curves) -> str:
    if len(at_k.places) == 1:
        return _tries(at_k.places[0])
    return f"on average over {at_k.places[0]:.0f} to {at_k.places[-1]:.0f} tries"


def _tries(k: float) -> str:
    return "with one try" if k == 1 else f"within {k:.0f} tries"


def _problems(n: int) -> str:
    return "1 problem" if n == 1 else f"{n:,} problems"


def _compare(place: str, findings: Sequence[_SystemGain], curves: Curves) -> str:
    """The comparison of two or more systems, without its full stop."""
    n = len(curves.base.graded)
    if level := _all_equal(curves, findings):
        return f"{place}, {level}"
    if len(findings) == 1:
        (finding,) = findings
        meaning = _meaning(finding, curves.base, n, at_cost=bool(curves.budgets))
        return (
            f"{place}, {finding.outcome.label} solves {_more(finding.gain, n)} {curves.base.label} "
            f"(95% interval {_interval(finding.gain)}): {meaning}"
        )
    return f"{place}, on {_problems(n)}, {_several(findings, curves.base)}"


def _all_equal(curves: Curves, findings: Sequence[_SystemGain]) -> str:
    """Returns the sentence for systems that no problem separates; else empty."""
    if any(f.n_differing for f in findings):
        return ""
    outcomes = [curves.base, *(f.outcome for f in findings)]
    n, who = len(curves.base.graded), _list_names([outcome.label for outcome in outcomes])
    each = "both" if len(outcomes) == 2 else "all"
    last = [curve.values[-1] for curve in curves.curves if curve.outcome in outcomes]
    everything = np.concatenate([row for row in last if row is not None])
    if (everything == 1).all():
        return f"{who} {each} solve all of {_problems(n)}, which are too easy to tell them apart"
    if (everything == 0).all():
        return f"{who} {each} solve none of {_problems(n)}, which are too hard to tell them apart"
    return f"{who} solve the same share of each of {_problems(n)}: no difference can be concluded"


def _more(gain: Interval, n: int) -> str:
    """`3.1 percentage points more of 50 problems than`."""
    if f"{abs(gain.mean):.1f}" == "0.0":
        return f"as many of {_problems(n)} as"
    more = "more" if gain.mean > 0 else "fewer"
    return f"{abs(gain.mean):.1f} percentage points {more} of {_problems(n)} than"


def _interval(gain: Interval) -> str:
    low, high = (round(edge, 1) for edge in (gain.low, gain.high))
    if low >= 0 or high <= 0:
        near, far = sorted((abs(low), abs(high)))
        return f"{near:.1f} to {far:.1f} {'more' if low >= 0 and high > 0 else 'fewer'}"
    return f"{-low:.1f} fewer to {high:.1f} more"


def _meaning(finding: _SystemGain, base: Outcome, n: int, *, at_cost: bool) -> str:
    if finding.n_differing < FEWEST:
        return (
            f"{_problems(finding.n_differing)} that differ between them are too few to conclude "
            "which is better"
        )
    if finding.is_clear:
        ahead = finding.outcome if finding.gain.mean > 0 else base
        at = "" if at_cost else " at an equal number of tries"
        return (
            f"{ahead.label} is ahead{at}, with this model and these problems; about others nothing "
            "can be concluded"
        )
    unseen = max(
        abs(finding.gain.low - finding.gain.mean), abs(finding.gain.high - finding.gain.mean)
    )
    return (
        f"which of them is better cannot be concluded, because with {_problems(n)} a difference "
        f"below about {unseen:.0f} points is not seen"
    )


def _several(findings: Sequence[_SystemGain], base: Outcome) -> str:
    clear = [f for f in findings if f.is_clear]
    parts = [
        _clear_ones([f for f in clear if f.gain.mean > 0], f"ahead of {base.label}"),
        _clear_ones([f for f in clear if f.gain.mean < 0], f"behind {base.label}"),
    ]
    unclear = [f for f in findings if not f.is_clear]
    if unclear:
        names = [
            f"{f.outcome.label} (95% interval {f.gain.low:+.1f} to {f.gain.high:+.1f} points)"
            for f in unclear
        ]
        whom = _list_names(names, last="or")
        parts.append(f"whether {whom} is ahead of {base.label} cannot be concluded")
    if len(unclear) < len(findings):
        parts.append(
            f"of {len(findings)} comparisons with 95% intervals one in twenty is clear by chance"
        )
    return "; ".join(part for part in parts if part)


def _clear_ones(findings: Sequence[_SystemGain], relation: str) -> str:
    """`a (by 3.1 points, 95% interval 1.0 to 5.2) and b (by …) are ahead of base`."""
    if not findings:
        return ""
    ordered = sorted(findings, key=lambda f: -abs(f.gain.mean))
    names = [
        f"{f.outcome.label} (by {abs(f.gain.mean):.1f} points, 95% interval "
        f"{' to '.join(f'{edge:.1f}' for edge in sorted((abs(f.gain.low), abs(f.gain.high))))})"
        for f in ordered
    ]
    return f"{_list_names(names)} {'is' if len(names) == 1 else 'are'} {relation}"


def _out_of_reach(at_tokens: Curves) -> str:
    """The systems that cannot be compared at equal cost; empty for none."""
    last = [curve.outcome.label for curve in at_tokens.curves if curve.values[-1] is None]
    if not last:
        return ""
    pronoun = "it" if len(last) == 1 else "each"
    return (
        f"; at equal cost nothing can be concluded about {_list_names(last)}: one sample of "
        f"{pronoun} takes more than the {at_tokens.places[-1]:,.0f} forward tokens that every "
        "system spent on a problem (set a larger --budget)"
    )


def _list_names(names: Sequence[str], last: str = "and") -> str:
    """`a, b and c`; the names beyond `_NAMED` as their number."""
    listed = list(names[:_NAMED])
    if len(names) > _NAMED:
        listed.append(f"{len(names) - _NAMED} more")
    return _all_listed(listed, last)


def _all_listed(names: Sequence[str], last: str = "and") -> str:
    *head, end = names
    return f"{', '.join(head)} {last} {end}" if head else end
