"""What is understood of `docker` without an engine, and that the rest is refused by name."""

import pytest

from cube.services.docker_words import Refused, parse_exec, parse_run, variables


def test_a_service_is_read_as_an_engine_reads_it():
    words = (
        "-d --rm --name web -p 8080:80 -p 127.0.0.1:8081:81/tcp -e A=1=2 --env B -eNOT=1 -v data:/data -m 512m "
        "--cpus=1.5 --label x=y -w /srv --user www --entrypoint /bin/tool --network bridge --restart=no "
        "image:1 serve -p 3 --deep"
    )
    with pytest.raises(Refused, match="-eNOT"):
        parse_run(words.split(), {})
    run = parse_run(words.replace("-eNOT=1 ", "").split(), {"B": "from the script"})
    assert (run.image, run.words) == ("image:1", ("serve", "-p", "3", "--deep"))
    assert run.env == {"A": "1=2", "B": "from the script"}
    assert run.published == {8080: 80, 8081: 81}
    assert (run.volumes, run.labels) == ({"data": "/data"}, {"x": "y"})
    assert (run.memory_gb, run.cpus) == (0.5, 1.5)
    assert (run.name, run.workdir, run.user, run.entrypoint) == ("web", "/srv", "www", "/bin/tool")


@pytest.mark.parametrize(
    "words",
    [
        "image", "-it image", "-d --privileged image", "-d --network host image", "-d --restart always image",
        "-d -v /etc:/etc image", "-d -v data:/data:ro image", "-d -p 80 image",
        "-d -p 1:2/udp image", "-d --gpus all image", "-d",
        "-d --memory much image", "-d --name", "-d --pull always image", "-d --env-file x image",
    ],
)  # fmt: skip
def test_what_needs_an_engine_is_refused(words):
    with pytest.raises(Refused):
        parse_run(words.split(), {})


def test_a_command_in_a_container_keeps_its_words():
    name, words, found = parse_exec(["-e", "A=b c", "-w", "/x", "web", "sh", "-c", "echo $A"], {})
    assert (name, words, found.last("--workdir")) == ("web", ("sh", "-c", "echo $A"), "/x")
    assert variables(found, {}) == {"A": "b c"}
    with pytest.raises(Refused):
        parse_exec(["web"], {})
