"""The tokens of a PTX text, and a cursor from which the parser modules read and report errors."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from functools import cache

from warploom.diagnostics import Diag, Loc, WarploomError

LONGEST_TOKEN = 65536

# One match per token: skipped text, then a `//!wl` note, or the token, or the end of the text. A dotted opcode is one
# token, a directive is one per dot. An unclosed comment or string is matched to the end, so that lexing stays linear.
_PATTERN = r"""
        (?: [ \t\n\r\f\v]++ | //{comment}[^\n]*+ | /\*(?s:.*?)\*/ )*+
        (?: {note} (?P<token>
            [A-Za-z_$%][\w$]*+ (?:(?:\.|::)[\w$]++)*+
          | \.[A-Za-z_][\w$]*+ (?:::[\w$]++)*+
          | 0[xX]\w++ | \d++\.\d*+(?:[eE][+-]?\d++)? | \d++[eE][+-]?\d++ | \d\w*+
          | "(?:[^"\\\n]|\\.)*+"
          | << | >>
          | /\*(?s:.*+) | "[^\n]*+
          | (?s:.) | \Z ) )"""


_NOTE = "//!wl"


@cache
def _tokens(*, notes: bool) -> re.Pattern[str]:
    """The tokens of a text, with a group of their own for notes; faster in a text that has none."""
    comment, note = (r"(?!!wl(?!\S))", rf"{_NOTE}(?P<note>[^\n]*+) |") if notes else ("", "")
    return re.compile(_PATTERN.replace("{comment}", comment).replace("{note}", note), re.VERBOSE | re.ASCII)


_INLINE_ASM = re.compile(r"// (begin|end) inline asm[^\S\n]*$", re.MULTILINE)
_WORD = re.compile(r"(?:[A-Za-z][\w$]*|[_$%][\w$]+)", re.ASCII)


class Reader:
    """The tokens of one text, the index `at` of the next one, and the notes between them.

    `outside` collects names (with their tokens) that can only be resolved when the module is complete.
    """

    __slots__ = ("_asm", "_matches", "_newlines", "_words", "at", "file", "notes", "outside", "text", "tokens")

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.notes: deque[tuple[int, str]] = deque()
        self.outside: list[tuple[str, int]] = []
        self.at = 0
        self._words: frozenset[str] | None = None
        self._asm = [(match.start(), match[1]) for match in _INLINE_ASM.finditer(text) if self._begins(match.start())]
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        pattern = _tokens(notes=_NOTE in text)
        matches, group = list(pattern.finditer(text)), pattern.groups
        tokens: list[str] = [match[group] for match in matches]
        if None in tokens:
            kept = [match for match in matches if match[group] is not None]
            for match in matches:
                if match[group] is None:
                    before = bisect_right(kept, match.start(), key=re.Match.start)
                    self.notes.append((before, match["note"].strip()))
            matches, tokens = kept, [match[group] for match in kept]
        self.tokens, self._matches = tokens, matches
        # The parser looks one token ahead of the end.
        tokens.append("")
        if max(map(len, tokens)) > LONGEST_TOKEN:
            long = next(index for index, token in enumerate(tokens) if len(token) > LONGEST_TOKEN)
            raise self.fail(f"a token of {len(tokens[long])} characters; at most {LONGEST_TOKEN} are read", long)

    def start(self, index: int) -> int:
        """The place of a token in the text."""
        return self._matches[index].start("token") if index < len(self._matches) else len(self.text)

    def _begins(self, place: int) -> bool:
        """True if a line has nothing before a place."""
        before = self.text[self.text.rfind("\n", 0, place) + 1 : place]
        return not before or before.isspace()

    @property
    def words(self) -> frozenset[str]:
        """Every token of the text, from which a generated name must differ."""
        if self._words is None:
            self._words = frozenset(self.tokens)
        return self._words

    def line(self, index: int) -> int:
        """The line of a token, counted from 1."""
        return bisect_right(self._newlines, self.start(index)) + 1

    def in_inline_asm(self, index: int) -> bool:
        """True for a token between the comments with which LLVM marks inline assembly."""
        before = bisect_right(self._asm, (self.start(index), "")) if self._asm else 0
        return before > 0 and self._asm[before - 1][1] == "begin"

    def error(self, diag: Diag, index: int, **fields: object) -> WarploomError:
        """The catalogued error at a token, with its line of text."""
        line, start = self.line(index), self.start(index)
        begin = self._newlines[line - 2] + 1 if line > 1 else 0
        end = self._newlines[line - 1] if line <= len(self._newlines) else len(self.text)
        shown = self.text[begin : min(end, begin + 160)].strip()
        return diag.error(Loc(self.file, line, start - begin + 1), [shown] if shown else [], **fields)

    def fail(self, what: str, index: int | None = None) -> WarploomError:
        """The syntax error at a token; by default at the next one."""
        return self.error(Diag.SYNTAX, self.at if index is None else index, what=what)

    def shown(self, index: int | None = None) -> str:
        """A token as an error message quotes it."""
        token = self.tokens[self.at if index is None else index]
        if not token:
            return "the end of the text"
        if token.startswith("/*"):
            return "a comment that is never closed"
        if token[0] == '"' and (len(token) < 2 or token[-1] != '"'):
            return "a string that is not closed on its line"
        return f"`{token[:60]}`" if token.isprintable() else ascii(token[:60])

    def take(self) -> str:
        """Take the next token; the cursor never passes the end of the text."""
        token = self.tokens[self.at]
        if token:
            self.at += 1
        return token

    def accept(self, token: str) -> bool:
        """Take the next token if it is this one, and return whether it was."""
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str, after: str) -> None:
        """Take this token, or raise an error that names the token before it."""
        if not self.accept(token):
            raise self.fail(f"expected `{token}` after {after}, found {self.shown()}")

    def name(self, what: str) -> str:
        """Take an identifier."""
        token = self.tokens[self.at]
        if not _WORD.fullmatch(token):
            raise self.fail(f"expected {what}, found {self.shown()}")
        self.at += 1
        return token

    def string(self, what: str) -> str:
        """Take a quoted string and return its contents."""
        token = self.tokens[self.at]
        if len(token) < 2 or token[0] != '"' or token[-1] != '"':
            raise self.fail(f"expected {what} in quotes, found {self.shown()}")
        self.at += 1
        return re.sub(r'\\(["\\])', r"\1", token[1:-1])
