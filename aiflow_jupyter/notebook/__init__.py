"""The notebook: magics, answers and live pictures under a cell."""
