"""Libraries that an agent installed where a language looks before the environment's own."""

from __future__ import annotations

import pytest

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change
from benchflow.verifier.surviving import loader_cache
from benchflow.verifier.surviving.libraries import candidates


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/usr/local/share/perl/5.36.0/Digest/SHA.pm", "/usr/share/perl/*/Digest/SHA.pm"),
        ("/usr/local/lib/x86_64-linux-gnu/perl/5.36.0/JSON/PP.pm", "/usr/share/perl/*/JSON/PP.pm"),
        ("/usr/local/lib/site_ruby/3.1.0/json.rb", "/usr/lib/ruby/[0-9]*/json.rb"),
        (
            "/var/lib/gems/3.1.0/specifications/json-99.0.0.gemspec",
            "/usr/lib/ruby/gems/*/specifications/default/json-[0-9]*",
        ),
        (
            "/root/.local/share/gem/ruby/3.1.0/specifications/rack-test-1.0.gemspec",
            "/var/lib/gems/*/specifications/rack-test-[0-9]*",
        ),
    ],
)
def test_a_library_is_looked_for_in_the_environment(path, place):
    (found,) = candidates([Change(path, "added", "file")], PathSet())
    assert found.path == path
    assert place in found.places


def test_a_library_of_r_is_its_whole_folder():
    (found,) = candidates([Change("/usr/local/lib/R/site-library/stats/DESCRIPTION", "added", "file")], PathSet())
    assert found.path == "/usr/local/lib/R/site-library/stats"
    assert "/usr/lib/R/library/stats" in found.places


@pytest.mark.parametrize(
    "path", ["/app/lib/json.rb", "/usr/lib/ruby/3.1.0/json.rb", "/usr/local/share/perl/5.36.0/$(x).pm"]
)
def test_other_files_are_not(path):
    assert candidates([Change(path, "added", "file")], PathSet()) == []


BEFORE = {
    "libz.so.1": ["(libc6) /lib/libz.so.1", "(libc6,x86-64) /lib64/libz.so.1"],
    "libq.so": ["(libc6) /lib/libq.so"],
}


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ({}, True),
        ({"libmine.so.2": ["(libc6) /usr/local/lib/libmine.so.2"]}, True),
        ({"libmine.so.2": ["(libc6, hwcap) /usr/local/lib/glibc-hwcaps/x86-64-v3/other.so"]}, False),
        ({"libz.so.1": ["(libc6) /usr/local/lib/libz.so.1", *BEFORE["libz.so.1"]]}, False),
        ({"libz.so.1": BEFORE["libz.so.1"][1:]}, True),
        ({"libz.so.1": BEFORE["libz.so.1"][::-1]}, False),
    ],
)
def test_the_loader_finds_new_libraries_and_those_of_the_environment_where_they_were(after, same):
    assert loader_cache.finds_the_same(BEFORE, {**BEFORE, **after}) == same
