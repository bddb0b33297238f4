"""Moodle's offline grading worksheet in other languages than English: its titles, and what it calls a participant.

From Moodle's own language packs (`recordid`, `hiddenuser`, `lastmodifiedgrade`... in `assign.php`, `moodle.php`,
`grades.php` and `assignfeedback_comments.php`, read in November 2026). A roster has the English titles inside, so that
everything finds them; what goes back to Moodle has its own. Not for what is in the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LANGUAGE = "(Moodle's language)"
"""A column of ours, next to those of the file: the key of `_TITLES`."""

_ENGLISH = (
    *("Identifier", "Full name", "Email address", "Username", "ID number", "First name", "Last name", "Grade"),
    *("Maximum Grade", "Last modified (submission)", "Last modified (grade)", "Feedback comments"),
)
_TITLES: Mapping[str, Sequence[str]] = {
    "de": ("ID", "Vollständiger Name", "E-Mail-Adresse", "Anmeldename", "ID-Nummer", "Vorname", "Nachname", "Bewertung",
           "Beste Bewertung", "Zuletzt geändert (Abgabe)", "Zuletzt geändert (Bewertung)", "Feedback als Kommentar"),
    "fr": ("Identifiant", "Nom complet", "Adresse de courriel", "Nom d'utilisateur", "Numéro d'identification",
           "Prénom", "Nom", "Note", "Note maximale", "Dernière modification (travail remis)",
           "Dernière modification (note)", "Feedback par commentaires"),
    "es": ("Identificador", "Nombre completo", "Dirección de correo", "Nombre de usuario", "Número de ID", "Nombre",
           "Apellido(s)", "Calificación", "Calif. máx.", "Última modificación (entrega)",
           "Última modificación (calificación)", "Comentarios de retroalimentación"),
    "it": ("Identificativo", "Nome", "Indirizzo email", "Username", "Codice identificativo", "Nome", "Cognome",
           "Valutazione", "Voto massimo", "Ultima modifica (consegna)", "Ultima modifica (valutazione)", "Commenti"),
    "ca": ("Identificador", "Nom complet", "Correu electrònic", "Nom d'usuari", "Número ID", "Nom", "Cognoms",
           "Qualificació", "Qualificació màx.", "Darrera modificació (tramesa)", "Darrera modificació (qualificació)",
           "Comentaris de la retroacció"),
}  # fmt: skip
PARTICIPANTS = ("Participant", "Teilnehmer/in", "Participante", "Partecipante")
"""What stands before a participant's number, in Catalan and French as in English."""
_NEEDED = ("Identifier", "Last modified (grade)")


def language(titles: Iterable[str]) -> str:
    """The language of a worksheet with these titles; empty where it is English, or no worksheet."""
    titles = set(titles)
    for name, words in _TITLES.items():
        own = dict(zip(_ENGLISH, words, strict=True))
        if all(own[title] in titles for title in _NEEDED):
            return name
    return ""


def in_english(titles: Sequence[str]) -> list[str]:
    """The titles of a worksheet in English; as they are where it is none in another language."""
    words = _TITLES.get(language(titles), ())
    english: dict[str, str] = {}
    for title, own in zip(_ENGLISH, words, strict=bool(words)):
        english.setdefault(own, title)
    return [english.get(title, title) for title in titles]


def as_moodle_wrote(titles: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """English titles of a roster as its file had them."""
    known = next((str(row[LANGUAGE]) for row in rows if row.get(LANGUAGE)), "")
    own = dict(zip(_ENGLISH, _TITLES.get(known, _ENGLISH), strict=True))
    return [own.get(title, title) for title in titles]
