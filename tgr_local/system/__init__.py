"""The operating system: folders of the user, free memory, versions, processes with limits.

It does not know models, options or requests.

paths.py             the XDG folders
memory.py            available memory
versions.py          versions of the installed parts
processor.py         the processor's name
confined.py          chat templates and JSON schemas, evaluated in a process with limits
confined_worker.py   that process
"""
