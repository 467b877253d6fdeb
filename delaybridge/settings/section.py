"""A section of the settings: attributes with their checks and defaults, read from a mapping.

Not by pydantic: its import, and making its validators, takes longer than a command that schedules.
"""

from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin


class WrongValue(NamedTuple):
    """A refused value. allowed: what is allowed instead; None if there is no such setting."""

    path: tuple[str, ...]
    value: object
    allowed: str | None


class WrongSettings(ValueError):
    """Settings that are refused. Its text has no values, which may be secret."""

    def __init__(self, faults: list[WrongValue]) -> None:
        self.faults = faults
        lines = (f"{'.'.join(each.path)}: {each.allowed or 'unknown'}" for each in faults)
        super().__init__("; ".join(lines))


class WrittenAs(str):
    """The name of a setting in the file, where it is not the attribute's."""

    __slots__ = ()


class Field(NamedTuple):
    """One setting, or a section. checks: in their order; each takes what the one before returned,
    and raises a ValueError that says what is allowed.
    """

    written: str
    type: Any
    checks: list[Any]

    @property
    def is_section(self) -> bool:
        """Whether it is a table of its own."""
        return isinstance(self.type, type) and issubclass(self.type, Section)

    def read(self, value: object) -> Any:
        """The setting as a program sees it. ValueError, maybe `WrongSettings`, if it is refused."""
        if self.is_section:
            return value if isinstance(value, self.type) else self.type.from_table(value)
        for check in self.checks:
            value = check(value)
        return value


def _field(name: str, annotation: Any) -> Field:
    checks = list(get_args(annotation)[1:] if get_origin(annotation) is Annotated else ())
    written = next((each for each in checks if isinstance(each, WrittenAs)), name)
    return Field(written, annotation, [each for each in checks if each is not written])


class Section:
    """One table of the file; it is frozen. Defaults are not checked."""

    fields: ClassVar[dict[str, Field]] = {}

    def __init_subclass__(cls) -> None:
        # The annotations are no text: these modules do not import `annotations`.
        named = {name: kind for name, kind in cls.__annotations__.items() if name[0] != "_"}
        cls.fields = {name: _field(name, kind) for name, kind in named.items()}

    def __init__(self, **given: Any) -> None:
        faults: list[WrongValue] = []
        for name, field in self.fields.items():
            if field.written not in given:
                self.__dict__[name] = getattr(type(self), name)
                continue
            value = given.pop(field.written)
            try:
                self.__dict__[name] = field.read(value)
            except WrongSettings as exc:
                faults += [each._replace(path=(field.written, *each.path)) for each in exc.faults]
            except ValueError as exc:
                faults.append(WrongValue((field.written,), value, str(exc)))
        faults += [WrongValue((name,), value, None) for name, value in given.items()]
        if faults:
            raise WrongSettings(faults)

    @classmethod
    def from_table(cls, written: object) -> Self:
        """The section that a table of the file has. ValueError if it is no table."""
        if not isinstance(written, dict):
            raise ValueError("a table")
        return cls(**written)

    def __setattr__(self, name: str, value: object) -> None:
        raise ValueError(f"settings are frozen: use model_copy(update={{{name!r}: ...}})")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        told = (f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{type(self).__name__}({', '.join(told)})"

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """The same with other values, which are not checked."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(vars(self) | update)
        return copy

    def model_dump(self) -> dict[str, Any]:
        """All settings by their attributes; sections as dictionaries, too."""
        values = {name: getattr(self, name) for name in self.fields}
        return {n: v.model_dump() if isinstance(v, Section) else v for n, v in values.items()}
