"""Claims of the papers, measured: every figure of ``docs/findings.md`` comes from here."""
