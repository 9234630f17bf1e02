"""A small drawing program, where Asymptote is not installed: a few commands to SVG.

`small_draw.py OUT FILE` draws what the file says into OUT.svg. Without arguments it is a shell that draws each line as
it is typed. The commands:

    circle X Y R [COLOR]     line X Y X Y [COLOR]     text X Y WORDS     import FILE
    write WORDS              warn WORDS               flood BYTES        sleep SECONDS      quit
"""

import sys
import time
from collections.abc import Iterable
from html import escape
from pathlib import Path

SIZE = 100


def main() -> int:
    if not sys.argv[1:]:
        return shell()
    out, source = sys.argv[1:]
    try:
        shapes = draw(Path(source).read_text().splitlines())
    except (ValueError, OSError) as fault:
        print(f"{source}: {fault}", file=sys.stderr)
        return 1
    if shapes:
        Path(f"{out}.svg").write_text(svg(shapes))
    return 0


def draw(lines: Iterable[str]) -> list[str]:  # noqa: C901 - one case for each command
    """The shapes of these commands; what they say is printed."""
    shapes: list[str] = []
    for line in lines:
        match line.split():
            case [] | ["#", *_]:
                continue
            case ["circle", x, y, r, *color]:
                shapes.append(f'<circle cx="{float(x)}" cy="{float(y)}" r="{float(r)}" {stroke(color)}/>')
            case ["line", x1, y1, x2, y2, *color]:
                ends = f'x1="{float(x1)}" y1="{float(y1)}" x2="{float(x2)}" y2="{float(y2)}"'
                shapes.append(f"<line {ends} {stroke(color)}/>")
            case ["text", x, y, *words]:
                shapes.append(f'<text x="{float(x)}" y="{float(y)}" font-size="8">{escape(" ".join(words))}</text>')
            case ["import", name]:
                shapes += draw(Path(Path(name).name).read_text().splitlines())
            case ["write", *words]:
                print(" ".join(words), flush=True)
            case ["warn", *words]:
                print(" ".join(words), file=sys.stderr, flush=True)
            case ["flood", size]:
                sys.stdout.write("x" * int(size))
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case _:
                raise ValueError(f"cannot draw {line[:60]!r}")
    return shapes


def stroke(color: list[str]) -> str:
    return f'fill="none" stroke="{escape(color[0]) if color else "black"}"'


def svg(shapes: list[str]) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}">{"".join(shapes)}</svg>\n'


def shell() -> int:
    print("small_draw: circle, line, text, write, quit", flush=True)
    shapes: list[str] = []
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        try:
            shapes += draw([line])
            print(f"> {len(shapes)} shapes", flush=True)
        except (ValueError, OSError) as fault:
            print(f"> {fault}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
