"""Which provider answers."""
