"""Analyzers: what they read of each layer, how one layer updates them, and what they return; all served by one pass."""
