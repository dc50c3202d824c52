"""Sottovoce: private, personalized federated learning in a whisper of bits.

    from sottovoce import Plan, train
    result = train(Plan.load(overrides={"epsilon": 8}), "runs/first")

Names are loaded when first used, so that `sottovoce.channel` and `sottovoce.privacy` can be used alone,
without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.data import Dataset, from_torch, load
    from sottovoce.data.python import from_clients, from_huggingface
    from sottovoce.errors import SottovoceError
    from sottovoce.federation.onboarding.client import personalize
    from sottovoce.personal import PersonalModel
    from sottovoce.personal.finishing import finish
    from sottovoce.personal.onnx import export_onnx
    from sottovoce.personal.prediction import predict
    from sottovoce.plan import Plan
    from sottovoce.privacy.terms import Terms
    from sottovoce.run import train
    from sottovoce.run.estimators import PrivateClassifier, PrivateRegressor
    from sottovoce.run.models import write_models
    from sottovoce.run.rehearsal import compare
    from sottovoce.run.training import evaluate

__version__ = "0.3.0"
__all__ = [
    "Dataset",
    "PersonalModel",
    "Plan",
    "PrivateClassifier",
    "PrivateRegressor",
    "SottovoceError",
    "Terms",
    "compare",
    "evaluate",
    "export_onnx",
    "finish",
    "from_clients",
    "from_huggingface",
    "from_torch",
    "load",
    "personalize",
    "predict",
    "train",
    "write_models",
]

_HOME = {
    "Dataset": "data",
    "PersonalModel": "personal",
    "Plan": "plan",
    "PrivateClassifier": "run.estimators",
    "PrivateRegressor": "run.estimators",
    "SottovoceError": "errors",
    "Terms": "privacy.terms",
    "compare": "run.rehearsal",
    "evaluate": "run.training",
    "export_onnx": "personal.onnx",
    "finish": "personal.finishing",
    "from_clients": "data.python",
    "from_huggingface": "data.python",
    "from_torch": "data",
    "load": "data",
    "personalize": "federation.onboarding.client",
    "predict": "personal.prediction",
    "train": "run",
    "write_models": "run.models",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sottovoce' has no attribute '{name}'")
    return getattr(import_module(f"sottovoce.{_HOME[name]}"), name)
