"""``tgr-local bench``: speed on this machine, each measurement next to that of another program.

In: an engine and its settings. Out: rows, each a ratio or a rate with its spread and sometimes a
target. It does not know whether answers are correct: that is `tgr_local.lab.eval`.

    command.py       arguments in, a table out
    plan.py          engine, settings of the peers, number of repeats, the machine
    measure.py       contenders in turns; spreads, targets, rows, as text, Markdown and JSON
    subject.py       this engine as a contender
    peers.py         llama.cpp as a contender: a bare decode loop, and llama-cpp-python; in a
                     process of its own
    programs.py      other programs as contenders, where ``--peer`` names them
    openvino_loop.py OpenVINO GenAI for programs.py, run by another Python
    decode.py        steps, prefill and plain replies; the cost of capture and of sampling; drafts
    boundary.py      one boundary of the method in parts, and whole methods
    long_reply.py    time per token and memory while a long reply grows, as a picture too
    roofline.py      a step compared with the limits of memory and multiply-adds
    concurrency.py   many replies of a small model at a time; start-up
    cold_start.py    searches in a fresh process, for concurrency.py
    shapes.py        random-weight model files in the shapes of Qwen3
"""
