"""The forms of a graph: cell text, JSON and Python source, read and printed, and its picture."""
