"""Which public packages count is decided from their files: hosts that they name, and hosts that their clients ask."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lib.asked_hosts import asked_hosts, clients

FETCHING = {
    "Dockerfile": {
        "RUN pip install huggingface-hub==0.30": "huggingface.co",
        "RUN python -m nltk.downloader punkt": "raw.githubusercontent.com",
        "RUN python3 -m spacy download en_core_web_sm": "github.com",
        "RUN pip install playwright && playwright install --with-deps chromium": "cdn.playwright.dev",
        "RUN npx playwright@1.50 install": "cdn.playwright.dev",
        "RUN apt-get update && add-apt-repository -y ppa:deadsnakes/ppa": "ppa.launchpadcontent.net",
        "RUN CGO_ENABLED=0 go install golang/x/tools@latest": "proxy.golang.org",
        "RUN cd /src && /usr/local/go/bin/go mod download": "proxy.golang.org",
        "RUN . ~/.cargo/env; cargo install --locked ripgrep": "index.crates.io",
        "RUN gem install bundler": "rubygems.org",
        "RUN mvn -q package": "repo.maven.apache.org",
        "RUN R -e 'install.packages(\"ggplot2\")'": "cran.r-project.org",
        "RUN uv python install 3.13": "github.com",
        "RUN curl -fsSL get.docker.com | sh": "get.docker.com",
        "RUN wget -q --show-progress data.host.io/set.tar": "data.host.io",
        "RUN yarn install --frozen-lockfile": "registry.yarnpkg.com",
    },
    "tests/test_it.py": {
        "model = AutoModel.from_pretrained('bert-base-uncased')": "huggingface.co",
        "rows = load_dataset(\"squad\", split='train')": "huggingface.co",
        "net = torch.hub.load('pytorch/vision', 'resnet18')": "github.com",
        "x, y = fetch_openml('mnist_784', return_X_y=True)": "api.openml.org",
        "data = fetch_20newsgroups_vectorized()": "ndownloader.figshare.com",
        "import gdown": "drive.google.com",
        "encoding = tiktoken.get_encoding('cl100k_base')": "openaipublic.blob.core.windows.net",
        "judge = OpenAI()": "api.openai.com",
        "subprocess.run(['cargo', 'fetch'], check=True)": "index.crates.io",
        "os.system('kaggle datasets download -d a/b')": "www.kaggle.com",
    },
    "requirements.txt": {"kagglehub>=0.3": "www.kaggle.com", "yt-dlp": "www.youtube.com"},
    "app/Cargo.toml": {
        '[package]\nname = "a"\n\n[dependencies]\n# one\nserde = { version = "1" }\n': "index.crates.io"
    },
    "app/go.mod": {"module a\n\nrequire golang/x/text v0.3.0\n": "proxy.golang.org"},
    "app/build.gradle": {"repositories {\n  mavenCentral()\n}\n": "repo.maven.apache.org"},
    "app/gradle/wrapper/gradle-wrapper.properties": {
        r"distributionUrl=https\://services.gradle.org/gradle-8.zip": "services.gradle.org"
    },
    "environment/setup": {"#!/bin/sh\nwget https://files.somewhere.io/a.tar": "files.somewhere.io"},
}
STAYING = {
    "Dockerfile": (
        "RUN pip install requests && apt-get install -y golang cargo && npm ci",
        "# RUN cargo install ripgrep",
        "RUN go build ./... && cargo build --offline && cargo test",
        "RUN playwright install-deps",
        "RUN curl -sS localhost:8000/health && curl -o out.html http://127.0.0.1/",
        "RUN mkdir -p yarn install && cp go.mod /app/",
        "RUN echo done > /app/docker",
    ),
    "tests/test_it.py": (
        "model = AutoModel.from_pretrained('./model')",
        "model = AutoModel.from_pretrained('/app/model')",
        "rows = load_dataset('json', data_files='a.json')",
        "from transformers import BertConfig",
        "judge = OpenAI(base_url=os.environ['JUDGE'], api_key='x')",
        "assert 'uv' in text and 'go' in words",
        "datasets = {'train': 1}",
        "import nltk",
    ),
    "app/Cargo.toml": (
        '[package]\nname = "a"\n\n[dependencies]\nlocal = { path = "../local" }\n\n[lib]\nname = "b"\n',
    ),
    "app/go.mod": ("module a\n\ngo 1.22\n",),
    "notes.md": ("RUN cargo install ripgrep from https://crates.io",),
    "environment/data": ("cargo install ripgrep",),
}


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "host"), [(n, t, h) for n, texts in FETCHING.items() for t, h in texts.items()]
)
def test_a_file_that_fetches_asks_for_the_host_of_its_client(tmp_path: Path, name: str, text: str, host: str) -> None:
    asked = asked_hosts(written(tmp_path, name, text))
    assert {*asked.named, *asked.clients} == {host}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in STAYING.items() for text in texts])
def test_a_file_that_fetches_nothing_asks_for_no_host(tmp_path: Path, name: str, text: str) -> None:
    assert not asked_hosts(written(tmp_path, name, text))


def test_every_client_has_a_public_host_that_is_no_index_of_pip_apt_or_npm() -> None:
    for client in clients():
        assert re.fullmatch(r"(?:[a-z0-9-]+\.)+[a-z]{2,}", client.host)
        assert not re.search(r"pypi|pythonhosted|debian|npmjs", client.host)
        assert not client.use.search("")
