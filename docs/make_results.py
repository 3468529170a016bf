"""Writes the tables of docs/results.md from run folders; the conclusions above them are by hand.

    python docs/make_results.py runs/countdown-main runs/game24-main

Each folder's `report.md`, which every run of ``tgr-local eval`` ends with, says how it was made and
gives all tables but those in `LEFT_OUT`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results.md"
MARK = "<!-- from here on written by docs/make_results.py -->\n"
LEFT_OUT = ("One answer from k", "Overhead", "Case")


def tables(name: str, report: str) -> str:
    """How a run was made and the tables that are kept, a level deeper, under the run's name."""
    report = re.sub(r"^# .*", f"# {name}", report)
    parts = re.split(r"^(?=#+ )", report, flags=re.MULTILINE)
    kept = [part for part in parts if not part.lstrip("# ").startswith(LEFT_OUT)]
    return "".join("#" + part if part.startswith("#") else part for part in kept)


def main() -> int:
    reports = [Path(folder, "report.md") for folder in sys.argv[1:]]
    if not reports:
        print("usage: python docs/make_results.py RUN...", file=sys.stderr)
        return 2
    try:
        texts = [tables(report.parent.name, report.read_text("utf-8")) for report in reports]
    except OSError as error:
        print(f"{error}; run tgr-local eval first", file=sys.stderr)
        return 1
    above = RESULTS.read_text("utf-8").split(MARK)[0]
    RESULTS.write_text(above + MARK + "\n" + "\n".join(texts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
