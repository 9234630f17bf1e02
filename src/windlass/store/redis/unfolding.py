"""Calls of short functions in a script, replaced by what they say.

A server makes each function of a script anew on every call of the script, and what is made must be swept up again: a
twentieth of a lone job's way went into that. Written as functions, run as if they had been written out.

Short is `local function name(…) return expression end`, or a single statement instead, if that stands in one line. A
call stays what it is where writing it out would mean something else: an argument that is more than a name and would
be worked out twice, or a name that means something else there.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SHORT = re.compile(
    r"^local function (?P<name>\w+)\((?P<parameters>[\w, ]*)\)\s+(?P<gives>return )?(?P<body>[^\n;]+)\s+end\n",
    re.MULTILINE,
)
_SEVERAL = re.compile(r"\b(?:if|for|while|local|return|function)\b|\{")
_CALLED = re.compile(r"[a-z][\w.]*\(")
_PIECE = re.compile(r"'[^'\n]*'|[(\[{]|[)\]}]|,")
_TEXT = re.compile(r"'[^'\n]*'")
_DECLARED = re.compile(r"\blocal (?!function)([\w, ]+)|\bfunction\b *(\w*)\(([\w, ]*)\)|\bfor ([\w, ]+?) (?:=|in\b)")
_WORD = re.compile(r"'[^'\n]*'|(?<![\w.:])[A-Za-z_]\w*")
_ATOM = re.compile(r"[\w.]+|'[^']*'|\w+\[[\w']+\]")
_OPENS_EXPRESSION = re.compile(r"(?:[-=<>~+*/%^#,(\[{]|\.\.|\b(?:and|or|not|return|if|elseif|while|until|in))\s*\Z")
_FREE = {
    "and", "bit", "error", "false", "ipairs", "math", "next", "nil", "not", "or", "pairs", "pcall", "redis", "string",
    "struct", "table", "tonumber", "tostring", "true", "type", "unpack",
}  # fmt: skip
"""Words that mean the same everywhere."""

FAR = 100
"""Characters between a call and what stands before it, at the most."""


class Short(NamedTuple):
    """A function that says one thing."""

    name: str
    parameters: list[str]
    is_value: bool
    """Or a statement."""
    body: str

    @property
    def others(self) -> set[str]:
        """What it speaks of besides its parameters."""
        return set(_WORD.findall(_TEXT.sub("", self.body))) - {*self.parameters} - _FREE

    def said(self, arguments: Sequence[str]) -> str | None:
        """What a call with these arguments comes to; null = it must stay a call."""
        if len(arguments) > len(self.parameters):
            return None
        given = dict(zip(self.parameters, [*arguments, *["nil"] * len(self.parameters)], strict=False))
        words = _WORD.findall(self.body)
        if any(words.count(name) > 1 and not _ATOM.fullmatch(argument) for name, argument in given.items()):
            return None
        return _WORD.sub(lambda word: _bracketed(given[word[0]]) if word[0] in given else word[0], self.body)


def unfold(source: str) -> str:
    """The same script, which has no comments, with short functions written out where they are called."""
    lists = [names for found in _DECLARED.findall(source) for names in found]
    declared = Counter(name.strip() for names in lists for name in names.split(","))
    for name in [line["name"] for line in _SHORT.finditer(source)]:  # each can only call those before it
        short = _short(source, name)
        if short is not None and not any(declared[word] > 1 for word in {name, *short.others}):
            source = _without(_written_out(source, short), name)
    return source


def _short(source: str, name: str) -> Short | None:
    line = next((line for line in _SHORT.finditer(source) if line["name"] == name), None)
    if line is None or _SEVERAL.search(_TEXT.sub("", line["body"])):
        return None
    parameters = [parameter for parameter in line["parameters"].split(", ") if parameter]
    return Short(name, parameters, line["gives"] is not None, line["body"])


def _written_out(source: str, short: Short) -> str:
    pieces, done = list[str](), 0
    for start, end, arguments in _calls(source, short.name):
        said = short.said(arguments)
        is_statement = not _OPENS_EXPRESSION.search(source, max(0, start - FAR), start)
        if (
            said is None
            or (short.is_value and is_statement and not _is_call(said))
            or not (short.is_value or is_statement)
        ):
            continue
        pieces += [source[done:start], said if is_statement else f"({said})"]
        done = end
    return "".join([*pieces, source[done:]])


def _calls(source: str, name: str) -> Iterator[tuple[int, int, list[str]]]:
    """Where a function is called, and with what; not what stands within such a call."""
    done = 0
    for start in _places(source, name):
        opens = start + len(name)
        if start >= done and source.startswith("(", opens) and not source.endswith("function ", 0, start):
            arguments, done = _arguments(source, opens + 1)
            yield start, done, arguments


def _places(source: str, name: str) -> Iterator[int]:
    """Where a name stands by itself. Not by an expression: to compile one for each name takes longer than to look."""
    at = source.find(name)
    while at >= 0:
        before, after = source[at - 1 : at], source[at + len(name) : at + len(name) + 1]
        if not (before.isalnum() or after.isalnum() or before in tuple("_.:") or after == "_"):
            yield at
        at = source.find(name, at + 1)


def _arguments(source: str, start: int) -> tuple[list[str], int]:
    """What stands between commas up to the bracket that closes, and where that ends."""
    depth, at, found = 1, start, [start]
    for piece in _PIECE.finditer(source, start):
        at = piece.end()
        if piece[0] in "([{":
            depth += 1
        elif piece[0] in ")]}":
            depth -= 1
        if depth == 0:
            break
        if piece[0] == "," and depth == 1:
            found.append(at)
    ends = [*(begin - 1 for begin in found[1:]), at - 1]
    arguments = [source[begin:end].strip() for begin, end in zip(found, ends, strict=True)]
    return [argument for argument in arguments if argument], at


def _is_call(said: str) -> bool:
    """Whether this may stand for itself."""
    called = _CALLED.match(said)
    return called is not None and _arguments(said, called.end())[1] == len(said)


def _bracketed(argument: str) -> str:
    return argument if _ATOM.fullmatch(argument) else f"({argument})"


def _without(source: str, name: str) -> str:
    """The script without a function that nobody calls any more."""
    bare = _SHORT.sub(lambda line: "" if line["name"] == name else line[0], source)
    return bare if next(_places(_TEXT.sub("", bare), name), None) is None else source
