"""Runnable examples. Nothing in the product imports from here."""
