"""``docs/findings.md`` as a page of parts: each has its own command, and one is written anew without the others."""

INTRODUCTION = """# Findings

What the two papers behind sinklens claim, measured. Intervals are 95 % percentile bootstraps over documents, over heads,
layers or seeds where the line says so. A verdict is read off the interval and nothing else: *holds* where all of it lies on
the side that the claim names, *does not hold* where all of it lies on the other side, *undecided* where it contains the
boundary; a claim of "no less" or "no more" also holds then. One small model says little about others: run it on yours.
"""
PARTS = ("contributions", "patterns")


def with_part(page: str, name: str, body: str) -> str:
    """The page with one part written anew, parts in their order.

    Example:
        >>> page = with_part("", "patterns", "## Two")
        >>> with_part(page, "contributions", "## One").count("## ")
        2
        >>> with_part(page, "patterns", "## Other").count("## Two")
        0
    """
    bodies = {part: found for part in PARTS if (found := _body(page, part))} | {name: body.strip()}
    written = [f"<!-- {part} -->\n\n{bodies[part]}\n\n<!-- end of {part} -->\n" for part in PARTS if part in bodies]
    return "\n".join([INTRODUCTION, *written])


def _body(page: str, part: str) -> str:
    _, _, rest = page.partition(f"<!-- {part} -->")
    return rest.partition(f"<!-- end of {part} -->")[0].strip()
