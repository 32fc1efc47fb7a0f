"""Launch files: a kernel, its inputs and what must come out, as data that a stranger may have written."""

from warploom.launch_file.file import DEFAULT_MAX_BYTES, LaunchFile, load
from warploom.launch_file.schema import launch_file_schema

__all__ = ["DEFAULT_MAX_BYTES", "LaunchFile", "launch_file_schema", "load"]
