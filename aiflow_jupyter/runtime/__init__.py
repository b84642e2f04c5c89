"""What runs a graph: guardians, the scheduler they share, the run, and its figures."""
