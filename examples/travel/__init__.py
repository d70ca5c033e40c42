"""The travel example: five partner services, each a real HTTP process with its own books."""
