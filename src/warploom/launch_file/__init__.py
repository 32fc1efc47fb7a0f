"""Launch files: a kernel, its inputs and its expected results, as data from an untrusted source."""

from warploom.launch_file.file import DEFAULT_MAX_BYTES, LaunchFile, load
from warploom.launch_file.schema import launch_file_schema

__all__ = ["DEFAULT_MAX_BYTES", "LaunchFile", "launch_file_schema", "load"]
