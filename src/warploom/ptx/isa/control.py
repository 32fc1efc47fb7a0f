"""Branches, calls, exits, and compiler hints."""

from __future__ import annotations

from warploom.ptx.isa.table import form

form("bra", "bra{.uni?}", "label target", steers=True)
form("brx", "brx.idx{.uni?}", "in index u32; label table", steers=True)
form("call", "call{.uni?}", "arguments results; label function; arguments parameters", steers=True)
form("call", "call{.uni?}", "label function; opt arguments parameters", steers=True)
form("call.pointer", "call{.uni?}", "in pointer b64")
form("ret", "ret{.uni?}", steers=True)
form("exit", "exit", steers=True)
form("trap", "trap", steers=True)
form("brkpt", "brkpt", steers=True)
form("nanosleep", "nanosleep.u32", "in a u32")
form("pmevent", "pmevent{.mask?}", "immediate a")
