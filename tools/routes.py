"""docs/routes.md: every route of the server, from the table of operations."""

from windlass.model.operations import answer_type
from windlass.model.shapes import SHAPES, Shape

HEAD = """# Routes

Generated from the code by `python -m tools.fresh`; do not edit. All paths are under `/v1/{tenant}`. `/openapi.json` has
the details.
*Scope* is what a token must allow. Brackets list the fields of the query, or of a body that is a map. `match` stands
for the fields of a match, `options` for the job options (`max_retry`, `priority`, …).

| verb | route | scope | body | answer | meaning |
|---|---|---|---|---|---|
"""


def routes() -> str:
    return HEAD + "\n".join(_row(shape) for shape in sorted(SHAPES, key=lambda shape: shape.path)) + "\n"


def _row(shape: Shape) -> str:
    fields = [field.name for field in shape.fields]
    listed = f" ({', '.join(fields)})" if fields else ""
    body = shape.body or ("a map" if shape.has_body else "")
    kind = answer_type(shape.kind)
    answer = "" if kind is type(None) else getattr(kind, "__name__", str(kind).replace("windlass.model.", ""))
    about = (shape.kind.__doc__ or "").partition("\n")[0]
    return f"| {shape.route.verb} | `{shape.path}`{listed} | {shape.route.scope} | {body} | {answer} | {about} |"
