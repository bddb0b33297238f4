"""What of a Dockerfile a build runs, and what only stands there: heredocs, quotes, shells, and the scopes of ARG."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gradebox.run.assertions import CheckFailed
from grader.container.hygiene.checks import require_no_secrets
from grader.container.shared.checks.dockerfile import parse
from grader.container.shared.checks.words import commands
from tests.deploy.dockerfiles import REFERENCE
from tests.deploy.test_container_exercise import dockerfile, refused

_INSTALLS = "&& pip install --no-cache-dir --no-compile --requirement requirements.txt"


def runs(text: str) -> list[list[str]]:
    """The commands of a Dockerfile that has one RUN."""
    read = parse(f"FROM base\n{text}\n")
    assert read is not None
    (run,) = read.in_image("RUN")
    return commands(run.arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "RUN <<EOF\n# a comment's\napt-get update\nrm -rf \\\n  /x\nEOF",
            [["apt-get", "update"], ["rm", "-rf", "/x"]],
        ),
        (
            "RUN --mount=type=cache,target=/c <<-'END'\n\tpip install x && true\n\tEND",
            [["pip", "install", "x"], ["true"]],
        ),
        ("RUN bash -e <<EOF\na | b\nEOF", [["a"], ["b"]]),
        ("RUN <<EOF\n#!/usr/bin/env python3\npip install x\nEOF", [["<<EOF"]]),
        ("RUN python3 <<EOF\npip install x\nEOF", [["python3", "<<EOF"]]),
        ("RUN cat <<EOF > /etc/x && true\npip install x\nEOF", [["cat", "<<EOF", ">", "/etc/x"], ["true"]]),
        ("RUN : 'a && pip install x' && b", [[":", "a && pip install x"], ["b"]]),
        ("RUN echo \"it's; so\" ; b # don't", [["echo", "it's; so"], ["b"]]),
        ("RUN a \\' && b", [["a", "'"], ["b"]]),
        ("RUN : 'a && pip install x", []),
        ('SHELL ["/bin/bash", "-o", "pipefail", "-c"]\nRUN a && b', [["a"], ["b"]]),
        ('SHELL ["/bin/sh", "-n", "-c"]\nRUN a && b', [["/bin/sh", "-n", "-c", "a && b"]]),
        ('SHELL ["/bin/true"]\nRUN a && b', [["/bin/true", "a && b"]]),
        ("# escape=`\nRUN a `\n  b \\", [["a", "b", "\\"]]),
    ],
)
def test_the_commands_of_a_run_are_those_that_a_shell_runs(text: str, expected: list[list[str]]) -> None:
    lines = text.split("\n")
    if lines[0].startswith("# escape"):
        read = parse("\n".join([lines[0], "FROM base", *lines[1:]]))
        assert read is not None
        assert next(read.in_image("RUN")).arguments.split() == expected[0]
        return
    assert runs(text) == expected


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("ARG TAG=1\nFROM x:${TAG}\n", "x:1"),
        ("ARG B=a\nFROM ${B} AS notes\nARG B=c\nFROM ${B}\n", "a"),
        ("ARG B=a\nFROM b AS notes\nENV B=c\nFROM ${B}\n", "a"),
    ],
)
def test_from_sees_the_arguments_before_the_first_from_alone(text: str, base: str) -> None:
    read = parse(text)
    assert read is not None
    assert read.stages[-1].base == base


def test_a_stage_has_its_own_arguments_and_the_environment_of_the_stage_below() -> None:
    text = "ARG V=1\nFROM a AS below\nARG V\nENV W=2\nARG X=3\nRUN $V $W $X\nFROM below\nRUN $V $W $X\n"
    read = parse(text)
    assert read is not None
    assert [run.arguments for run in read.in_image("RUN")] == ["1 2 3", "$V 2 $X"]


@pytest.mark.parametrize(
    "trick",
    [
        REFERENCE.replace("WORKDIR /app", 'SHELL ["/bin/sh", "-n", "-c"]\nWORKDIR /app', 1),
        REFERENCE.replace(_INSTALLS, f"&& : '; {_INSTALLS} '"),
        REFERENCE.replace("RUN python3 -m venv", "COPY <<NOTES /notes\nRUN python3 -m venv").replace(
            "RUN useradd", "NOTES\nRUN useradd"
        ),
        REFERENCE.replace("RUN python3 -m venv", "RUN --mount=type=tmpfs,target=/opt/venv python3 -m venv"),
        REFERENCE.replace("RUN python3 -m venv", "RUN --mount=type=cache,target=/opt/venv python3 -m venv"),
        REFERENCE.replace("ENV PATH", "FROM nvidia/cuda:13.2.0-base-ubuntu24.04 AS unused\nENV PATH").replace(
            "RUN useradd", "FROM nvidia/cuda:13.2.0-base-ubuntu24.04\nRUN useradd"
        ),
    ],
)
def test_packages_that_only_stand_there_are_not_installed(trick: str) -> None:
    assert {"pytorch_pinned", "packages_below"} <= refused(dockerfile(trick))


def test_an_index_in_a_variable_that_no_installer_reads_says_nothing() -> None:
    option = "--extra-index-url https://download.pytorch.org/whl/cu132 "
    file = REFERENCE.replace(f"\\\n        {option}", "").replace("CUDA_VISIBLE_DEVICES=0", "{}=" + option.split()[1])
    assert refused(dockerfile(file.replace("{}", "NOTE"))) == {"pytorch_pinned"}
    assert refused(dockerfile(file.replace("{}", "PIP_EXTRA_INDEX_URL"))) == set()


def test_packages_of_a_heredoc_are_installed() -> None:
    text = REFERENCE.replace(
        "RUN python3 -m venv /opt/venv \\\n    && pip install",
        "RUN <<INSTALL\nset -e\npython3 -m venv /opt/venv\npip install",
    ).replace(
        "    && find /opt/venv -name '*.a' -exec rm -f {} +", "find /opt/venv -name '*.a' -exec rm -f {} +\nINSTALL"
    )
    text = text.replace("whl/cu132 \\\nfind", "whl/cu132\nfind")
    assert "<<INSTALL" in text
    assert refused(dockerfile(text)) == set()


@pytest.mark.parametrize(
    "secret",
    ["RUN <<FETCH\nexport API_TOKEN=hunter2\ncurl x\nFETCH", "COPY <<NOTES /app/x\nhttps://me:pw@host/data\nNOTES"],
)
def test_a_secret_in_a_heredoc_is_one(secret: str) -> None:
    file = dockerfile(REFERENCE.replace("COPY train.py .", f"COPY train.py .\n{secret}"))
    with pytest.raises(CheckFailed, match=r"API_TOKEN|credential"):
        require_no_secrets(file, context_is_limited=True)


def test_hadolint_is_told_nothing_by_the_file_itself(hadolint: str, tmp_path: Path) -> None:
    text = "# hadolint global ignore=DL3000\nFROM ubuntu:24.04\nWORKDIR app\n"
    said = [
        subprocess.run([hadolint, *options, "-"], input=text, capture_output=True, text=True, check=False).stdout
        for options in ([], ["--disable-ignore-pragma"])
    ]
    assert ["DL3000" in each for each in said] == [False, True]
