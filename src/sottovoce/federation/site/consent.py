"""What a client's owner agrees to in the node's own settings, and no plan or server can decide.

Noise that the server adds, noise that sites share, and constants that were read from somebody's records: an
agreement with one of them is refused until the owner says so there. Of shared noise the owner also states how
many honest shares of it there must be at least, and which helpers may mask: by fingerprint, since anybody can
take a name.
"""

from __future__ import annotations

from sottovoce.data.tables import schema
from sottovoce.federation import Agreement
from sottovoce.federation.keys import fingerprint
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.privacy.terms import Terms


def check_consent(agreement: Agreement, terms: Terms) -> None:
    """Refuses an agreement on what the owner of real records has not agreed to."""
    plan = agreement.plan
    if plan.seeded or not plan.private:
        raise EnrolmentError(
            "the noise of this agreement is seeded or absent, for simulations, and protects nobody: refused"
        )
    if plan.place.at_server and not terms.noise_at_server:
        raise EnrolmentError(
            "this agreement leaves the noise to the server, which then sees more than ε allows: refused; "
            "an owner who trusts it says noise_at_server = true in node.toml"
        )
    _check_shared(agreement, terms)
    agreed = schema.of(agreement.facts.source or agreement.facts)
    if agreed is not None and agreed.looked_up and not terms.looked_up:
        raise EnrolmentError(
            f"this agreement has constants that were {schema.UNCOVERED} "
            f"({'; '.join(agreed.looked_up)}): refused; an owner who accepts it says looked_up = true "
            "in node.toml"
        )


def _check_shared(agreement: Agreement, terms: Terms) -> None:
    """Refuses shared noise, or helpers, that the owner has not accepted."""
    parties, plan = agreement.parties, agreement.plan
    if parties is None:
        return
    if not terms.noise_shared:
        raise EnrolmentError(
            "under this agreement sites share the noise and helpers mask it: refused; an owner who agrees "
            "says noise_shared = true in node.toml, with honest and helpers"
        )
    honest = plan.in_every_sum - plan.may_collude
    if not 1 <= terms.honest <= honest:
        raise EnrolmentError(
            f"the noise of this agreement counts on {honest} honest sites in a sum: refused; an owner whom "
            f"that contents says honest = {honest} in node.toml"
        )
    marks = {name: fingerprint(public).replace(" ", "") for name, public in parties.helpers}
    strange = [name for name, mark in marks.items() if mark not in terms.helpers]
    if strange:
        raise EnrolmentError(
            f"the owner of this node has not accepted the helpers {', '.join(strange)}: refused; compare "
            "their fingerprints with them, then name them as helpers in node.toml"
        )
