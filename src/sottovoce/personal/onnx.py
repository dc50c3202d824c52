"""A personal model as an ONNX file, for machines without this package: encoding, model and what outputs mean.

A table's columns are the inputs, each (n, 1): numbers as float64, categories as texts, and a date as float64,
the days since 1970-01-01. The encoding of `records.toml` (bounds, missing numbers, unknown names, months) is
part of the graph. Linear models and multilayer perceptrons on columns or arrays are exported; what ONNX
cannot say (feature maps, free text, tokens) is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sottovoce import __version__
from sottovoce.data import Facts
from sottovoce.data.section import OTHER
from sottovoce.data.tables import schema
from sottovoce.data.tables.kinds import PARTS, Category, Date, Number
from sottovoce.data.tables.schema import Description
from sottovoce.errors import SottovoceError, extra
from sottovoce.machine.files import PRIVATE, write_atomically
from sottovoce.models.tensors import HOME, HomeModel
from sottovoce.personal import PersonalModel

OPSET, ML_OPSET, IR = 17, 3, 9
"""Versions that runtimes of 2023 and later read."""
FIRST, EPOCH, LAST = date.min.toordinal(), date(1970, 1, 1).toordinal(), date.max.toordinal()
"""Days that have a name, and the one that a date's input counts from."""
ACTIVATIONS: Mapping[type[nn.Module], str] = {nn.Tanh: "Tanh", nn.ReLU: "Relu"}
PUBLISHED_KIND, HOME_KIND = "the ONNX file of a published model", "the ONNX file of a home model"
NO_KIND = "no ONNX file of ours"
KEEP = "A home model, made of its owner's records without noise: it is not private and stays at home."
SHOW = "A published model, made of private releases alone: it may be shown to anybody."


class CannotExport(SottovoceError):
    """A model with something that ONNX has no way to say."""


def export_onnx(
    model: str | Path, out: str | Path, *, home: bool = False, module: nn.Module | str | None = None
) -> dict[str, Any]:
    """Writes the model of a file as ONNX and returns its inputs and outputs by name.

    Classes have `probabilities` (n, classes) and `decision` (n,), labels `probabilities` and `decisions`
    (n, labels), a number its `value` (n, 1), as `predict` gives them to 1e-5. A home model is exported only
    for who says `home`; its file says so too, and takes the place of nothing but another of its kind. Needs
    the extra `onnx`.
    """
    source, target = Path(model), Path(out)
    try:
        personal = PersonalModel.read(source, model=module, home=home)
    except HomeModel:
        raise HomeModel(
            f"{source} is a home model, made of records without noise: export the published one, or say that "
            "this one stays at home",
            "home",
        ) from None
    if target.resolve() == source.resolve():
        raise CannotExport(f"{target} holds the model itself: choose another file")
    graph = _Graph(personal)
    _check_place(target, home=personal.home)
    write_atomically(target, graph.file(), PRIVATE)
    return {
        "onnx": str(target),
        "home": personal.home,
        "inputs": [one.name for one in graph.inputs],
        "outputs": [one.name for one in graph.outputs],
    }


def _check_place(path: Path, *, home: bool) -> None:
    """Refuses to put an export in the place of anything but an export of its kind, `home` or published."""
    if not path.exists():
        return
    kind = _kind(path)
    if kind != (HOME_KIND if home else PUBLISHED_KIND):
        raise CannotExport(f"{path} exists and is {kind}: choose another file", "onnx")


def _kind(path: Path) -> str:
    """Returns what a file is, by the metadata that `_Graph.file` writes."""
    from onnx import load

    try:
        said = {one.key for one in load(path, load_external_data=False).metadata_props}
    except Exception:  # a folder, or bytes of another format: protobuf has errors of its own
        return NO_KIND
    return NO_KIND if "origin" not in said else HOME_KIND if HOME in said else PUBLISHED_KIND


class _Graph:
    """A graph that grows node by node; every result is known by its name."""

    def __init__(self, model: PersonalModel) -> None:
        if model.plan.features != "none":
            raise CannotExport(
                f"the model sees features={model.plan.features}, which ONNX has no words for: predict with "
                "sottovoce, or train with features=none"
            )
        self._onnx = extra("onnx", "ONNX files need the package onnx", "onnx")
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._model, self._agreed = model, schema.of(model.records)
        agreed, facts = self._agreed, model.facts
        if agreed is not None and agreed.array is None:
            x = self._columns(agreed, facts)
        else:
            x = self._array(agreed, facts)
        self._told(self._layers(x, model.module), facts, agreed)

    def file(self) -> bytes:
        """The bytes of the file: the graph, and where it comes from."""
        helper, model, agreed = self._onnx.helper, self._model, self._agreed
        graph = helper.make_graph(self._nodes, "sottovoce", self.inputs, self.outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        file = helper.make_model(graph, opset_imports=opsets, ir_version=IR, producer_name="sottovoce")
        uncovered = [] if agreed is None else agreed.uncovered
        file.producer_version = __version__
        file.doc_string = "\n".join([KEEP if model.home else SHOW, *uncovered])
        said = {
            "origin": json.dumps(dataclasses.asdict(model.origin)),
            "task": model.facts.task,
            "class_names": json.dumps(model.records.class_names),
            "columns": model.records.columns,
            **({HOME: "true"} if model.home else {}),
        }
        helper.set_model_props(file, said)
        self._onnx.checker.check_model(file, full_check=True)
        data: bytes = file.SerializeToString()
        return data

    def _add(self, kind: str, *inputs: Any, name: str = "", domain: str = "", **attributes: Any) -> str:
        """A node whose inputs are results, by name, and constants of numpy."""
        name = name or f"sottovoce/{len(self._nodes)}"
        named = [one if isinstance(one, str) else self._constant(one) for one in inputs]
        self._nodes.append(self._onnx.helper.make_node(kind, named, [name], domain=domain, **attributes))
        return name

    def _constant(self, values: Any) -> str:
        name = f"sottovoce/constant/{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def _input(self, name: str, kind: str, *shape: int) -> str:
        self.inputs.append(self._value(name, kind, *shape))
        return name

    def _output(self, name: str, kind: str, *shape: int) -> str:
        """A name for an output; a column may be called so already."""
        name = f"predicted_{name}" if name in {one.name for one in self.inputs} else name
        self.outputs.append(self._value(name, kind, *shape))
        return name

    def _value(self, name: str, kind: str, *shape: int) -> Any:
        elements = getattr(self._onnx.TensorProto, kind)
        return self._onnx.helper.make_tensor_value_info(name, elements, ["n", *shape])

    def _cast(self, value: str, kind: str, name: str = "") -> str:
        return self._add("Cast", value, name=name, to=getattr(self._onnx.TensorProto, kind))

    def _columns(self, agreed: Description, facts: Facts) -> str:
        """The numbers (n, inputs) that a table's columns become."""
        parts = []
        for name, column in agreed.columns.items():
            if isinstance(column, Number):
                parts += self._number(name, column)
            elif isinstance(column, Category):
                parts.append(self._category(name, column))
            elif isinstance(column, Date):
                parts += self._date(name, column)
            else:
                raise CannotExport(
                    f"column '{name}' is free text, whose words ONNX cannot hash: predict with sottovoce, or "
                    "train without this column"
                )
        return self._add("Div", self._add("Concat", *parts, axis=1), np.asarray(facts.std, np.float32))

    def _number(self, name: str, column: Number) -> list[str]:
        value = self._input(name, "DOUBLE", 1)
        absent = self._add("Or", self._add("IsNaN", value), self._add("IsInf", value))
        scaled = self._scaled(column, value, absent)
        return [scaled] if column.missing is None else [scaled, self._cast(absent, "FLOAT")]

    def _scaled(self, column: Number, value: str, absent: str) -> str:
        inside = self._add("Clip", value, np.float64(column.low), np.float64(column.high))
        centered = self._add(
            "Sub", self._add("Where", absent, np.float64(column.filler), inside), np.float64(column.center)
        )
        return self._cast(self._add("Div", centered, np.float64(column.spread)), "FLOAT")

    def _date(self, name: str, column: Date) -> list[str]:
        """The parts of a day that is given as days since 1970-01-01; outside the calendar there is none."""
        days = self._add("Floor", self._input(name, "DOUBLE", 1))
        ordinal = self._add("Add", days, np.float64(EPOCH))
        begun = self._add("GreaterOrEqual", ordinal, np.float64(FIRST))
        inside = self._add("And", begun, self._add("LessOrEqual", ordinal, np.float64(LAST)))
        absent = self._add("Not", inside)
        known = self._add("Where", inside, ordinal, np.float64(FIRST))
        whole = self._cast(known, "INT64")
        parts = []
        for part in column.parts:
            if part == "days":
                since = self._add("Sub", known, np.float64(column.since.toordinal()))
                parts.append(self._scaled(column.days, since, absent))
                continue
            place = self._month(whole) if part == "month" else self._whole("Mod", whole, -1, 7)
            hot = self._add("Equal", place, np.arange(len(PARTS[part]))[None])
            parts.append(self._cast(self._add("And", hot, inside), "FLOAT"))
        return parts if column.missing is None else [*parts, self._cast(absent, "FLOAT")]

    def _month(self, ordinal: str) -> str:
        """The month, 0 to 11, of a day that Python counts so (Hinnant: chrono-compatible date algorithms).

        Years begin in March: a leap day is the last of its year, and months follow a line.
        """
        day = self._whole("Mod", ordinal, 305, 146_097)  # of 400 years
        leaps = [self._whole("Div", day, 0, length) for length in (1460, 36_524, 146_096)]
        common = self._add("Sub", self._add("Add", self._add("Sub", day, leaps[0]), leaps[1]), leaps[2])
        year = self._whole("Div", common, 0, 365)
        lengths = [self._whole("Div", year, 0, 4), self._whole("Div", year, 0, 100)]
        before = self._add("Add", self._add("Mul", year, np.int64(365)), lengths[0])
        rest = self._add("Add", self._add("Sub", day, before), lengths[1])
        march = self._whole("Div", self._add("Mul", rest, np.int64(5)), 2, 153)
        return self._whole("Mod", march, 2, 12)

    def _whole(self, kind: str, value: str, plus: int, by: int) -> str:
        """`value + plus` divided by a number, or what is left, for whole numbers from 0."""
        return self._add(kind, self._add("Add", value, np.int64(plus)), np.int64(by))

    def _category(self, name: str, column: Category) -> str:
        text, names = self._input(name, "STRING", 1), column.names
        texts = (*names.values, *(alias for alias, _ in names.aliases))
        forms = sorted({form for value in texts for form in _forms(value)})
        places = {form: names.place(form) for form in forms if names.place(form) >= 0}
        place = self._add(
            "LabelEncoder",
            text,
            domain="ai.onnx.ml",
            keys_strings=list(places),
            values_int64s=list(places.values()),
            default_int64=names.values.index(OTHER),
        )
        return self._cast(self._add("Equal", place, np.arange(len(names.values))[None]), "FLOAT")

    def _array(self, agreed: Description | None, facts: Facts) -> str:
        """The numbers (n, inputs) of arrays; bytes are to be divided by 255 first."""
        array = None if agreed is None else agreed.array
        if array is not None and array.vocabulary is not None:
            raise CannotExport("records are tokens, which ONNX cannot read: predict with sottovoce")
        x = self._input("x", "FLOAT", *facts.shape)
        if array is not None and array.series:
            after, constants = 0, (array.mean, array.std)  # of the last axis
        else:
            after, constants = len(facts.shape) - 1, (facts.mean, facts.std)
        mean, std = (np.asarray(one, np.float32).reshape(-1, *[1] * after) for one in constants)
        return self._add("Div", self._add("Sub", x, mean), std)

    def _layers(self, x: str, module: nn.Module) -> str:
        for layer in module if isinstance(module, nn.Sequential) else [module]:
            if isinstance(layer, nn.Flatten) and layer.start_dim == 1:
                x = self._add("Flatten", x, axis=1)
            elif isinstance(layer, nn.Linear):
                tensors = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
                x = self._add("Gemm", x, *(one.detach().cpu().float().numpy() for one in tensors), transB=1)
            elif type(layer) in ACTIVATIONS:
                x = self._add(ACTIVATIONS[type(layer)], x)
            else:
                raise CannotExport(
                    f"a layer {type(layer).__name__} is not exported, only linear and mlp models are: "
                    "predict with sottovoce"
                )
        return x

    def _told(self, outputs: str, facts: Facts, agreed: Description | None) -> None:
        """Adds what people read of outputs (n, classes)."""
        count = facts.classes
        if facts.task == "number":
            center, reach = (0.0, 1.0) if agreed is None else (agreed.target.center, agreed.target.reach)
            inside = self._add("Clip", outputs, np.float32(-1), np.float32(1))
            scaled = self._add("Mul", inside, np.float32(reach))
            self._add("Add", scaled, np.float32(center), name=self._output("value", "FLOAT", 1))
            return
        probabilities = self._output("probabilities", "FLOAT", count)
        if facts.task == "labels":
            self._add("Sigmoid", outputs, name=probabilities)
            more = self._add("Greater", outputs, np.float32(0))
            self._cast(more, "INT64", self._output("decisions", "INT64", count))
            return
        self._add("Softmax", outputs, name=probabilities, axis=1)
        self._add(
            "LabelEncoder",
            self._add("ArgMax", outputs, axis=1, keepdims=0),
            name=self._output("decision", "STRING"),
            domain="ai.onnx.ml",
            keys_int64s=list(range(count)),
            values_strings=list(facts.class_names) or [str(place) for place in range(count)],
        )


def _forms(text: str) -> set[str]:
    """A text in forms that mean the same where the agreement says so; others have no place there."""
    forms = {text, text.lower(), text.upper(), text.capitalize(), text.title()}
    return forms | {f"{form}.0" for form in forms}
