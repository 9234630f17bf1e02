"""Calls of short functions in a script, replaced by what they say.

A server makes each function of a script anew on every call of the script, and what is made must be swept up again: a
twentieth of a lone job's way went into that. Written as functions, run as if they had been written out.

Short is `local function name(…) return expression end`, or a single statement instead, if that stands in one line. A
call stays what it is where writing it out would mean something else: an argument that is more than a name and would
be worked out twice, one that does something and might be worked out later or not at all, or a name that means something
else there.
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
_NAMES = r"\w+(?:,\s*\w+)*"
_DECLARED = re.compile(
    rf"\blocal (?!function)({_NAMES})|\bfunction\b *(\w*)\(((?:{_NAMES})?)\)|\bfor ({_NAMES}) (?:=|in\b)"
)
_ACTS = re.compile(r"(?<![\w.])(?!(?:bit|math|string|struct|table)\.|tonumber\(|tostring\(|unpack\()[a-z_][\w.]*\(")
_ASSIGNS = re.compile(r"[\w.\[\]]+ = (?!=)")
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
    whole: str
    """As it stands in the script."""

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
        if any(_ACTS.search(_TEXT.sub("", argument)) for argument in arguments):
            return None
        return _WORD.sub(lambda word: _bracketed(given[word[0]]) if word[0] in given else word[0], self.body)


def unfold(source: str) -> str:
    """The same script, which has no comments, with short functions written out where they are called."""
    lists = [names for found in _DECLARED.findall(source) for names in found]
    declared = Counter(name.strip() for names in lists for name in names.split(","))
    names = [line["name"] for line in _SHORT.finditer(source)]
    for name in names + names:  # each can only call those before it, but those after it may stand in its arguments
        short = _short(source, name)
        if short is not None and not any(declared[word] > 1 for word in {name, *short.others}):
            source = _without(_written_out(source, short), short)
    return source


def _short(source: str, name: str) -> Short | None:
    line = next((line for line in _SHORT.finditer(source) if line["name"] == name), None)
    if line is None or _SEVERAL.search(_TEXT.sub("", line["body"])) or len(_arguments(line["body"] + ")", 0)[0]) != 1:
        return None
    if line["gives"] is None and not (_is_call(line["body"]) or _ASSIGNS.match(line["body"])):
        return None
    parameters = [parameter for parameter in line["parameters"].split(", ") if parameter]
    return Short(name, parameters, line["gives"] is not None, line["body"], line[0])


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
        before, after = source[max(0, at - 2) : at], source[at + len(name) : at + len(name) + 1]
        is_part = before[-1:].isalnum() or after.isalnum() or before.endswith(("_", ":")) or after == "_"
        is_field = before.endswith(".") and before != ".."
        if not is_part and not is_field:
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


def _without(source: str, short: Short) -> str:
    """The script without a function that nobody calls any more."""
    bare = source.replace(short.whole, "", 1)
    named = any(True for _ in _places(bare, short.name)) and any(True for _ in _places(_TEXT.sub("", bare), short.name))
    return source if named else bare
