"""What reaches a terminal: text without control characters, and a progress line on stderr."""
