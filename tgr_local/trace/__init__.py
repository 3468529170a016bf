"""What happened in a run, for files and for people.

In: replies and their events. Out: trace files (JSON lines), tables and summaries as lines of text,
and replies shown while they grow. It reads events only: nothing here runs or changes a method, and
it knows neither HTTP nor the command line.

record.py        the records of a run; writing and reading trace files
render.py        records and replies as lines of text: tables, summaries, score bars
live.py          a reply on stdout while it grows
pace.py          how far a reply is, and how fast; the progress line of unseen replies
json_values.py   dataclasses and arrays ↔ JSON values
"""
