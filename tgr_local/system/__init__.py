"""The base of all other layers: errors, text that is safe to print, files, limited processes.

It does not know models, options or requests, and imports nothing else of the package.

errors.py            the exceptions; any error as one line of text
near_names.py        the known names that an unknown one was meant as
sanitize.py          text, one line, or JSON without control characters
progress.py          the progress line; a pause that another thread ends
paths.py             the XDG folders; a file written whole or not at all
cores.py             the cores that this process may use, within its CPU quota
versions.py          versions of the installed parts, the processor
file_hash.py         the sha256 of a file, computed once
files.py             files where systems differ; locks between processes; files with one writer
text_files.py        texts that a person names or pipes
json_checks.py       checks values read from JSON
json_values.py       records ↔ JSON values
answers.py           the final answer in a text, as votes and graders compare it
think_tags.py        the tags around the thinking
python_source.py     the syntax tree of Python code, safe in threads
cancel.py            Cancel: a flag that ends work from another thread
turnstile.py         a turnstile for work of which only so much may run at a time
confined.py          chat templates with tools, replies, Markdown: read in a process with limits
confined_worker.py   that process
frozen.py            these processes of a frozen program, which starts itself
job_object.py        its limits on Windows
generic_tools.jinja  tools for a chat template that knows none
sandbox/             untrusted programs with limits, without a network
"""
