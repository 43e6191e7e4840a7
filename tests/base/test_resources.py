"""Files that travel with the package are found in one place."""

from __future__ import annotations

import pytest

from cmsspark.base import resources


def test_a_resource_is_found_by_its_name_in_a_checkout() -> None:
    assert resources.resource("etc/sources.yaml").is_file()
    assert resources.resource("schemas/tables").is_dir()
    assert "apps:" in resources.read_text("etc/apps.yaml")
    assert "aaa" in resources.read_yaml("etc/sources.yaml")


def test_a_resource_that_is_not_there_is_named() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"etc/nothing\.yaml is not part of this installation"
    ):
        resources.resource("etc/nothing.yaml")
