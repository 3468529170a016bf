"""MATH-500 (Lightman et al. 2023): 500 problems of the MATH test set."""

from tgr_local.lab.eval.tasks.data import Source
from tgr_local.lab.eval.tasks.maths import Maths

TASK = Maths(
    "math500",
    "500 problems of the MATH test set; LaTeX answers compared by value",
    Source(
        ("math500/test.jsonl", "math500.jsonl", "MATH-500/test.jsonl"),
        "https://huggingface.co/datasets/HuggingFaceH4/MATH-500",
        {"path": "HuggingFaceH4/MATH-500", "split": "test"},
    ),
)
