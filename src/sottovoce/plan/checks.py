"""What a plan must satisfy: known names, sensible numbers, and keys that go together.

How a plan is written: TOML, `key=value`, and the values of its keys as text.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import SottovoceError, nearest
from sottovoce.machine import documents
from sottovoce.plan import catalog
from sottovoce.plan.catalog import METHODS

if TYPE_CHECKING:
    from sottovoce.plan import Plan


_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?")


class PlanError(SottovoceError):
    """A plan that cannot be carried out as written."""


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return documents.toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"no plan at {path}: give a TOML file, or key=value pairs alone") from None
    except IsADirectoryError:
        raise PlanError(
            f"{path} is a folder, not a plan: if it holds the records, say dataset={path}"
        ) from None
    except UnicodeDecodeError:
        what = "a model" if path.suffix == ".safetensors" else "no text"
        raise PlanError(
            f"{path} is not a plan, it is {what}: give a TOML file, such as plan.toml of a run, or settings"
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, or a number of thousands of digits
        raise PlanError(f"{path} is not a plan: {error}") from None


def split(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise PlanError(f"'{pair}' is neither a plan file nor key=value")
    return name.strip().replace("-", "_"), value.strip()


def told_apart(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with `future_clients` told apart: a number, or names (a lone number with a comma).

    >>> told_apart({"future_clients": "west,east"})
    {'future_clients': 2, 'future_names': 'west,east'}
    >>> told_apart({"future_clients": "3"}), told_apart({"future_clients": "3,"})["future_names"]
    ({'future_clients': '3', 'future_names': ''}, '3')
    """
    if "future_clients" not in given or "future_names" in given:
        return given
    value = given["future_clients"]
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value) + ","
    if isinstance(value, int | float) or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        return {**given, "future_names": ""}
    names = [name.strip() for name in text.split(",") if name.strip()]
    return {**given, "future_clients": len(names), "future_names": ",".join(names)}


def coerce(name: str, value: Any, kind: type) -> Any:
    """The value as the key's type; strings come from the command line."""
    if kind is bool:
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise PlanError(f"{name} is true or false, not '{value}'")
    if kind is str:
        if isinstance(value, str):
            return value
        raise PlanError(f"{name} is a text, not {value!r}")
    try:
        if isinstance(value, bool):
            raise ValueError
        if kind is int and isinstance(value, float) and value != int(value):
            raise ValueError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(
            f"{name} is {'a whole number' if kind is int else 'a number'}, not '{value}'"
        ) from None


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def check(plan: Plan) -> None:
    """Raises PlanError, with what to do, for the first rule that a plan breaks."""
    fields = [(field.name, getattr(plan, field.name), field.metadata) for field in dataclasses.fields(plan)]
    for name, value, told in fields:
        if told["among"] and value not in told["among"] and not (name == "features" and _own(value)):
            raise PlanError(f"{name}={value} is not known: {nearest(str(value), told['among'])}")
    method, context = plan.traits, plan.context_traits
    needed = {
        "participants": plan.partition != "client",
        "learning_rate": not (method.individual or method.bounded),
    }
    for name, value, told in fields:
        if (told["positive"] or needed.get(name)) and not 0 < value < math.inf:
            raise PlanError(f"{name} must be above 0, not {value}")
        if told["natural"] and not value >= 0:
            raise PlanError(f"{name} must be 0 or more, not {value}")
    if not plan.learning_rate and not catalog.OPTIMIZERS[plan.optimizer].linear:
        raise PlanError(f"optimizer={plan.optimizer} has steps of its own size: set learning_rate above 0")
    if plan.bias_scale and not 1e-3 <= plan.bias_scale <= 1:
        raise PlanError(f"bias_scale must be between 0.001 and 1, or 0, not {plan.bias_scale}")
    if plan.weighting > 4:
        raise PlanError(f"weighting must be 4 or less, not {plan.weighting}: 1 to 2 is usual")
    if plan.downlink_bits != 32 and not 1 <= plan.downlink_bits <= 7:
        raise PlanError(f"downlink_bits must be 32 (float32) or 1 to 7 (coded), not {plan.downlink_bits}")
    if plan.seed >= 2**63:
        raise PlanError(f"seed must be below 2^63, not {plan.seed}")
    names = plan.future_names.split(",") if plan.future_names else []
    if names and (plan.partition != "client" or len(set(names)) != plan.future_clients):
        raise PlanError(
            f"future_clients={plan.future_names} names clients: each once, and with partition=client"
        )
    if context.rescaled != "no" and plan.participants == 1:
        raise PlanError(
            f"context={plan.context} is scaled by how participants differ: set participants above 1"
        )
    if plan.private and plan.budget and not plan.epsilon <= plan.budget < math.inf:
        raise PlanError(f"budget must be finite and at least epsilon={plan.epsilon:g}, not {plan.budget:g}")
    if not plan.epsilon > 0:
        raise PlanError(
            f"epsilon must be above 0, not {plan.epsilon}: smaller is more private, 1 to 16 is usual"
        )
    if not 0 < plan.delta < 1:
        raise PlanError(f"delta must lie between 0 and 1, not {plan.delta}: 1e-5 is usual")
    if not 0 <= plan.momentum < 1:
        raise PlanError(f"momentum must be at least 0 and below 1, not {plan.momentum}")
    if not 0 <= plan.averaging <= 1:
        raise PlanError(f"averaging is a share of the rounds between 0 and 1, not {plan.averaging}")
    if plan.clients_per_round > plan.participants > 0:
        raise PlanError(
            f"clients_per_round={plan.clients_per_round} is more than participants={plan.participants}: "
            "lower it"
        )
    if method.context == "never" and context.released and plan.prior == "none":
        raise PlanError(f"method={plan.method} uses no context: set context=public, or prior=context")
    if method.context == "always" and not context.released:
        raise PlanError(
            f"method={plan.method} personalizes through a context: choose one, or use method=global"
        )
    if plan.generated + max(plan.individual, 0.0) > 1 or plan.individual > 1:
        raise PlanError(f"generated={plan.generated} and individual={plan.individual} are shares of 1: lower")
    if not (0 <= plan.context_share < 1 and 0 < plan.confusion_share < 1 - plan.context_share):
        raise PlanError("context_share and confusion_share are parts of one budget: keep their sum below 1")
    confusion = plan.confusion_share if context.predicted_for_future else 0.0
    once = plan.calibration + plan.centring
    if not once < 1 - plan.context_share - confusion:
        raise PlanError("calibration and centring are parts of the budget beside contexts: lower them")
    if once and context.released and not plan.context_share:
        raise PlanError(
            "calibration and centring are paid by shares, and so are contexts then: set context_share=0.05"
        )
    if plan.centring and plan.downlink_bits != 32:
        raise PlanError("centring sends a centre to clients, as it is: set downlink_bits=32 or centring=0")
    if context.predicted_for_future and not plan.context_share:
        raise PlanError(f"context={plan.context} is paid by a share of the budget: set context_share=0.05")
    if plan.generated and not context.released:
        raise PlanError("generated says how far a context decides: choose a context, or set generated=0")
    if plan.prior != "none" and not context.class_shares:
        raise PlanError(f"prior={plan.prior} needs a context of class shares: set context=shares")
    if context.uses_model and not 1 <= plan.context_round <= plan.rounds:
        raise PlanError(f"context={plan.context} needs context_round between 1 and rounds={plan.rounds}")
    if plan.repeat and not plan.seeded:
        raise PlanError("repeat names a noise draw of a seeded simulation: set seeded=true, or repeat=0")
    if plan.place.summed:
        _check_noise_in_sum(plan)
    if plan.place.shared:
        _check_noise_shared(plan)
    if not plan.private and not catalog.CHANNELS[plan.channel].noiseless:
        raise PlanError("epsilon=inf sends statistics without noise: set channel=direct")
    if not plan.private and not plan.seeded:
        raise PlanError("epsilon=inf protects nobody: it is for simulated ablations, set seeded=true")


def _own(features: str) -> bool:
    """Returns whether features are an owner's: of code, or of an encoder that only a machine can know."""
    return ":" in features or catalog.names_encoder(features)


def _check_noise_in_sum(plan: Plan) -> None:
    if not plan.traits.bounded:
        bounded = ", ".join(name for name, method in METHODS.items() if method.bounded)
        raise PlanError(
            f"noise={plan.noise} needs a bound on how far one record moves the generator, and method="
            f"{plan.method} has none: choose one of {bounded}, or noise=client"
        )
    if plan.weighting != 1:
        raise PlanError(
            f"noise={plan.noise} counts clients by their records: set weighting=1, not {plan.weighting}"
        )
    if plan.place.at_server and catalog.CHANNELS[plan.channel].private_messages:
        raise PlanError(
            f"channel={plan.channel} has noise that protects, and noise=server counts none of it: "
            "set another channel, or noise=client"
        )
    if plan.releases_context and not plan.context_share:
        raise PlanError(
            f"noise={plan.noise} leaves contexts their noise at the client, paid by a share: "
            "set context_share=0.05"
        )


def _check_noise_shared(plan: Plan) -> None:
    if not plan.private:
        raise PlanError("epsilon=inf has no noise to share: set noise=server")
    if not catalog.CHANNELS[plan.channel].private_messages:
        raise PlanError(
            f"noise=shared trusts no server, and messages of channel={plan.channel} tell it more than a "
            "release: set channel=integers"
        )
    if plan.traits.individual and (plan.individual, plan.generated) != (0, 0):
        raise PlanError(
            "noise=shared moves the shared part alone: set individual=0 and generated=0; models can be "
            "finished at home"
        )
    if plan.helpers < 1:
        raise PlanError("noise=shared hides all but the sum by masks of helpers: set helpers to 1 or more")
    if plan.in_every_sum <= plan.may_collude:
        raise PlanError(
            f"of {plan.in_every_sum} clients in a sum {plan.may_collude} may collude, and nobody's noise is "
            "left: set threshold above colluding"
        )
    if 0 < plan.clients_per_round < plan.in_every_sum:
        raise PlanError(
            f"{plan.clients_per_round} clients release in a round, fewer than threshold={plan.in_every_sum}: "
            "raise clients_per_round, or use noise=client"
        )
