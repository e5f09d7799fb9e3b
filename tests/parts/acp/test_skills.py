"""What `doctor` says about skills that a client's text can add to a turn."""

from __future__ import annotations

from pathlib import Path

from codex_proxy.parts.acp.acp_setup import MAX_SHOWN, skills_check


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "SKILL.md").write_text("---\nname: x\n---\n")


def test_without_skills_there_is_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "skills" / "empty").mkdir(parents=True)
    assert skills_check(tmp_path, str(tmp_path / "home"), tmp_path / "work") == []


def test_the_skills_of_every_place_are_named(tmp_path: Path) -> None:
    install(tmp_path / "codex" / "skills", "deploy")
    install(tmp_path / "codex" / "skills" / ".system", "imagegen")
    install(tmp_path / "home" / ".agents" / "skills", "mail")
    install(tmp_path / "work" / ".codex" / "skills", "release")
    [check] = skills_check(tmp_path / "codex", str(tmp_path / "home"), tmp_path / "work")
    assert check.status == "warning"
    assert check.message.endswith(": deploy, mail, release.")


def test_of_many_skills_some_are_named(tmp_path: Path) -> None:
    install(tmp_path / "skills", *(f"skill-{number:02}" for number in range(MAX_SHOWN + 3)))
    [check] = skills_check(tmp_path, "", tmp_path / "work")
    assert check.message.endswith("skill-09 and 3 more.")
