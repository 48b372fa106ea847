"""Tests of this stack, in rooms by what they check; what lies beside the rooms concerns every folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
