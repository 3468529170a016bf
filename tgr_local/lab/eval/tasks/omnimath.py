"""Omni-MATH (Gao et al. 2024): olympiad problems; the rule-gradable ones have a plain answer."""

from tgr_local.lab.eval.tasks.data import Source
from tgr_local.lab.eval.tasks.maths import Maths

TASK = Maths(
    "omnimath",
    "olympiad problems of Omni-MATH; use its rule-gradable subset (2,821 rows)",
    Source(
        ("omni_math_rule.jsonl", "omnimath/*.jsonl", "omni_math.jsonl"),
        "https://github.com/KbsdJames/omni-math-rule",
        {"path": "KbsdJames/Omni-MATH", "split": "test"},
    ),
)
