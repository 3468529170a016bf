"""Writes k answers, and reads the edit in each.

departures.py  finds the likeliest first changes of the code, with which answers begin
candidates.py  writes k answers in one batch, and judges each as soon as it is complete
branches.py    finds the likeliest changes of an answer that departed
combining.py   combines the edits of candidates that fix different tests
natural.py     reads changed files from an answer in the model's usual style
merging.py     … finds the place of a block of code in its file
imports.py     … adds imports that an edit needs and lacks
renaming.py    makes a rename that is all a task asks for, without a model
renaming_python.py … in Python, and in prose
renaming_foreign.py … names of other libraries in other languages
"""
