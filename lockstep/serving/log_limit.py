"""Rate-limits log lines, so that logs stay bounded when the same bad input arrives a thousand times a second."""

import logging
import traceback
from collections import Counter, OrderedDict

_INTERVAL_S = 60.0
_TEXT_MAX = 500
_FRAMES_MAX = 8  # innermost frames of a traceback
_KINDS_MAX = 256  # lines a minute: at most 40 MB a day


class LogLimit:
    """Writes at most one line per `kind` and `interval_s`, with the number of lines suppressed before it.

    The caller passes the times, from any clock; one that steps back ends the interval. Kinds may come from outside:
    beyond `_KINDS_MAX`, the one that was logged longest ago is forgotten.
    """

    def __init__(self, logger: logging.Logger, *, interval_s: float = _INTERVAL_S) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._logged_s: OrderedDict[str, float] = OrderedDict()
        self._left_out: Counter[str] = Counter()

    def warning(self, kind: str, now_s: float, text: str, error: BaseException | None = None) -> None:
        """Log `text`, cut to 500 characters of one line, and where `error` was raised if there is one."""
        logged_s = self._logged_s.get(kind)
        if logged_s is not None and 0 <= now_s - logged_s < self._interval_s:
            self._left_out[kind] += 1
            return
        self._logged_s[kind] = now_s
        self._logged_s.move_to_end(kind)
        if len(self._logged_s) > _KINDS_MAX:
            self._left_out.pop(self._logged_s.popitem(last=False)[0], None)
        line = text.replace("\n", "\\n")[:_TEXT_MAX]
        if left_out := self._left_out.pop(kind, 0):
            line += f" ({left_out} more like it were not logged)"
        if error is not None:
            line += "\n" + "".join(traceback.format_tb(error.__traceback__, limit=-_FRAMES_MAX)).rstrip()
        self._logger.warning("%s", line)


class RepeatFilter(logging.Filter):
    """Passes a record of each message text once per `interval_s`, with the number suppressed before it.

    For loggers of libraries, which log each malformed request with its traceback. Texts are compared before formatting,
    so there are only as many as the library's logging calls.
    """

    def __init__(self, *, interval_s: float = _INTERVAL_S) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._logged_s: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    @classmethod
    def install(cls, logger: logging.Logger) -> None:
        """Add a filter to a logger that has none."""
        if not any(isinstance(each, cls) for each in logger.filters):
            logger.addFilter(cls())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes."""
        text, logged_s = str(record.msg), self._logged_s.get(str(record.msg))
        if logged_s is not None and 0 <= record.created - logged_s < self._interval_s:
            self._held_back[text] = self._held_back.get(text, 0) + 1
            return False
        self._logged_s[text] = record.created
        if held_back := self._held_back.pop(text, 0):
            record.msg = f"{text} ({held_back} more like it were not logged)"
        return True
