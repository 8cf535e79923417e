import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from edgecompress.pipeline import doctor as module
from edgecompress.pipeline.doctor import doctor

TESTS = Path(__file__).parent


def by_name(result):
    return {item.name: item for item in result.items}


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_required_is_found_where_the_tests_run():
    missing = [item for item in doctor().items if item.required and item.found is None]
    assert missing == []


def test_every_dependency_is_looked_at():
    dependencies = metadata.requires("edgecompress")
    names = {plain(re.match(r"[\w.-]+", text)[0]) for text in dependencies if "extra ==" not in text}
    # without these two there would be no command to ask
    assert names - {"typer", "rich"} == {plain(name) for name in module.REQUIRED}


def test_every_package_of_the_user_extras_is_looked_at():
    pattern = re.compile(r"([\w.-]+).*extra == ['\"](timm|zoo|litert-torch)['\"]")
    wanted = {(plain(m[1]), m[2]) for m in map(pattern.match, metadata.requires("edgecompress")) if m}
    assert wanted <= {(plain(name), extra) for name, (extra, _) in module.EXTRAS.items()}


def test_a_package_that_is_not_installed_is_missing_and_comes_with_a_command(monkeypatch):
    monkeypatch.setitem(module.REQUIRED, "no-such-package", "nothing")
    item = by_name(doctor())["no-such-package"]
    assert item.found is None
    assert item.required
    assert item.how == "pip install 'no-such-package'"


def test_a_package_that_does_not_load_is_missing_and_says_why(monkeypatch, tmp_path):
    # a distribution that is installed but broken
    (tmp_path / "broken_package.py").write_text("import no_such_library")
    info = tmp_path / "broken_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken_package\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(module.REQUIRED, "broken_package", "nothing")
    item = by_name(doctor())["broken_package"]
    assert item.found is None
    assert "no_such_library" in item.how


def test_the_pinned_version_is_what_the_hint_installs():
    pin = next(text for text in metadata.requires("edgecompress") if text.startswith("torch=="))
    assert by_name(doctor())["torch"].how == f"pip install '{pin}'"


def test_programs_are_found_on_the_path(monkeypatch, tmp_path):
    adb = tmp_path / "adb"
    adb.write_text("#!/bin/sh\n")
    adb.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    items = by_name(doctor())
    assert items["adb"].found == str(adb)
    assert items["qemu-aarch64"].found is None
    assert items["qemu-aarch64"].how == "apt-get install qemu-user"
    assert not any("not used" in one.needed_for for one in items.values())


def test_the_disk_of_a_runs_directory_that_is_not_there_yet_is_measured(tmp_path):
    item = by_name(doctor(runs_dir=tmp_path / "not" / "there"))["disk"]
    assert item.found is not None
    assert not (tmp_path / "not").exists()


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs dpkg-query: a Debian system")
@pytest.mark.parametrize(("package", "said"), [("no-such-package-here", True), ("dpkg", False)])
def test_debian_packages_that_cannot_be_installed_are_named_and_nothing_fails(tmp_path, package, said):
    listed = tmp_path / "packages.txt"
    listed.write_text(f"# a comment\n{package}  # another\n")
    for tool in ("dpkg-query", "sed", "id"):  # and no apt-get, as where installing is not allowed
        (tmp_path / tool).symlink_to(shutil.which(tool))
    script = [shutil.which("sh"), str(TESTS / "install-debian-packages.sh"), str(listed)]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0
    assert (package in done.stderr) is said
