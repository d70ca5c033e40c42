"""One module for each revision, oldest first by its number; forward only."""
