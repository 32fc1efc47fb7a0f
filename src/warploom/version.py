"""The version of warploom, its only statement: packaging reads it here."""

__version__ = "0.2.0"
