"""The former name of `fields_of_json`."""

from warploom.heuristics.sm90.device_data import fields_of_json as hashable

__all__ = ["hashable"]
