"""Providers of drafts behind one port; only this package imports a model client."""
