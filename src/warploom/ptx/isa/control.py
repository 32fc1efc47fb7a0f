"""Branches, calls, exits, and what only the compiler reads."""

from __future__ import annotations

from warploom.ptx.isa.table import form

form("bra", "bra{.uni?}", "label target")
form("brx", "brx.idx{.uni?}", "in index u32; label table")
form("call", "call{.uni?}", "arguments results; label function; arguments parameters")
form("call", "call{.uni?}", "label function; opt arguments parameters")
form("ret", "ret{.uni?}")
form("exit", "exit")
form("trap", "trap")
form("brkpt", "brkpt")
form("nanosleep", "nanosleep.u32", "in a u32")
form("pmevent", "pmevent{.mask?}", "immediate a")
