"""Figures as a Markdown table: a line per figure, a column per store and backlog."""


class Table:
    """Collects figures and prints them."""

    def __init__(self) -> None:
        self._figures: dict[str, dict[tuple[str, int], float]] = {}

    def put(self, store: str, backlog: int, what: str, figure: float) -> None:
        self._figures.setdefault(what, {})[store, backlog] = figure

    def best(self, store: str, backlog: int, what: str, figure: float) -> None:
        """Put a figure unless there is a higher one."""
        figures = self._figures.setdefault(what, {})
        figures[store, backlog] = max(figure, figures.get((store, backlog), figure))

    def get(self, store: str, backlog: int, what: str) -> float:
        return self._figures[what][store, backlog]

    def markdown(self) -> str:
        columns = sorted({column for figures in self._figures.values() for column in figures})
        lines = ["| | " + " | ".join(f"{store} {backlog:,}" for store, backlog in columns) + " |"]
        lines.append("|---|" + "---:|" * len(columns))
        for what, figures in self._figures.items():
            cells = (_cell(figures.get(column)) for column in columns)
            lines.append(f"| {what} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def _cell(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"
