"""Text for people: times in words, and what somebody else wrote made safe to show."""

from datetime import UTC, datetime


def printable(text: str) -> str:
    """Return a text that cannot steer a terminal or forge a line of a log.

    White space becomes a space; controls, bidirectional marks and other invisible characters become escapes.
    """
    return "".join(
        character if character.isprintable() else " " if character.isspace() else f"\\x{ord(character):02x}"
        for character in text
    )


def instant(at_ms: int) -> str:
    """Return a time of the ledger's clock for people, with its date: `2026-05-04 12:51:35.120 UTC`."""
    seconds, millis = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{millis:03d} UTC"


def moment(at_ms: int | None, now_ms: int) -> str:
    """Return a time of the ledger's clock for people, such as `in 12 s (12:51:35 UTC)`."""
    if at_ms is None:
        return "at no set time"
    seconds = round((at_ms - now_ms) / 1000)
    distance = f"in {seconds} s" if seconds >= 0 else f"{-seconds} s ago"
    return f"{distance} ({datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S} UTC)"
