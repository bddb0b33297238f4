"""Where students get help, as a section of Markdown for hand-outs. Not for reports (`gradebox/report/`)."""

from __future__ import annotations

from gradebook.export.markdown import escaped
from gradebox.course.contact import Contact, is_address

HEADING = "## Getting help"


def markdown(contact: Contact) -> str:
    """The section; empty if the course names nobody."""
    rows = [f"- {label[0].upper()}{label[1:]}: {_value(label, text)}" for label, text in contact.entries()]
    return "\n".join([HEADING, "", *rows, ""]) if rows else ""


def _value(label: str, text: str) -> str:
    return f"<{text}>" if label == "e-mail" or is_address(text) else escaped(text)
