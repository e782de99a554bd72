"""``--check``: ranks compare what they are at before each collective."""

from __future__ import annotations

import diverging_ranks
import pytest
import rank_scenes


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.slow
def test_what_cannot_be_told_beforehand_is_checked_as_it_runs(folder):
    rank_scenes.checked_as_it_runs(folder)


@pytest.mark.slow
def test_training_whose_ranks_match(folder):
    diverging_ranks.write(folder, diverging_ranks.STEADY)
    code, _, err = diverging_ranks.train(folder, "--check", "--save", "end.safetensors")
    assert code == 0, err
    assert (folder / "end.safetensors").exists()


def test_one_process_has_nobody_to_compare_with(folder):
    (folder / "part.opg").write_text(rank_scenes.PARTING.replace("OTHERWISE", "mul(x, 2.0)"))
    code, _, err = rank_scenes.run(
        folder, "run", "part.opg", "-i", "ones", "--mesh", "data=1", "--check"
    )
    assert code == 2 and "--check is for several ranks" in err
