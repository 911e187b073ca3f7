"""Checks on the repository itself: what may not be in it, what must be pinned, what must agree with what."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import oncommit

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))

# Put together here, so that this file does not contain what it looks for.
REGISTRIES = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "maven" + ".org",
    "repo.maven" + ".apache.org",
    "deb" + ".debian.org",
    "npm" + "js.org",
]
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|root|opt/wheels|tmp/lab|home/\w+)/\w")


def tracked() -> list[Path]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]  # in a container another user owns the checkout
    listed = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if pattern.search(line)
        ]
    return found


def package_name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0]


def test_no_file_names_a_registry() -> None:
    assert lines_with(re.compile("|".join(map(re.escape, REGISTRIES)))) == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert lines_with(MACHINE_PATHS) == []


def test_there_is_no_lock_file_of_uv() -> None:
    assert [path.name for path in tracked() if path.name == "uv.lock"] == []


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_are_pinned_by_hash(path: Path) -> None:
    text = re.sub(r"\\\n", " ", path.read_text())
    entries = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+ ", entry), f"not a pinned package: {entry[:60]}"
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", entry), f"no hash: {entry[:60]}"


def test_each_dependency_group_is_locked() -> None:
    assert {path.stem for path in REQUIREMENTS} == set(PYPROJECT["dependency-groups"])


def test_each_dependency_has_its_reason() -> None:
    project = PYPROJECT["project"]
    groups = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PYPROJECT["dependency-groups"].values(),
    ]
    reasons = (ROOT / "docs/dependencies.md").read_text()
    rows = re.findall(r"^\| (?:`[a-z]+` \| (?=`[^`]+` \|))?`([^`]+)` \|", reasons, re.MULTILINE)
    explained = {package_name(name) for name in rows}
    assert {package_name(requirement) for group in groups for requirement in group} == explained


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"^\s*-?\s*uses:\s*(.+)$", path.read_text(), re.MULTILINE)
    assert used
    for action in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_hold_no_rights_by_default(path: Path) -> None:
    workflow: dict[str, Any] = yaml.safe_load(path.read_text())
    assert workflow["permissions"] in ({}, {"contents": "read"})


def test_the_matrix_has_every_python_that_is_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    promised = [
        version[1]
        for classifier in PYPROJECT["project"]["classifiers"]
        if (version := re.search(r"Python :: (3\.\d+)$", classifier))
    ]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == promised
    assert PYPROJECT["project"]["requires-python"] == f">={promised[0]}"


def test_make_help_lists_each_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    described = dict(re.findall(r"^make ([a-z]+) +(\S.*)$", shown, re.MULTILINE))
    assert list(described) == phony[1].split()


def test_public_names_are_sorted_and_there() -> None:
    def as_ruff_sorts(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert oncommit.__all__ == sorted(set(oncommit.__all__), key=as_ruff_sorts)
    assert [name for name in oncommit.__all__ if not hasattr(oncommit, name)] == []


def test_the_pure_base_is_watched_whole() -> None:
    contracts = {contract["id"]: contract for contract in PYPROJECT["tool"]["importlinter"]["contracts"]}
    above = {"__init__", "__main__", "app"}
    modules = {path.stem for path in (ROOT / "src/oncommit").glob("*.py")} - above
    modules |= {"cloudevents", "config"}  # the rooms of the base that are folders
    watched = set(contracts["pure-base"]["source_modules"])
    assert watched == {f"oncommit.{module}" for module in modules}, "list it in pyproject.toml, contract pure-base"


def test_changelog_fragments_have_a_known_type() -> None:
    types = "|".join(entry["directory"] for entry in PYPROJECT["tool"]["towncrier"]["type"])
    allowed = re.compile(rf"README\.md|(\d+|\+[\w-]+)\.({types})(\.\d+)?\.md")
    names = [path.name for path in (ROOT / "changelog.d").iterdir()]
    assert [name for name in names if not allowed.fullmatch(name)] == []


def compose_services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return services


def test_compose_has_every_server() -> None:
    assert set(compose_services()) == {"postgres", "nats", "redis", "rabbitmq", "kafka"}


@pytest.mark.parametrize("name", compose_services())
def test_compose_stays_on_the_loopback_interface(name: str) -> None:
    service = compose_services()[name]
    assert service["ports"]
    for port in service["ports"]:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    assert "network_mode" not in service
    assert service["healthcheck"]["test"][0] == "CMD"
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*", service["image"]), "an image needs its version"


def test_compose_names_the_volumes_it_uses() -> None:
    document = yaml.safe_load((ROOT / "compose.yaml").read_text())
    mounts = [volume for service in document["services"].values() for volume in service["volumes"]]
    assert {mount.split(":")[0] for mount in mounts} == set(document["volumes"])
