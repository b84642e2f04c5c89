"""The data plane: an end-to-end encrypted stream through a relay that is blind and keeps no frames."""
