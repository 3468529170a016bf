"""Tags around the thinking of a reply, and what models write at its end."""

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
AFTER_THINK = "\n\n"
"""Text that models write between the thinking and the answer."""
CLOSING = f"\n{CLOSE_THINK}{AFTER_THINK}"
"""Text that ends an open thinking block and precedes the answer."""
