"""k answers, and the edit in each.

departures.py  where answers leave the code as it is: the likeliest first changes
candidates.py  k answers in one batch, each judged as soon as it is complete
combining.py   the edits of several in one, where each mends another test
natural.py     from what a model writes by itself to changed files
merging.py     … the place of a block of code in its file
imports.py     … the imports that an edit needs and lacks
"""
