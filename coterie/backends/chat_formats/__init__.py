"""Chat formats: messages to text."""

from __future__ import annotations
