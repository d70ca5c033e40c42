"""The workflows of this installation. Add a module here to have its workflow loaded."""

from orchestration.workflows.trip import trip

__all__ = ["trip"]
