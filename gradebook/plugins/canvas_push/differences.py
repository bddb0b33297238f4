"""What sending a class to Canvas would change, student by student. Decides everything and does nothing.

A grade on Canvas that is neither the one that was sent last nor the one to be sent was given by hand: it stays, and is
named, until somebody says that it may be replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradebook.plugins.canvas_push.memory import Mark, Sent, digest
from gradebook.plugins.canvas_push.service import Submission

Kind = Literal["new", "raised", "lowered", "excused", "comment", "same", "by hand", "not there"]

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a student of the class is to have on Canvas."""

    student: str
    user: int
    mark: Mark
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to become of one student's grade and comments."""

    target: Target
    kind: Kind
    before: Mark
    """What Canvas has now."""
    sent: Mark | None
    """What it was sent last."""
    sends_mark: bool = False
    sends_comment: bool = False
    by_hand: bool = False
    """Whether what Canvas has was given there."""

    @property
    def sends(self) -> bool:
        return self.sends_mark or self.sends_comment


def changes(
    targets: Sequence[Target],
    on_canvas: Mapping[int, Submission],
    sent: Mapping[str, Sent],
    me: int,
    replace: Collection[str] = (),
) -> list[Change]:
    """Compare.

    Args:
        targets: what everybody is to have.
        on_canvas: what Canvas has, by number there.
        sent: what was sent before, by number there.
        me: the number of the sender; comments are theirs.
        replace: students whose grade may be replaced although it was given by hand, or `all`.
    """
    return [
        _change(
            target,
            on_canvas.get(target.user),
            sent.get(str(target.user)),
            me,
            target.student in replace or ALL in replace,
        )
        for target in targets
    ]


def mark_of(submission: Submission) -> Mark:
    """What a submission has."""
    if submission.excused:
        return Mark(excused=True)
    score = submission.entered_score
    return Mark(submission.score if score is None else score)


def comments_of(submission: Submission, me: int) -> list[str]:
    """Digests of the comments that I wrote, in order."""
    return [
        digest(comment.comment)
        for comment in submission.submission_comments
        if comment.author_id == me and comment.comment is not None
    ]


def _change(target: Target, now: Submission | None, sent: Sent | None, me: int, may_replace: bool) -> Change:
    last = sent.mark if sent else None
    if now is None:
        return Change(target=target, kind="not there", before=Mark(), sent=last)
    before = mark_of(now)
    same = before.same_as(target.mark)
    by_hand = not same and not before.same_as(last or Mark()) and not _is_canvas_own(now)
    stays = by_hand and not may_replace
    comments = not stays and _is_new(target.comment, now, sent, me)
    return Change(
        target=target,
        kind="by hand" if stays else ("comment" if comments else "same") if same else _kind(before, target.mark),
        before=before,
        sent=last,
        sends_mark=not same and not stays,
        sends_comment=comments,
        by_hand=by_hand,
    )


def _is_canvas_own(submission: Submission) -> bool:
    """Whether it has the points that Canvas gives by itself to what is missing."""
    return submission.grader_id is None and not submission.excused and submission.score is not None


def _kind(before: Mark, after: Mark) -> Kind:
    if after.excused:
        return "excused"
    if before.score is None or after.score is None:
        return "new"
    return "raised" if after.score > before.score else "lowered"


def _is_new(comment: str, now: Submission, sent: Sent | None, me: int) -> bool:
    """Whether a comment is to be written: not where it is the latest of ours, there or as far as we remember.

    If somebody deletes it on Canvas, it is not sent again. Other comments of the token's owner are not ours.
    """
    if not comment:
        return False
    mine = digest(comment)
    known = {mine, *(sent.comments if sent else ())}
    there = [entry for entry in comments_of(now, me) if entry in known]
    remembered = sent.comments[-1:] if sent else ()
    return not (mine in remembered or there[-1:] == [mine])
