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
    from sottovoce.api import train
    from sottovoce.data import Dataset, from_torch, load
    from sottovoce.errors import SottovoceError
    from sottovoce.estimators import PrivateClassifier, PrivateRegressor
    from sottovoce.finishing import finish
    from sottovoce.given import from_clients, from_huggingface
    from sottovoce.onboarding.future_client import personalize
    from sottovoce.onnxfile import export_onnx
    from sottovoce.personal import PersonalModel
    from sottovoce.plan import Plan
    from sottovoce.prediction import predict
    from sottovoce.privacy import Terms
    from sottovoce.run.comparison import compare
    from sottovoce.run.export import write_models
    from sottovoce.run.training import evaluate

__version__ = "0.2.0"
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
    "PrivateClassifier": "estimators",
    "PrivateRegressor": "estimators",
    "SottovoceError": "errors",
    "Terms": "privacy",
    "compare": "run.comparison",
    "evaluate": "run.training",
    "export_onnx": "onnxfile",
    "finish": "finishing",
    "from_clients": "given",
    "from_huggingface": "given",
    "from_torch": "data",
    "load": "data",
    "personalize": "onboarding.future_client",
    "predict": "prediction",
    "train": "api",
    "write_models": "run.export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sottovoce' has no attribute '{name}'")
    return getattr(import_module(f"sottovoce.{_HOME[name]}"), name)
