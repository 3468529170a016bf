"""Speed on this machine, each number beside its peer's: ``tgr-local bench``.

contenders (ours.py, peers.py) -> groups of rows -> table. The groups: decode.py (steps, prefill,
plain text, what capture and sampling cost), boundary.py (one boundary in parts), runs.py (whole
methods), bound.py (what the memory allows), crowds.py (many texts of a small model, start-up).
measure.py takes turns, shapes.py makes model files, machine.py and table.py tell.
"""
