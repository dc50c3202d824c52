"""Real tables become folders of sites whose agreement is written before anybody looks at records."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from studies.site_tables import FEWEST, TABLES, Table

from sottovoce import data
from sottovoce.data.tables.schema import Description


@pytest.mark.parametrize("name", TABLES)
def test_every_agreement_can_be_read(name: str) -> None:
    agreed = Description.parse(TABLES[name].agreement())
    assert agreed.task == TABLES[name].task
    assert list(agreed.columns) == list(TABLES[name].columns)


def test_a_table_is_written_as_a_folder_of_sites_and_small_ones_are_left_out(tmp_path: Path) -> None:
    sizes = {"a": FEWEST, "b": FEWEST + 5, "c": FEWEST - 1}
    rows = pd.DataFrame(
        [
            {"site": site, "age": i % 90, "ill": "ny"[i % 2]}
            for site, size in sizes.items()
            for i in range(size)
        ]
    )
    Table("classes", "ill", ["n", "y"], {"age": (0, 100)}, lambda source: rows).write(
        tmp_path, tmp_path / "out"
    )
    found = data.load(tmp_path / "out")
    assert found.clients == ("site-a", "site-b")
    assert len(found) == 2 * FEWEST + 5
