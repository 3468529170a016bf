"""What may be printed on a terminal, and a progress line on stderr.

In: texts from anywhere, and what a slow operation is doing. Out: text without control characters,
and lines on stderr. It knows nothing of models, replies or options, and imports nothing of the
package.

sanitize.py   text, one line, or JSON without control characters
progress.py   the progress line
"""
