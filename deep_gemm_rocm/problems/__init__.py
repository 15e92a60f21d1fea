"""Kinds and sizes of problems, and the checks of callers' arguments."""
