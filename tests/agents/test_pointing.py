"""How presets are pointed at the model gateway: by their own settings, never with a provider's key."""

import json

import pytest

from benchflow.agents import create_agent
from benchflow.errors import AgentFailure, UsageError
from benchflow.models.gateway import Access, find_upstreams
from benchflow.record import CallPlace

OPENAI = {"OPENAI_API_KEY": "sk-real"}
ANTHROPIC = {"ANTHROPIC_API_KEY": "sk-real"}
GEMINI = {"GEMINI_API_KEY": "sk-real"}
OWN = {**OPENAI, "OPENAI_BASE_URL": "http://10.0.0.1/v1"}
EVERYBODY = {**OPENAI, **ANTHROPIC, **GEMINI, "OPENROUTER_API_KEY": "sk-real"}
GATEWAY = "http://127.0.0.1:41999"


def pointed(name, machine, model=None, declared=None):
    """The variables of an agent's process and the model of its session; its token reads TOKEN."""
    models = Access(None, CallPlace("solver"), 41999, find_upstreams(machine).families, token="TOKEN")
    launch = create_agent(name, environ=machine)._launch
    found = launch.environment(name, declared or {}, machine, models, model)
    assert "sk-real" not in json.dumps(dict(found.variables))
    return dict(found.variables), found.session_model


def test_agents_that_read_variables_get_an_address_and_a_token():
    env, model = pointed("claude", ANTHROPIC, "claude-x")
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"]) == (f"{GATEWAY}/anthropic", "TOKEN")
    assert (env["ANTHROPIC_MODEL"], model) == ("claude-x", None)
    assert "ANTHROPIC_DEFAULT_HAIKU_MODEL" not in env
    env, _ = pointed("claude", {**ANTHROPIC, "ANTHROPIC_BASE_URL": "http://10.0.0.1"}, "qwen")
    assert env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "qwen"
    env, model = pointed("gemini", GEMINI, "gemini-x")
    assert (env["GOOGLE_GEMINI_BASE_URL"], env["GEMINI_API_KEY"]) == (f"{GATEWAY}/gemini", "TOKEN")
    assert (env["GEMINI_MODEL"], model) == ("gemini-x", None)
    env, model = pointed("goose", OPENAI, "gpt-x")
    assert (env["GOOSE_PROVIDER"], env["OPENAI_HOST"], env["OPENAI_BASE_PATH"]) == (
        "openai",
        f"{GATEWAY}/openai",
        "v1/chat/completions",
    )
    env, model = pointed("deepagents", ANTHROPIC, "claude-x")
    assert (env["ANTHROPIC_BASE_URL"], model) == (f"{GATEWAY}/anthropic", "anthropic:claude-x")


def test_codex_gets_a_configuration():
    env, model = pointed("codex", OPENAI, "gpt-x")
    config = json.loads(env["CODEX_CONFIG"])
    server = config["model_providers"][config["model_provider"]]
    assert (server["base_url"], server["env_key"]) == (f"{GATEWAY}/openai/v1", "OPENAI_API_KEY")
    assert (env["OPENAI_API_KEY"], config["model"], model) == ("TOKEN", "gpt-x", None)
    kept, _ = pointed("codex", {**OPENAI, "CODEX_CONFIG": '{"sandbox_mode": "read-only"}'})
    assert json.loads(kept["CODEX_CONFIG"])["sandbox_mode"] == "read-only"


@pytest.mark.parametrize(
    ("machine", "name", "path"),
    [(OPENAI, "openai", "/openai/v1"), (ANTHROPIC, "anthropic", "/anthropic/v1"), (GEMINI, "google", "/gemini/v1beta")],
)
def test_opencode_uses_the_providers_that_it_knows(machine, name, path):
    env, model = pointed("opencode", machine, "some-model")
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert config["enabled_providers"] == [name]
    assert config["provider"][name]["options"]["baseURL"] == f"{GATEWAY}{path}"
    assert model == f"{name}/some-model"


def test_another_server_is_a_provider_of_its_own():
    env, model = pointed("opencode", OWN, "openai/org/model")
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert list(config["provider"]["server"]["models"]) == ["org/model"]
    assert config["provider"]["server"]["options"] == {
        "baseURL": f"{GATEWAY}/openai/v1",
        "apiKey": "{env:OPENAI_API_KEY}",
    }
    assert model == "server/org/model"
    env, model = pointed("pi", OWN, "qwen")
    provider = json.loads(env["BENCHFLOW_PI_MODELS"])["providers"]["server"]
    assert (provider["baseUrl"], provider["api"]) == (f"{GATEWAY}/openai/v1", "openai-completions")
    assert (provider["models"], model) == ([{"id": "qwen"}], "server/qwen")
    for name in ("opencode", "pi"):
        with pytest.raises(UsageError, match="needs --model") as caught:
            create_agent(name, environ=OWN).check({})
        assert caught.value.code == "model-missing"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-sonnet-4-5", "anthropic"),
        ("gemini-3-pro", "google"),
        ("gpt-6", "openai"),
        ("unheard-of", "openai"),
        ("openrouter/anthropic/claude-sonnet-4-5", "openrouter"),
        ("anthropic/claude-sonnet-4-5", "anthropic"),
    ],
)
def test_the_name_of_a_model_tells_its_server(model, family):
    env, chosen = pointed("opencode", EVERYBODY, model)
    assert json.loads(env["OPENCODE_CONFIG_CONTENT"])["enabled_providers"] == [family]
    assert chosen.split("/")[0] == family


def test_servers_of_the_file_of_models_are_found(tmp_path):
    file = tmp_path / "models.toml"
    file.write_text('[upstreams.lab]\ndialect = "anthropic"\nbase_url = "http://10.0.0.1"\n')
    machine = {"BENCHCUBE_MODELS": str(file)}
    env, _ = pointed("claude", machine, "lab/qwen")
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_MODEL"]) == (f"{GATEWAY}/lab", "qwen")
    with pytest.raises(UsageError, match="needs one of the variables OPENAI_API_KEY"):
        create_agent("codex", environ=machine).check({})
    with pytest.raises(UsageError, match="speaks openai; the server 'lab' speaks anthropic") as caught:
        create_agent("codex", "lab/qwen", environ={**machine, **OPENAI}).check({})
    assert caught.value.code == "dialect-mismatch"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ('{"provider": {"x": {"options": {"apiKey": "sk-real"}}}}', "sets 'provider'"),
    ],
)
def test_a_configuration_of_the_user_names_no_servers(config, said):
    agent = create_agent("opencode", "gpt-x", environ={**OPENAI, "OPENCODE_CONFIG_CONTENT": config})
    with pytest.raises(UsageError, match=said) as caught:
        agent.check({})
    assert caught.value.code == "agent-config"
    with pytest.raises(AgentFailure, match=said):
        pointed("opencode", {**OPENAI, "OPENCODE_CONFIG_CONTENT": config}, "gpt-x")


def test_what_a_package_sets_does_not_lead_an_agent_past_the_gateway():
    declared = {"ANTHROPIC_BASE_URL": "http://elsewhere", "ANTHROPIC_API_KEY": "theirs", "OTHER": "kept"}
    env, _ = pointed("claude", ANTHROPIC, declared=declared)
    assert (env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"]) == (f"{GATEWAY}/anthropic", "TOKEN")
    assert env["OTHER"] == "kept"


def test_any_other_agent_gets_the_variables_of_ordinary_clients():
    env, model = pointed("acp:some-agent", {**OPENAI, **GEMINI}, "m", {"OPENAI_BASE_URL": "http://service"})
    assert (env["GOOGLE_GEMINI_BASE_URL"], env["GEMINI_API_KEY"]) == (f"{GATEWAY}/gemini", "TOKEN")
    assert (env["OPENAI_BASE_URL"], model) == ("http://service", "m")
