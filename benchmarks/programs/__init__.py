"""What runs in the processes of a contestant: its workflow, its worker, its client."""
