"""The proof: the real scheduler, supervisor and envelope in a world that spares them nothing."""
