"""The arguments of ``tgr-local eval run`` and their defaults."""

from __future__ import annotations

from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.flags import Parser, add_config_flags
from tgr_local.system.sandbox import backends

METHODS = "base,tgr-latent"
METRIC = "samples"
K = "1..8"
K_OF_ONE = "1"
"""Default k for the metric "one"."""
SEEDS = "42"
GRADE_SECONDS = 10.0
OWN = ("recipe", "methods", "variant", "metric", "k", "limit", "seeds", "injection_seeds",
        "budget", "reference", "data", "fetch", "allow_exec", "sandbox", "judge_url",
        "grade_seconds", "raw")  # fmt: skip
"""Flags of a run that its samples and grades depend on, besides those of the configs."""


def add_run_arguments(parser: Parser) -> None:
    """Adds the flags of `OWN`, those of place and speed, and those of the configs."""
    add = parser.add_argument
    add("tasks", nargs="*", metavar="TASK", help="task names; tgr-local eval list shows them")
    add(
        "--recipe",
        metavar="NAME",
        help="reproduce a published table: a name from the list, or a file",
    )
    add("--methods", metavar="A,B",
        help=f"methods to compare, instead of a recipe's systems (default: {METHODS})")  # fmt: skip
    add("--variant", action="append", default=[], metavar="METHOD:OPTION=VALUE,…",
        help="another system; may be repeated")  # fmt: skip
    add(
        "--metric",
        metavar="NAME",
        help="samples: Pass@k and AUC; one: the accuracy of one answer against its forward tokens "
        f"(default: {METRIC})",
    )
    add(
        "--k",
        metavar="K",
        help=f"numbers of samples: 1..128 (doubling), or 1,32,128 (default: {K}; with --metric one "
        f"{K_OF_ONE})",
    )
    add(
        "--limit",
        metavar="N",
        help="number of problems of each task, drawn at random (default: all)",
    )
    add("--seeds", metavar="N,N", help=f"make samples with each of these seeds (default: {SEEDS})")
    add("--injection-seeds", metavar="N,N",
        help="run each system that injects with each of these seeds of its maps")  # fmt: skip
    add("--budget", metavar="TOKENS",
        help="make samples until each problem has used this many forward tokens")  # fmt: skip
    add("--reference", metavar="NAME",
        help="system that the others are compared with (default: the best base)")  # fmt: skip
    add("--out", metavar="DIR",
        help="run folder, resumed if it exists (default: runs/TASKS-MODEL)")  # fmt: skip
    add("--data", metavar="PATH", help="folder with the tasks' files, or the file of one task")
    add("--fetch", action="store_true", help="fetch missing data from the Hugging Face hub")
    add("--allow-exec", action="store_true",
        help="run programs that the model writes, in a sandbox")  # fmt: skip
    add("--sandbox", metavar="NAME",
        help="sandbox backend: bwrap, or, at your risk, unshare or limits, which give programs "
             "access to your files, or none, which gives them all your rights "
             f"(default: {backends.DEFAULT})")  # fmt: skip
    add("--judge-url", metavar="URL",
        help="OpenAI-compatible judge of open answers (default: TGR_JUDGE_URL)")  # fmt: skip
    add(
        "--grade-seconds",
        metavar="X",
        help=f"time limit for one grade (default: {GRADE_SECONDS:g})",
    )
    add(
        "--graders",
        metavar="N",
        help="number of grading processes (default: a quarter of the cores)",
    )
    add("--parallel", metavar="N", help="number of samples at a time (default: as many as fit)")
    add("--ray", nargs="?", const="local", metavar="ADDRESS",
        help="make the samples on the nodes of a Ray cluster: HOST:PORT, auto, or, without an "
             "address, one that is started here")  # fmt: skip
    add("--raw", action="store_true", help="do not use the chat template")
    parser.add_option(
        "model", None, metavar="MODEL", help="a GGUF file, or a name that tgr-local models lists"
    )
    add_config_flags(parser, SearchConfig, "how a reply is generated, by every method")
    add_config_flags(parser, EngineConfig, "how the model is loaded")
