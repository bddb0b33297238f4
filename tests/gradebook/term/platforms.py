"""What platforms make of the files that are uploaded to them, by their own importers' rules. Knows no code of ours.

Canvas: `lib/gradebook_importer.rb` (columns, rows that are no students, ids before names, empty cells, `EX`). Moodle:
`mod/assign/feedback/offline/importgradeslib.php` and `locallib.php` (which columns there must be, whom a row is of,
which grades are skipped and why).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ASSIGNMENT = re.compile(r".+ \((\d+)\)")


@dataclass
class CanvasGradebook:
    """A course's gradebook in Canvas."""

    people: Mapping[str, Mapping[str, str]]
    """By ID: SIS User ID, SIS Login ID, Student, Section."""
    assignments: Mapping[str, str]
    """By number: title."""
    grades: dict[tuple[str, str], str] = field(default_factory=dict)
    """By ID and the assignment's number."""
    ignored: list[str] = field(default_factory=list)

    def exported(self) -> str:
        """Grades, Export: what an instructor downloads."""
        text = io.StringIO()
        writer = csv.writer(text)
        titles = [f"{title} ({number})" for number, title in self.assignments.items()]
        writer.writerow(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *titles, "Current Score"])
        writer.writerow(["    Points Possible", "", "", "", "", *["20.00" for _ in titles], "(read only)"])
        for number, who in sorted(self.people.items(), key=lambda pair: pair[1]["Student"]):
            cells = [self.grades.get((number, assignment), "") for assignment in self.assignments]
            names = [who["SIS User ID"], who["SIS Login ID"], who["Section"]]
            writer.writerow([who["Student"], number, *names, *cells, ""])
        return "\ufeff" + text.getvalue()

    def upload(self, text: str) -> None:
        """Grades, Import."""
        header, *rows = csv.reader(io.StringIO(text))
        if header[:1] != ["Student"] or header[1:4] != ["ID", "SIS User ID", "SIS Login ID"] or "Section" not in header:
            raise AssertionError(f"Canvas says: invalid header row {header}")
        first = header.index("Section") + 1
        columns = {place: name for place, name in enumerate(header) if place >= first}
        numbers = {place: self._assignment(name) for place, name in columns.items()}
        for row in rows:
            if re.search(r"points possible", row[0], re.IGNORECASE):
                continue
            student = self._student(dict(zip(header, row, strict=True)))
            if student is None:
                self.ignored.append(row[0])
                continue
            for place, number in numbers.items():
                self.grades[student, number] = row[place]

    def _assignment(self, name: str) -> str:
        if (match := _ASSIGNMENT.fullmatch(name)) and match[1] in self.assignments:
            return match[1]
        return next(number for number, title in self.assignments.items() if title == name)

    def _student(self, row: Mapping[str, str]) -> str | None:
        if row["ID"] in self.people:
            return row["ID"]
        for column in ("SIS User ID", "SIS Login ID", "Student"):
            numbers = [number for number, who in self.people.items() if row[column] and who[column] == row[column]]
            if len(numbers) == 1:
                return numbers[0]
        return None


@dataclass
class MoodleAssignment:
    """An assignment in Moodle with offline grading worksheets and feedback comments."""

    maximum: float
    people: Mapping[str, Mapping[str, str]]
    """By the number of the participant in this assignment: Full name, Email address."""
    grades: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Grade and comment."""
    modified: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def worksheet(self) -> str:
        """Download grading worksheet."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(
            ["Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade", "Grade can be changed",
             "Last modified (submission)", "Last modified (grade)", "Feedback comments"]
        )  # fmt: skip
        for number, who in self.people.items():
            grade = f"{self.grades[number][0]:.2f}" if number in self.grades else ""
            comment = self.grades[number][1] if number in self.grades else ""
            writer.writerow(
                [f"Participant {number}", who["Full name"], who["Email address"], "Submitted for grading", grade,
                 f"{self.maximum:.2f}", "Yes", "Sunday, 1 March 2026, 9:00 PM", self.modified.get(number, "-"), comment]
            )  # fmt: skip
        return text.getvalue()

    def upload(self, text: str) -> None:
        """Upload grading worksheet."""
        rows = list(csv.DictReader(io.StringIO(text)))
        for column in ("Identifier", "Grade", "Last modified (grade)"):
            if column not in rows[0]:
                raise AssertionError(f"Moodle says: invalid grade import, no column {column}")
        for row in rows:
            number = row["Identifier"].removeprefix("Participant ").strip()
            if number not in self.people or not row["Grade"]:
                continue
            if row["Last modified (grade)"] != self.modified.get(number, "-"):
                self.skipped.append(f"{number}: modified in Moodle")
            elif not 0 <= float(row["Grade"]) <= self.maximum:
                self.skipped.append(f"{number}: grade out of range")
            else:
                self.grades[number] = float(row["Grade"]), row["Feedback comments"]
                self.modified[number] = "Monday, 2 March 2026, 8:00 AM"


def rows(text: str) -> list[dict[str, Any]]:
    """A CSV file as a spreadsheet shows it."""
    return list(csv.DictReader(io.StringIO(text)))
