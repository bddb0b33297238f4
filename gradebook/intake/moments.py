"""Moments as platforms, spreadsheets and people write them: ISO 8601, in words of many languages, in numbers.

Never guesses: of 1/2/2026 nobody knows the month. Not for which moment counts (`times.py`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo

_MONTHS = {
    name: number
    for names in (
        "january february march april may june july august september october november december",
        "jan feb mar apr may jun jul aug sep oct nov dec",
        "januar februar märz april mai juni juli august september oktober november dezember",
        "jänner feber märz april mai juni juli august september oktober november dezember",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "gener febrer març abril maig juny juliol agost setembre octubre novembre desembre",
        "xaneiro febreiro marzo abril maio xuño xullo agosto setembro outubro novembro decembro",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "januari februari mars april maj juni juli augusti september oktober november december",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "jan fev mar abr mai jun jul ago set out nov dez",
        "ianuarie februarie martie aprilie mai iunie iulie august septembrie octombrie noiembrie decembrie",
        "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia",
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
        "січня лютого березня квітня травня червня липня серпня вересня жовтня листопада грудня",
        "ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık",  # noqa: RUF001
        "ιανουαρίου φεβρουαρίου μαρτίου απριλίου μαΐου ιουνίου ιουλίου αυγούστου σεπτεμβρίου οκτωβρίου νοεμβρίου "
        "δεκεμβρίου",
        "يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر أكتوبر نوفمبر ديسمبر",
        "urtarrilaren otsailaren martxoaren apirilaren maiatzaren ekainaren uztailaren abuztuaren irailaren urriaren "
        "azaroaren abenduaren",
    )
    for number, name in enumerate(names.split(), start=1)
}
_BEFORE_NOON = ("am", "a.m.", "a.m", "πμ", "π.μ.", "오전", "上午", "午前", "ص", "öö", "aм")
_AFTER_NOON = ("pm", "p.m.", "p.m", "μμ", "μ.μ.", "오후", "下午", "午後", "م", "ös")
_CLOCK = re.compile(r"(?<![\d:.-])(\d{1,2})[:.h](\d\d)(?::(\d\d)(?:[.,]\d+)?)?(?![\d:]|\.\d)")
_OFFSET = re.compile(r"(?:(?:UTC|GMT) ?)?([+-])(\d\d):?(\d\d)$|\b(?:UTC|GMT) ?([+-])(\d{1,2})$|\b(?:UTC|GMT|Z)$")
_NAMED_ZONE = re.compile(r" (?!(?:GMT|SAT|OCT|SEPT)\b)([A-Z]{1,4}T|MSK)\b")
"""A short name, which several zones share: it must be that of the course's zone. Not days and months in capitals."""
_LIKE_ZONE = re.compile(r"(?:^|[\s(])(?:UTC|GMT|[+-]\d{1,2}(?!\d)|[a-z]+/[a-z]|[a-z]+ time\b)", re.IGNORECASE)
"""What names another zone in words or by hours, behind the time of day."""
_HALF = re.compile(r"\b([ap])\. m\.?(?!\w)", re.IGNORECASE)
_BEHIND_CLOCK = re.compile(r"[ (]?([^\W\d_][^\W\d_.]*)")
_NO_HALVES = ("uhr", "h", "hs", "hrs", "heures", "horas", "ore", "on", "le", "el", "de", "e")
"""Words behind a time of day that do not say which half of the day it is."""
_NUMBERS = (
    re.compile(r"(?P<year>\d{4})[-/.年년] ?(?P<month>\d{1,2})[-/.月월] ?(?P<day>\d{1,2})[日일.]?"),
    re.compile(r"(?P<day>\d{1,2})\. ?(?P<month>\d{1,2})\. ?(?P<year>\d{4})"),
)
_SLASHES = re.compile(r"(\d{1,2})[/-](\d{1,2})[/-](\d{4})")
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)(?:[.,]\d+)? ?(Z|UTC|[+-]\d\d(?::?\d\d)?)?( ?[+-]\d{4})?",
    re.IGNORECASE,
)
_OFFSET_IN_WORDS = re.compile(r"(?<=GMT[+-]\d{4}) \([^()]*\)$")
"""What JavaScript writes behind an offset: `GMT+0200 (Central European Summer Time)`."""
_SECONDS = re.compile(r"\d{10}(?:\.\d+|\d{3})?")
"""Since 1970, as Unix counts them, or milliseconds, as JavaScript does."""
_WORD = re.compile(r"[^\W\d_]+")
_DAY = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}([./-])\d{1,2}\1\d{4}")


_TITLE_IN_UTC = re.compile(r"(?:[\s_-]+|(?=[(\[]))[(\[]?(?:UTC|GMT)[)\]]?\s*$", re.IGNORECASE)


class MomentError(ValueError):
    """A cell is no moment; the message is one line that says what to do."""


def without_zone(title: str, zone: tzinfo | None) -> tuple[str, tzinfo | None]:
    """A column's title without the zone that it names, as in `Submitted At (UTC)`, and that zone, else `zone`."""
    plain = _TITLE_IN_UTC.sub("", title)
    return plain, UTC if plain != title else zone


def parse(text: str, zone: tzinfo | None) -> datetime | None:
    """A moment; None where it is none that can be read for certain.

    Args:
        text: the cell of a table, or a part of a name.
        zone: of a moment that says none; without it such a moment cannot be read.
    """
    text = unicodedata.normalize("NFKC", text)  # keyboards of East Asia write digits in full width
    text = _HALF.sub(r"\1m", " ".join(text.split()))  # Spanish spreadsheets write `p. m.`
    text = _OFFSET_IN_WORDS.sub("", text)
    if match := _ISO.fullmatch(text):
        offset = (match[3] or match[4] or "").strip().upper().replace("UTC", "Z")
        try:
            return _placed(datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}"), zone)
        except ValueError:
            return None
    if _SECONDS.fullmatch(text):
        return datetime.fromtimestamp(int(text[:10]), UTC)
    named = _NAMED_ZONE.search(text)
    moments = set(_readings(text[: named.start()] + text[named.end() :] if named else text))
    moment = _placed(moments.pop(), zone) if len(moments) == 1 else None
    return None if moment and named and moment.tzname() != named[1] else moment


def read(cell: str, zone: tzinfo | None, place: str) -> datetime:
    """The moment in a cell of a table.

    Args:
        cell: not empty.
        zone: as for `parse`.
        place: the file, line and column, as the message names them.

    Raises:
        MomentError: it is none that can be read for certain.
    """
    if (moment := parse(cell, zone)) is not None:
        return moment
    place = f"{place} {cell!r}"
    elsewhere = parse(cell, UTC)
    if elsewhere is not None and zone is not None and is_skipped(elsewhere.replace(tzinfo=zone)):
        raise MomentError(
            f"{place} is no time in {zone}, whose clocks went forward: the table has another time zone. Write its "
            "times with their offsets, or correct timezone in class.toml"
        )
    if elsewhere is not None:
        raise MomentError(f"{place} has no time zone: set timezone in class.toml")
    why = "cannot be read as a day and a time of day in the course's time zone"
    if is_ambiguous(cell):
        why = "may be two days, because it does not say which number is the month"
    elif _DAY.fullmatch(cell.strip()):
        why = "is a day without a time of day"
    raise MomentError(f"{place} {why}; write it like 2026-03-01T23:59+01:00")


def is_ambiguous(text: str) -> bool:
    """Whether it may be two moments, because nobody knows which number is the month."""
    return len(set(_readings(" ".join(text.split())))) > 1


def _placed(moment: datetime, zone: tzinfo | None) -> datetime | None:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
        return None if zone is None or is_skipped(moment) else moment
    return moment


def is_skipped(moment: datetime) -> bool:
    """Whether the clocks of its zone never show this time, because they go forward over it."""
    return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) != moment.replace(tzinfo=None)


def _readings(text: str) -> Iterator[datetime]:
    """Every moment that this may be, in words or numbers; with a zone where it names an offset."""
    zone = None
    if match := _OFFSET.search(text):
        text = text[: match.start()].rstrip()
        offset = timedelta(hours=int(match[2] or match[5] or 0), minutes=int(match[3] or 0))
        zone = timezone(-offset if "-" in (match[1], match[4]) else offset)
    dates, rest = _dates(text)
    clocks = list(_CLOCK.finditer(rest))
    if len(clocks) != 1:
        return
    hour, minute, second = (int(part or 0) for part in clocks[0].groups())
    behind = rest[clocks[0].end() :]
    if _LIKE_ZONE.search(behind) or (hour <= 12 and not _says_no_half(behind)):
        return
    others = re.sub("[,()]", " ", f"{rest[: clocks[0].start()]} {behind}".casefold()).split()
    half = [word in _AFTER_NOON for word in others if word in _BEFORE_NOON or word in _AFTER_NOON]
    if half and hour <= 12:
        hour = hour % 12 + (12 if half[0] else 0)
    for year, month, day in dates:
        try:
            yield datetime(year, month, day, hour, minute, second, tzinfo=zone)
        except ValueError:
            continue


def _says_no_half(behind: str) -> bool:
    """Whether the word behind a time of day, if there is one, is known: else it may say that it is after noon."""
    match = _BEHIND_CLOCK.match(behind)
    word = match[1].casefold() if match else ""
    known = (*_BEFORE_NOON, *_AFTER_NOON, *_NO_HALVES, *_MONTHS)
    return not word or word in known or any(f"{word}{rest}" in known for rest in (".", ".m", ".m."))


def _dates(text: str) -> tuple[list[tuple[int, int, int]], str]:
    """The days that it may name, as year, month and day; and the text without them."""
    for pattern in _NUMBERS:
        if match := pattern.search(text):
            day = (int(match["year"]), int(match["month"]), int(match["day"]))
            return [day], text[: match.start()] + " " + text[match.end() :]
    if match := _SLASHES.search(text):
        first, second, year = (int(part) for part in match.groups())
        rest = text[: match.start()] + " " + text[match.end() :]
        return [(year, *pair) for pair in dict.fromkeys([(first, second), (second, first)])], rest
    return _dates_in_words(text)


def _dates_in_words(text: str) -> tuple[list[tuple[int, int, int]], str]:
    """The day where a word names its month: the other numbers are the year, of four digits, and the day."""
    months = {_MONTHS[word] for word in _WORD.findall(text.casefold()) if word in _MONTHS}
    without_clock = _CLOCK.sub(" ", text)
    numbers = re.findall(r"\d+", without_clock)
    years = [number for number in numbers if len(number) == 4]
    days = [number for number in numbers if len(number) <= 2]
    if len(months) != 1 or len(years) != 1 or len(days) != 1 or len(numbers) != 2:
        return [], text
    return [(int(years[0]), months.pop(), int(days[0]))], text
