"""Saves attributes of the accounting objects as JSON values, and restores them from untrusted files.

A class lists the attributes that outlive a block in STATE, with their forms. Not here: the meaning of attributes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Protocol

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import MONOTONIC_NS_MAX

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class StateForm(Protocol):
    """The form of one attribute: `save` converts it to a JSON value, `load` back.

    `load` validates the value and raises MalformedError, in which `what` names the attribute.
    """

    def save(self, value: Any) -> Any:
        """Return the value of JSON."""

    def load(self, value: Any, what: str, where: str) -> Any:
        """Return the attribute."""


class Stateful(Protocol):
    """An object that can be saved and restored."""

    STATE: ClassVar[Mapping[str, StateForm]]


class IntegerForm:
    """An integer from `low` to `high`, both included."""

    def __init__(self, low: int = 0, high: int = _INT64_MAX) -> None:
        self._low, self._high = low, high

    def save(self, value: int) -> int:
        """Return the integer, clamped to 64 bits: no training counts that far, and no record holds more."""
        return min(max(value, _INT64_MIN), _INT64_MAX)

    def load(self, value: Any, what: str, where: str) -> int:
        """Return the integer."""
        if type(value) is not int or not self._low <= value <= self._high:
            raise MalformedError(what, where=where, got=value, expected=f"an integer from {self._low} to {self._high}")
        return value


ANY_INTEGER = IntegerForm(_INT64_MIN)
COUNT = IntegerForm()
TIME_NS = IntegerForm(0, MONOTONIC_NS_MAX)


class BooleanForm:
    """True or false."""

    def save(self, value: Any) -> bool:
        """Return it as a bool."""
        return bool(value)

    def load(self, value: Any, what: str, where: str) -> bool:
        """Return the bool."""
        if not isinstance(value, bool):
            raise MalformedError(what, where=where, got=value, expected="true or false")
        return value


BOOLEAN = BooleanForm()


class WordForm:
    """One of `words`."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(words)

    def save(self, value: str) -> str:
        """Return the word."""
        return value

    def load(self, value: Any, what: str, where: str) -> str:
        """Return the word."""
        if value not in self._words:
            raise MalformedError(what, where=where, got=value, expected=f"one of {', '.join(self._words)}")
        return str(value)


class OptionalForm:
    """A value of `form`, or None."""

    def __init__(self, form: StateForm) -> None:
        self._form = form

    def save(self, value: Any) -> Any:
        """Return the value of JSON."""
        return None if value is None else self._form.save(value)

    def load(self, value: Any, what: str, where: str) -> Any:
        """Return the attribute."""
        return None if value is None else self._form.load(value, what, where)


class ListForm:
    """A list of at most `max_length` values of one form, converted to a collection by `make`; a set is saved sorted."""

    def __init__(self, form: StateForm, max_length: int, make: Callable[[list[Any]], Collection[Any]] = list) -> None:
        self._form, self._max_length, self._make = form, max_length, make

    def save(self, value: Collection[Any]) -> list[Any]:
        """Return a list."""
        saved = [self._form.save(each) for each in value]
        return sorted(saved) if isinstance(value, set) else saved

    def load(self, value: Any, what: str, where: str) -> Collection[Any]:
        """Return the collection."""
        if not isinstance(value, list) or len(value) > self._max_length:
            got = f"{len(value)} values" if isinstance(value, list) else value
            raise MalformedError(what, where=where, got=got, expected=f"a list of at most {self._max_length} values")
        return self._make([self._form.load(each, f"{what}[{at}]", where) for at, each in enumerate(value)])


class TupleForm:
    """A list with one value per form, converted to an object by `make`."""

    def __init__(self, *forms: StateForm, make: Callable[..., Any] = lambda *values: values) -> None:
        self._forms, self._make = forms, make

    def save(self, value: Iterable[Any]) -> list[Any]:
        """Return a list."""
        return [form.save(each) for form, each in zip(self._forms, value, strict=True)]

    def load(self, value: Any, what: str, where: str) -> Any:
        """Return the object."""
        if not isinstance(value, list) or len(value) != len(self._forms):
            raise MalformedError(what, where=where, got=value, expected=f"a list of {len(self._forms)} values")
        pairs = zip(self._forms, value, strict=True)
        return self._make(*[form.load(each, f"{what}[{at}]", where) for at, (form, each) in enumerate(pairs)])


class DictForm:
    """A dict, saved as a list of at most `max_length` keys with their values."""

    def __init__(self, key: StateForm, value: StateForm, max_length: int) -> None:
        self._pairs = ListForm(TupleForm(key, value), max_length)

    def save(self, value: Mapping[Any, Any]) -> list[Any]:
        """Return the list."""
        return self._pairs.save(value.items())

    def load(self, value: Any, what: str, where: str) -> dict[Any, Any]:
        """Return the dict."""
        return dict(self._pairs.load(value, what, where))


def mapping(state: Any, what: str, where: str) -> dict[str, Any]:
    """Return a state that must be a mapping; raises MalformedError if it is not."""
    if not isinstance(state, dict):
        raise MalformedError(what, where=where, got=state, expected="a mapping")
    return state


def saved(thing: Stateful) -> dict[str, Any]:
    """Return the state of an object."""
    return {name.lstrip("_"): form.save(getattr(thing, name)) for name, form in thing.STATE.items()}


def restore(thing: Stateful, state: Any, *, what: str, where: str) -> None:
    """Set an object's attributes from a state that `saved` returned.

    Raises
    ------
    MalformedError
        It is not such a state. Some attributes may have been set: the object must be discarded.
    """
    names = {name.lstrip("_"): name for name in thing.STATE}
    if mapping(state, what, where).keys() != names.keys():
        got = ", ".join(map(str, state))
        raise MalformedError(what, where=where, got=got, expected=f"a mapping of {', '.join(names)}")
    for key, name in names.items():
        setattr(thing, name, thing.STATE[name].load(state[key], f"{what}.{key}", where))
