"""Names of images, manifests, challenges and settings are read as Docker reads them."""

import json

import pytest

from benchflow.errors import EnvironmentFailure, UsageError
from benchflow.sandbox.images.distribution.credentials import find_credentials, parse_secret
from benchflow.sandbox.images.distribution.manifests import choose_platform, image_manifest, read_manifest
from benchflow.sandbox.images.distribution.reference import Reference, parse_reference
from benchflow.sandbox.images.distribution.registries import read_registries
from benchflow.sandbox.images.distribution.registry_client import parse_challenge
from benchflow.sandbox.images.image_registry import canonical_name
from benchflow.sandbox.pulling import Credentials

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("debian", ("docker.io", "library/debian", "latest", None)),
        ("debian:12", ("docker.io", "library/debian", "12", None)),
        ("docker.io/debian:12", ("docker.io", "library/debian", "12", None)),
        ("index.docker.io/ann/x", ("docker.io", "ann/x", "latest", None)),
        ("ann/x:1.0-a_b", ("docker.io", "ann/x", "1.0-a_b", None)),
        ("localhost/x", ("localhost", "x", "latest", None)),
        ("localhost:5000/x", ("localhost:5000", "x", "latest", None)),
        ("host/x", ("docker.io", "host/x", "latest", None)),
        ("host.example/a/b/c:t", ("host.example", "a/b/c", "t", None)),
        ("host.example:443/a", ("host.example:443", "a", "latest", None)),
        (f"x@{DIGEST}", ("docker.io", "library/x", None, DIGEST)),
        (f"ghcr.io/a/x:1@{DIGEST}", ("ghcr.io", "a/x", "1", DIGEST)),
    ],
)
def test_a_name_has_a_registry_a_repository_a_tag_and_a_digest(name, parts):
    assert parse_reference(name) == Reference(*parts)
    assert parse_reference(str(parse_reference(name))) == parse_reference(name)
    assert canonical_name(str(parse_reference(name))) == canonical_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "X", "a//b", "a:", ":1", "a@sha256:1", "a@md5:00", "a:1:2/..", "../a", "a b", "-a", "a/b/", "h.o/", "x:-1"],
)
def test_what_no_registry_accepts_is_not_a_name(name):
    with pytest.raises(UsageError, match="is not an image name"):
        parse_reference(name)


def test_a_pin_that_contradicts_the_name_is_refused():
    with pytest.raises(UsageError, match="names one digest"):
        parse_reference(f"x@{DIGEST}").pinned("sha256:" + "00" * 32)


def test_a_digest_wins_over_a_tag_in_the_one_spelling():
    assert canonical_name(f"host:5000/x:1@{DIGEST}") == f"host:5000/x@{DIGEST}"


def test_challenges_are_split_at_commas_outside_quotes():
    text = 'Bearer realm="https://a/t",service="s, t", scope="repository:x:pull,push"'
    assert parse_challenge(text) == (
        "Bearer",
        {"realm": "https://a/t", "service": "s, t", "scope": "repository:x:pull,push"},
    )


def test_a_variant_is_matched_only_where_it_is_asked_for():
    index = {
        "manifests": [
            {"digest": "sha256:" + "1" * 64, "platform": {"os": "linux", "architecture": "arm", "variant": "v6"}},
            {"digest": "sha256:" + "2" * 64, "platform": {"os": "linux", "architecture": "arm", "variant": "v7"}},
            {"digest": "sha256:" + "3" * 64, "platform": {"os": "unknown", "architecture": "unknown"}},
        ]
    }
    assert choose_platform(index, "linux/arm") == "sha256:" + "1" * 64
    assert choose_platform(index, "linux/arm/v7") == "sha256:" + "2" * 64
    with pytest.raises(EnvironmentFailure, match="for linux/arm/v6, linux/arm/v7"):
        choose_platform(index, "linux/amd64")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"no", "not JSON"),
        (b"[]", "not a mapping"),
        (b'{"schemaVersion": 1}', "schema 1"),
        (b'{"schemaVersion": 2, "config": {}, "layers": []}', "cannot be read"),
        (b'{"schemaVersion": 2, "config": {"digest": "md5:1", "size": 1}, "layers": []}', "not a sha256 digest"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused_with_the_reason(data, reason):
    with pytest.raises(EnvironmentFailure, match=reason):
        image_manifest(read_manifest(data))


def auth_files(tmp_path, docker=None, podman=None):
    for place, values in ((".docker/config.json", docker), (".config/containers/auth.json", podman)):
        if values is not None:
            path = tmp_path / place
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(values))
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io", "index.docker.io"])
def test_credentials_of_docker_hub_are_found_under_its_old_names(tmp_path, key):
    given = auth_files(tmp_path, {"auths": {key: {"auth": "YTpi"}}})
    assert find_credentials(parse_reference("x"), "docker.io", given).credentials == Credentials("a", "b")


def test_the_most_specific_entry_of_podman_counts(tmp_path):
    auths = {"r.io": {"auth": "YTpi"}, "r.io/team/x": {"auth": "Yzpk"}, "r.io/te": {"auth": "ZTpm"}}
    given = auth_files(tmp_path, podman={"auths": auths})
    assert find_credentials(parse_reference("r.io/team/x"), "r.io", given).credentials == Credentials("c", "d")
    assert find_credentials(parse_reference("r.io/team/y"), "r.io", given).credentials == Credentials("a", "b")


def test_docker_comes_before_podman_and_other_hosts_get_nothing(tmp_path):
    given = auth_files(tmp_path, {"auths": {"r.io": {"auth": "YTpi"}}}, {"auths": {"r.io": {"auth": "Yzpk"}}})
    assert find_credentials(parse_reference("r.io/x"), "r.io", given).credentials == Credentials("a", "b")
    assert find_credentials(parse_reference("r.io.evil.io/x"), "r.io.evil.io", given).credentials is None


def test_a_configuration_that_cannot_be_read_is_reported(tmp_path):
    given = auth_files(tmp_path, {})
    (tmp_path / ".docker/config.json").write_text("{")
    found = find_credentials(parse_reference("r.io/x"), "r.io", given)
    assert found.credentials is None
    assert "config.json cannot be read" in found.problem


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ann:pass:word\n", Credentials("ann", "pass:word")),
        ("token", Credentials(registry_token="token")),
        ('{"auths": {"r.io": {"auth": "YTpi"}}}', Credentials("a", "b")),
        ('{"auths": {"other": {"auth": "YTpi"}}}', Credentials()),
    ],
)
def test_a_secret_is_a_pair_a_docker_configuration_or_a_token(text, found):
    assert parse_secret(text, parse_reference("r.io/x"), name="pull") == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "cannot be used"),
        ("[other]\n", "only have tables of the form"),
        ('[registry."a"]\nmirror = []\n', "unknown key mirror; the keys are mirrors, ca, plain_http"),
        ('[registry."a"]\nmirrors = ["a.io"]\n', "list of https:// or http:// addresses"),
        ('[registry."a"]\nca = "gone.pem"\n', "path of a file with certificates"),
        ('[registry."a"]\nplain_http = "yes"\n', "must be true or false"),
    ],
)
def test_a_wrong_settings_file_is_refused_with_the_key(tmp_path, text, reason):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(UsageError, match=reason):
        read_registries({"BENCHCUBE_REGISTRIES": str(tmp_path / "r.toml")})


def test_plain_http_is_for_loopback_and_by_setting(tmp_path):
    (tmp_path / "r.toml").write_text('[registry."r.io"]\nplain_http = true\nmirrors = ["https://m.io/"]\n')
    registries = read_registries({"BENCHCUBE_REGISTRIES": str(tmp_path / "r.toml")})
    assert [endpoint.urls for endpoint in registries.endpoints("r.io")] == [("https://m.io",), ("http://r.io",)]
    assert [endpoint.urls for endpoint in registries.endpoints("s.io")] == [("https://s.io",)]
    assert registries.endpoints("localhost:5000")[0].urls == ("https://localhost:5000", "http://localhost:5000")
    assert registries.endpoints("docker.io")[0].urls == ("https://registry-1.docker.io",)
