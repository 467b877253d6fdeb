"""The ids that one source may name: those of its tenant, or those of no tenant."""

from __future__ import annotations

from collections.abc import Iterable

from delaybridge.accept.accept import check_id
from delaybridge.errors import MessageError
from delaybridge.ingest.globs import fits
from delaybridge.message import Limits, id_in_store


class Names:
    """Puts the tenant of a source in front of the ids that its messages give.

    tenant: empty if it has none; then ids that begin with another's are refused.
    """

    def __init__(self, tenant: str = "", tenants: Iterable[str] = ()) -> None:
        """tenants: all that share the namespace."""
        self.tenant = tenant
        self.prefix = id_in_store("", tenant)
        self._others = () if tenant else tuple(id_in_store("", each) for each in tenants)

    @property
    def has_bounds(self) -> bool:
        """Whether it may not name all ids, or puts a tenant in front of them."""
        return bool(self.prefix or self._others)

    def stored(self, id: object, limits: Limits) -> str:
        """The id under which it is stored; MessageError `bad_id`."""
        checked = check_id(id, limits, self.tenant)
        if not self.may_name(checked):
            what = f"{checked[:80]!r} is an id of tenant {checked.partition('/')[0]}: see"
            raise MessageError("bad_id", "id", f"{what} ingest.tenants")
        return checked

    def may_name(self, stored: str) -> bool:
        """Whether an id in the store may be one of this source."""
        return not stored.startswith(self._others)


NOBODYS = Names()


def tenant_of(broker: str, source: str, rules: Iterable[str]) -> str:
    """The tenant of a source, by the first rule SOURCE=TENANT that fits; empty if none does."""
    for rule in rules:
        named, _, tenant = rule.partition("=")
        if fits(source, named) or fits(f"{broker}:{source}", named):
            return tenant
    return ""
