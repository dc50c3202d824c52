"""What a client's owner agrees to: an agreement, which the server shares, and what no plan or server decides.

Noise that the server adds, noise that sites share, and constants that were read from somebody's records: an
agreement with one of them is refused until the owner says so there. Of shared noise the owner also states how
many honest shares of it there must be at least, and which helpers may mask: by fingerprint, since anybody can
take a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.data.tables import schema
from sottovoce.federation import Agreement
from sottovoce.federation.keys import fingerprint
from sottovoce.federation.sealing import EnrolmentError
from sottovoce.federation.site.directory import Enrolment
from sottovoce.privacy.terms import Terms


def check_agreement(fields: Mapping[str, Any], mine: Agreement, terms: Terms | None) -> None:
    """Refuses a server under another agreement than `mine`, and one that the owner has not consented to.

    `terms` None: the records are nobody's.
    """
    if terms is not None:
        check_consent(mine, terms)
    if fields.get("agreement") != mine.digest():
        raise EnrolmentError(
            "the server works under another agreement than this client's: nothing is released; compare both "
            "agreement.toml"
        )


def frozen(
    request: Mapping[str, Any], enrolment: Enrolment, mine: Agreement, terms: Terms | None, directory: Path
) -> Agreement:
    """The agreement of a request: this client's own, with all numbers of records once it was open.

    The first one that the server froze holds for ever, and holds what this client has declared.
    """
    agreement = mine
    if mine.open:
        sizes = [int(size) for size in request.get("sizes", ())]
        agreement = mine.frozen(sizes)
        if sizes[enrolment.participant] != enrolment.records:
            raise EnrolmentError("the server states another number of records than this client declared")
    check_agreement(request, agreement, terms)
    if mine.open and enrolment.frozen != agreement.digest():
        if enrolment.frozen:
            raise EnrolmentError("the server has frozen the agreement twice: nothing is released")
        replace(enrolment, frozen=agreement.digest()).write(directory)
    return agreement


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
