"""The operating system: folders of the user, versions, processes with limits.

It does not know models, options or requests.

paths.py             the XDG folders
versions.py          versions of the installed parts, the processor
files.py             flags, locks, renames and marks of files, where systems differ
locks.py             locks between processes
json_checks.py       checks values read from JSON
python_source.py     the syntax tree of Python code, safe in threads
slots.py             places for work that few may do at a time
confined.py          chat templates, schemas, replies, Markdown: read in a process with limits
confined_worker.py   that process
job_object.py        its limits on Windows
generic_tools.jinja  tools for a chat template that knows none
sandbox/             untrusted programs with limits, without a network
"""
