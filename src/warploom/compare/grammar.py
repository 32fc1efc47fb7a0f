"""The grammar of comparisons, parsed by hand so that nothing in a launch file is ever executed as Python.

comparison = sum "==" sum
relation   = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
sum        = product {("+" | "-") product}
product    = unary {("*" | "/" | "//" | "%" | "@") unary}
unary      = "-" unary | postfix
postfix    = atom {".T" | "[" item {"," item} "]"}
item       = [integer] ":" [integer] [":" [integer]] | integer | "None"
atom       = number | buffer | function "(" [argument {"," argument}] ")" | "initial" "(" buffer ")" | "(" relation ")"
argument   = [name "="] (relation | text)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from warploom.diagnostics import Diag, WarploomError

LONGEST_TEXT = 1000
MOST_TOKENS = 256
DEEPEST_NESTING = 32
LARGEST_INTEGER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted word; only a function can take one."""

    value: str


@dataclass(frozen=True, slots=True)
class Name:
    """A buffer, as the kernel left it or, if `initial`, as it was before."""

    name: str
    initial: bool = False
    column: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of one axis; Python's own is not hashable before 3.12, and nodes are used as dictionary keys."""

    start: int | None
    stop: int | None
    step: int | None


@dataclass(frozen=True, slots=True)
class Index:
    """Basic indexing; None adds an axis."""

    operand: Node
    items: tuple[int | Slice | None, ...]
    column: int = field(default=0, compare=False)

    @property
    def key(self) -> tuple[int | slice | None, ...]:
        """The items as NumPy takes them."""
        return tuple(slice(i.start, i.stop, i.step) if isinstance(i, Slice) else i for i in self.items)


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator applied to its arguments."""

    function: str
    arguments: tuple[Node, ...]
    keywords: tuple[tuple[str, Node], ...] = ()
    column: int = field(default=0, compare=False)


Node = Number | Text | Name | Index | Call

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d{1,20}\.\d{0,20}|\.\d{1,20}|\d{1,20})(?:[eE][+-]?\d{1,3})?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<text>"[^"\\]*"|'[^'\\]*')
      | (?P<mark>==|!=|<=|>=|//|\.T\b|[-+*/%@()\[\],:<>=])
    )""",
    re.VERBOSE,
)
_RELATIONS = ("==", "!=", "<=", ">=", "<", ">")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


def parse(text: str) -> tuple[Node, Node]:
    """The two sides of a comparison."""
    parser = _Parser(text)
    left = parser.sum()
    parser.expect("==")
    right = parser.sum()
    parser.expect_end()
    return left, right


def bad(text: str, what: str, column: int = 0) -> WarploomError:
    """The error for a comparison, with the column if it is known."""
    return Diag.BAD_EXPRESSION.error(text=text, what=f"{what} (column {column})" if column else what)


def _tokens(text: str) -> list[_Token]:
    if len(text) > LONGEST_TEXT:
        raise bad(text[:40] + "…", f"it has {len(text)} characters, at most {LONGEST_TEXT} are allowed")
    tokens, at = [], 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise bad(text, f"{text[at]!r} is not allowed here", at + 1)
        kind = found.lastgroup or ""
        tokens.append(_Token(kind, found.group(kind), found.start(kind) + 1))
        at = found.end()
    if len(tokens) > MOST_TOKENS:
        raise bad(text, f"it has {len(tokens)} tokens, at most {MOST_TOKENS} are allowed")
    return [*tokens, _Token("end", "the end", len(text) + 1)]


class _Parser:
    """One pass from left to right; each method reads one rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def accept(self, *marks: str) -> str:
        """Take the next token if it is one of the marks, and return it."""
        if self.token.kind != "mark" or self.token.text not in marks:
            return ""
        self.at += 1
        return self.tokens[self.at - 1].text

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise self.surprise(f"`{mark}`")

    def expect_end(self) -> None:
        if self.token.kind != "end":
            raise self.surprise("the end")

    def surprise(self, wanted: str) -> WarploomError:
        found = self.token.text if self.token.kind == "end" else f"`{self.token.text}`"
        return bad(self.text, f"{found} where {wanted} was expected", self.token.column)

    def relation(self) -> Node:
        left, column = self.sum(), self.token.column
        symbol = self.accept(*_RELATIONS)
        return Call(symbol, (left, self.sum()), column=column) if symbol else left

    def sum(self) -> Node:
        left, column = self.product(), self.token.column
        while symbol := self.accept("+", "-"):
            left, column = Call(symbol, (left, self.product()), column=column), self.token.column
        return left

    def product(self) -> Node:
        left, column = self.unary(), self.token.column
        while symbol := self.accept("*", "/", "//", "%", "@"):
            left, column = Call(symbol, (left, self.unary()), column=column), self.token.column
        return left

    def unary(self) -> Node:
        """Every nested expression is parsed here, so its depth is limited here."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise bad(self.text, f"it is nested deeper than {DEEPEST_NESTING} levels", self.token.column)
        column = self.token.column
        node = Call("negative", (self.unary(),), column=column) if self.accept("-") else self.postfix()
        self.depth -= 1
        return node

    def postfix(self) -> Node:
        node, column = self.atom(), self.token.column
        while mark := self.accept(".T", "["):
            if mark == ".T":
                node = Call("transpose", (node,), column=column)
            else:
                items = [self.item()]
                while self.accept(","):
                    items.append(self.item())
                self.expect("]")
                node = Index(node, tuple(items), column)
            column = self.token.column
        return node

    def item(self) -> int | Slice | None:
        if self.token.kind == "name" and self.token.text == "None":
            self.at += 1
            return None
        start = self.integer()
        if not self.accept(":"):
            if start is None:
                raise self.surprise("an integer, a slice or None")
            return start
        stop = self.integer()
        return Slice(start, stop, self.integer() if self.accept(":") else None)

    def integer(self) -> int | None:
        """The integer at this position, if there is one; a sign alone is an error."""
        start = self.at
        sign = -1 if self.accept("-") else 1
        if self.token.kind == "number" and self.token.text.isdigit():
            self.at += 1
            return sign * int(self.tokens[self.at - 1].text)
        if self.at != start:
            raise self.surprise("an integer")
        return None

    def atom(self) -> Node:
        token = self.token
        if token.kind == "number":
            self.at += 1
            if not token.text.isdigit():
                return Number(float(token.text))
            if int(token.text) > LARGEST_INTEGER:
                raise bad(self.text, f"{token.text} does not fit 64 bits", token.column)
            return Number(int(token.text))
        if token.kind == "name":
            self.at += 1
            return self.call(token) if self.accept("(") else Name(token.text, column=token.column)
        if self.accept("("):
            node = self.relation()
            self.expect(")")
            return node
        raise self.surprise("a number, a buffer, a function or `(`")

    def call(self, name: _Token) -> Node:
        if name.text == "initial":
            buffer = self.token
            if buffer.kind != "name":
                raise self.surprise("a buffer")
            self.at += 1
            self.expect(")")
            return Name(buffer.text, initial=True, column=buffer.column)
        arguments: list[Node] = []
        keywords: list[tuple[str, Node]] = []
        while not self.accept(")"):
            if arguments or keywords:
                self.expect(",")
            if self.token.kind == "name" and self.tokens[self.at + 1].text == "=":
                keyword = self.token.text
                if keyword in dict(keywords):
                    raise bad(self.text, f"`{keyword}` is given twice", self.token.column)
                self.at += 2
                keywords.append((keyword, self.argument()))
            elif keywords:
                raise self.surprise("a named argument")
            else:
                arguments.append(self.argument())
        return Call(name.text, tuple(arguments), tuple(keywords), name.column)

    def argument(self) -> Node:
        if self.token.kind == "text":
            self.at += 1
            return Text(self.tokens[self.at - 1].text[1:-1])
        return self.relation()
