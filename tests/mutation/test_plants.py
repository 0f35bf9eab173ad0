"""The plants fit the code as it is, and planting is no joke: what is planted is still Python."""

import ast

import pytest

from tests.mutation.hunters import ROOT
from tests.mutation.plants import PLANTS, OutOfDate, Plant, planted
from tests.support.titled import COORDINATORS, DAMAGE, HANDLERS, OUTBOX, TCC, titles


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_plant_fits_the_code_as_it_is(plant: Plant) -> None:
    source = (ROOT / "src" / "halfmq" / plant.file).read_text()
    changed = planted(source, plant)
    assert changed != source
    ast.parse(changed)


def test_every_promise_has_plants_and_names_are_unique() -> None:
    named = titles(OUTBOX, COORDINATORS, HANDLERS, DAMAGE, TCC)
    assert {plant.promise for plant in PLANTS} == {*range(11), *named}
    assert len({plant.name for plant in PLANTS}) == len(PLANTS) >= 30


def test_a_plant_whose_place_has_moved_is_noticed() -> None:
    with pytest.raises(OutOfDate, match="occurs 0 times"):
        planted("nothing of it", PLANTS[0])
