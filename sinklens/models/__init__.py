"""Models as sinklens sees them: loading, tokens, labels, and the view of attention."""
