"""Roles that follow the measured world: when to plan anew, and whose roles change. Pure."""
