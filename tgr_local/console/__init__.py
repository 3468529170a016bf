"""What is printed on a terminal: safe text, Markdown, rows that are redrawn, a progress line.

In: texts from anywhere, and what a slow operation is doing. Out: text without control characters,
what a terminal shows for it, and lines on stderr. It knows nothing of models, replies or options,
and imports nothing of the package.

sanitize.py   text, one line, or JSON without control characters
progress.py   the progress line; a pause that another thread ends
wrap.py       long lines broken between words, or cut
markdown.py   Markdown as rich's renderables
growing.py    text that grows: the pieces that are finished, and the rest
region.py     rows at the bottom of the screen, below text that is printed once
"""
