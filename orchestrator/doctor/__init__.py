"""What is well and what is not: this machine, its TCP, a topology's lines, a running service."""
