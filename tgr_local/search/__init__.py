"""The search at a chunk boundary, and one run of a method.

In: an engine, a query, options. Out: a `Step` for each chunk, with everything that was measured. It
does not know messages, terminals or HTTP, nor which methods exist.

run.py             Run: reservation, clock, budget, counting, tasks; Method: the record of a method
trajectory.py      Trajectory: one text in chunks: reset, roll out, choose, write, read the state
branches.py        Branches: several whole texts after one query
steering.py        states to anchors, anchors to candidates and injections
maps.py            the maps of a model that turn anchors into injections
strength.py        measures how strong an injection must be
geometry.py        anchors, injections, measures: pure numpy
scoring.py         the score and its terms: pure numpy
chunkwise.py       chunk_method: the loop of a method with resets, and its record, from its flags
capacity.py        the room that a query leaves, options that fit it, what a trajectory needs
seeds.py           a seed for every draw
steps.py           the records: Step, Candidates, Counts, Seconds, Progress
diagnostics.py     the geometry of a run, from its steps
"""
