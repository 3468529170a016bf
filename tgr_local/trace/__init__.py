"""A run as a person or a file sees it: JSON lines, a table, a live view."""
