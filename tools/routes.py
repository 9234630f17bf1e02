"""docs/routes.md: every route of the server, from the table of operations."""

from windlass.model.operations import answer_type
from windlass.model.shapes import SHAPES, Shape

HEAD = """# Routes

Made from the code by `python -m tools.fresh`; do not edit. All paths are under `/v1/{tenant}`; `/openapi.json` says
more.
A *scope* is what a token must allow. In brackets: what the query, or a body that is a map, may hold; `match` stands for
the fields of a match, `wishes` for what may be asked for a job (`max_retry`, `priority`, …).

| | route | scope | body | answer | |
|---|---|---|---|---|---|
"""


def routes() -> str:
    return HEAD + "\n".join(_row(shape) for shape in sorted(SHAPES, key=lambda shape: shape.path)) + "\n"


def _row(shape: Shape) -> str:
    fields = [field.name for field in shape.fields]
    said = f" ({', '.join(fields)})" if fields else ""
    body = shape.body or ("a map" if shape.has_body else "")
    kind = answer_type(shape.kind)
    answer = "" if kind is type(None) else getattr(kind, "__name__", str(kind).replace("windlass.model.", ""))
    about = (shape.kind.__doc__ or "").partition("\n")[0]
    return f"| {shape.route.verb} | `{shape.path}`{said} | {shape.route.scope} | {body} | {answer} | {about} |"
