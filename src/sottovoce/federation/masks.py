"""A site's half of shared noise: what its owner must have agreed to, and the masks that go on its shares.

Nothing that a server says decides about either. The owner states, in the node's own config, that noise may be
shared, how many honest shares of it there must be at least, and which helpers may mask: by fingerprint, since
anybody can take a name. Keys of a round count only if the helper of the agreement has signed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sottovoce.blueprint import Blueprint
from sottovoce.client import Seal, unsealed
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.parties import SiteKey, fingerprint
from sottovoce.federation.sealing import Declined, EnrolmentError
from sottovoce.masking import MaskingError, MaskTerms, RoundKey, covering
from sottovoce.privacy import Terms


def check_consent(agreement: Agreement, terms: Terms) -> None:
    """Refuses an agreement on shared noise that the owner has not agreed to."""
    parties, plan = agreement.parties, agreement.plan
    if parties is None:
        return
    if not terms.noise_shared:
        raise EnrolmentError(
            "under this agreement sites share the noise and helpers mask it: refused; an owner who agrees "
            "says noise-shared=true in the node config, with honest and helpers"
        )
    honest = plan.in_every_sum - plan.may_collude
    if not 1 <= terms.honest <= honest:
        raise EnrolmentError(
            f"the noise of this agreement counts on {honest} honest sites in a sum: refused; an owner whom "
            f"that contents says honest={honest} in the node config"
        )
    strange = [name for name, public in parties.helpers if not _known(public, terms)]
    if strange:
        raise EnrolmentError(
            f"the owner of this node has not accepted the helpers {', '.join(strange)}: refused; compare "
            "their fingerprints with them, then name them as helpers in the node config"
        )


def helper_names(agreement: Agreement) -> str:
    """The helpers of an agreement, as a ledger keeps them."""
    return "" if agreement.parties is None else ", ".join(name for name, _ in agreement.parties.helpers)


def terms_of(agreement: Agreement, blueprint: Blueprint, run: str) -> MaskTerms:
    """What masks of a run are derived from, with the full digest of its frozen agreement."""
    assert agreement.parties is not None
    return agreement.parties.terms(blueprint, run, agreement.full_digest())


def masks_for(
    agreement: Agreement, blueprint: Blueprint, run: str, key: SiteKey | None, request: Mapping[str, Any]
) -> Seal:
    """What covers this site's share of the requested round; what is no share stays as it is.

    The keys of the round are checked here, before any record is read.
    """
    if agreement.parties is None:
        return unsealed
    if request["diagnostics"]:
        raise Declined("under shared noise nothing leaves but charged releases: diagnostics are refused")
    if request["kind"] != "gradient":
        return unsealed
    terms = terms_of(agreement, blueprint, run)
    keys = [
        RoundKey(helper, int(request["round"]), bytes(public), bytes(signature))
        for helper, (public, signature) in enumerate(
            zip(request.get("helper_keys", ()), request.get("helper_signatures", ()), strict=False)
        )
    ]
    try:
        if len(keys) != len(terms.helpers):
            raise MaskingError("every helper that was agreed on must have sent its key of the round")
        for one in keys:
            one.check(terms)
    except MaskingError as error:
        raise Declined(str(error)) from None
    return covering(terms, held(key).exchange, keys)


def held(key: SiteKey | None) -> SiteKey:
    """The site's key, without which it has no place in the agreement."""
    if key is None:
        raise EnrolmentError(
            "the agreement is about keys and this node has none: name the file of its key in the node config"
        )
    return key


def _known(public: str, terms: Terms) -> bool:
    return fingerprint(public).replace(" ", "") in terms.helpers
