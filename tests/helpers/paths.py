"""Folders that tests read."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
TEMPLATES = TESTS / "templates"  # laid out as include/
