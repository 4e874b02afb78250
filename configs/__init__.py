"""Data that ships with the package: topologies and the catalogue of chips and models."""
