"""A text that brings a job with each of its lines: which lines count, and what they bring. Knows nothing of jobs.

Thousands come at a time, so there is no step of Python for each of them where nothing has to be left out.
"""

from itertools import filterfalse

from windlass.model.errors import Invalid, TooLarge
from windlass.model.operations import MOST_LINES


def payloads_in(text: str) -> list[bytes]:
    """What each line brings; blank ones and those that begin with `#` bring nothing."""
    lines = _encoded(text).split(b"\n", MOST_LINES + 1)
    if len(lines) > MOST_LINES + 1:
        raise TooLarge(f"a text may have {MOST_LINES} lines: send less at once", at="text")
    if "#" in text:
        lines = [line for line in lines if not line.startswith(b"#")]
    if "\r" in text:
        lines = [line.removesuffix(b"\r") for line in lines]
    return list(filterfalse(bytes.isspace, filter(None, lines)))


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise Invalid(f"cannot be sent: {fault}", at="text") from None
