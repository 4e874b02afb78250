"""Topology: which sites, pools and links there are, read from YAML and checked."""
