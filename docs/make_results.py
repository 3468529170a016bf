"""Writes docs/results/NAME.md, the tables of one evaluation run, for each run folder.

    python docs/make_results.py runs/main-countdown runs/main-game24

In: the `report.md` that every run of ``tgr-local eval`` writes. Out: the same under the name of the
folder, without the sections in `LEFT_OUT`. docs/results.md, written by hand, explains them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
LEFT_OUT = ("One answer from k", "Overhead", "Case")


def tables(name: str, report: str) -> str:
    """The report under the name of its run, without the sections in `LEFT_OUT`."""
    report = re.sub(r"^# .*", f"# {name}", report)
    sections = re.split(r"^(?=#+ )", report, flags=re.MULTILINE)
    return "".join(text for text in sections if not text.lstrip("# ").startswith(LEFT_OUT))


def main() -> int:
    """Returns the exit code: 2 without a run, 1 where a report is missing."""
    reports = [Path(folder, "report.md").resolve() for folder in sys.argv[1:]]
    if not reports:
        print("usage: python docs/make_results.py RUN...", file=sys.stderr)
        return 2
    try:
        texts = {report.parent.name: report.read_text("utf-8") for report in reports}
    except OSError as error:
        print(f"{error}; run tgr-local eval first", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts.items():
        (FOLDER / f"{name}.md").write_text(tables(name, text).rstrip("\n") + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
