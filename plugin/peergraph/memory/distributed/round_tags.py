"""Tags that tell apart the messages of a round, and those of rounds that overlap."""

from __future__ import annotations

LOCAL_IDS, IDS, ROWS, LOCAL_ROWS = _MESSAGES = range(4)
_ROUNDS_WITH_TAGS = 1 << 20


def round_tag(number: int, message: int) -> int:
    """Returns the tag of a message of a round.

    Args:
        number: the number of the round.
        message: the kind of message, one of the constants above.
    """
    return len(_MESSAGES) * (number % _ROUNDS_WITH_TAGS) + message
