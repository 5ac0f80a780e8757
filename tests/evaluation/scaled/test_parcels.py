"""Packages that travel to nodes: checked by digest on arrival, repaired if a cache is damaged, in bounded memory."""

import os

import pytest

from benchflow.errors import InfrastructureFailure, PackageError
from benchflow.evaluation.scaled import parcels
from benchflow.evaluation.scaled.parcels import Arrivals, Parcels
from benchflow.task.package import load_package


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHCUBE_STORE", str(tmp_path / "store"))


def package(folder, name="one", ballast=b""):
    root = folder / name
    (root / "verifier").mkdir(parents=True)
    (root / "task.md").write_text(f"---\ntask: {{name: p/{name}}}\n---\nDo it.\n")
    (root / "verifier/test.sh").write_text("#!/bin/sh\n")
    (root / "verifier/test.sh").chmod(0o755)
    (root / "again.sh").symlink_to("verifier/test.sh")
    (root / "ballast").write_bytes(ballast)
    return load_package(root)


def sent(parcel, arrivals):
    offset = 0
    while offset < parcel.size:
        part = parcel.part(offset)
        arrivals.take(parcel.digest, offset, parcel.size, part)
        offset += len(part)
    return arrivals.known(parcel.digest)


@pytest.mark.parametrize("ballast", [b"", os.urandom(5 << 20)], ids=["in memory", "in pieces"])
def test_a_package_arrives_as_it_was_planned(tmp_path, ballast):
    planned = package(tmp_path, ballast=ballast)
    (tmp_path / "node").mkdir()
    parcel = Parcels().parcel(planned)
    there = sent(parcel, Arrivals(tmp_path / "node"))
    parcel.discard()
    assert there is not None
    assert (there.name, there.digest, there.content_digest) == (planned.name, planned.digest, planned.content_digest)
    assert there.path != planned.path
    assert os.access(there.path / "verifier/test.sh", os.X_OK)
    assert str((there.path / "again.sh").readlink()) == "verifier/test.sh"
    assert list((tmp_path / "node").iterdir()) == []


def test_a_damaged_cache_is_repaired_when_the_parcel_comes_again(tmp_path):
    planned = package(tmp_path)
    (tmp_path / "node").mkdir()
    parcel, arrivals = Parcels().parcel(planned), Arrivals(tmp_path / "node")
    there = sent(parcel, arrivals)
    (there.path / "verifier/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    arrivals.forget(parcel.digest)
    assert arrivals.known(parcel.digest) is None
    again = sent(parcel, arrivals)
    assert again.digest == planned.digest
    assert (again.path / "verifier/test.sh").read_text() == "#!/bin/sh\n"


def test_a_parcel_that_is_not_what_its_digest_says_is_refused(tmp_path):
    parcel = Parcels().parcel(package(tmp_path))
    arrivals = Arrivals(tmp_path)
    damaged = parcel.content[:-1] + b"!"
    with pytest.raises(InfrastructureFailure, match="its digest is wrong"):
        arrivals.take(parcel.digest, 0, parcel.size, damaged)
    assert arrivals.known(parcel.digest) is None
    assert list(tmp_path.glob("*.parcel")) == []


def test_a_package_that_changed_since_it_was_planned_is_not_sent(tmp_path):
    planned = package(tmp_path, ballast=os.urandom(2 << 20))
    (planned.path / "ballast").write_bytes(b"other")
    with pytest.raises(PackageError, match="has changed"):
        Parcels().parcel(planned)


def test_parcels_are_kept_in_bounded_memory_and_made_again_with_the_same_digest(tmp_path, monkeypatch):
    planned = [package(tmp_path, f"p{number}", os.urandom(1000)) for number in range(4)]
    kept = Parcels(most_bytes=8000)
    digests = [kept.digest(each) for each in planned]
    assert len(set(digests)) == 4
    made = []
    make = parcels._made
    monkeypatch.setattr(parcels, "_made", lambda each: made.append(each) or make(each))
    assert [kept.digest(each) for each in planned] == digests
    assert made == []
    assert [kept.parcel(each).digest for each in planned] == digests
    assert made
