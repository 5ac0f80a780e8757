"""What commands of a build get from this machine, and what they do not."""

import pytest

from benchflow.errors import UsageError
from benchflow.sandbox.local.image_builds import machine_settings, with_one_user
from benchflow.sandbox.network.addresses import VARIABLE, permitted_networks
from benchflow.sandbox.protocol import Mount


def test_nothing_is_passed_on_but_proxies_and_certificates(tmp_path):
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("certificates")
    given = {"HTTPS_PROXY": "http://p", "no_proxy": "x", "TOKEN": "secret", "PIP_CERT": str(bundle), "HOME": "/h"}
    settings = machine_settings(given)
    assert {settings.env["HTTPS_PROXY"], settings.env["no_proxy"]} == {"http://p", "x"}
    assert not {"TOKEN", "HOME"} & set(settings.env)
    (mount,) = settings.mounts
    assert mount.source == bundle
    assert settings.env["SSL_CERT_FILE"] == settings.env["PIP_CERT"] == mount.target


@pytest.mark.parametrize("given", [{}, {"SSL_CERT_FILE": "/nowhere"}, {"SSL_CERT_FILE": ""}])
def test_without_a_bundle_no_certificates_are_mounted(given):
    settings = machine_settings(given)
    assert (settings.env, settings.mounts) == ({}, ())


def test_apt_is_told_when_there_is_one_user_only(tmp_path):
    settings = with_one_user(machine_settings({}), tmp_path)
    (mount,) = settings.mounts
    assert isinstance(mount, Mount)
    assert mount.source.read_text() == 'APT::Sandbox::User "root";\n'
    assert settings.env == {"APT_CONFIG": mount.target}


def test_networks_are_permitted_by_the_operator_alone():
    assert permitted_networks({}) == ()
    found = permitted_networks({VARIABLE: "10.1.2.3, 192.168.0.0/16,fd00::/8,"})
    assert [str(network) for network in found] == ["10.1.2.3/32", "192.168.0.0/16", "fd00::/8"]


def test_what_is_no_network_is_wrong_usage():
    with pytest.raises(UsageError, match="nonsense"):
        permitted_networks({VARIABLE: "10.0.0.0/8,nonsense"})
