"""The checks of a graph before it runs: all mistakes in one go, each with its place and what would mend it."""
