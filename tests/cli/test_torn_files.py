"""Whatever dlt's working directory looks like after a power cut, every command works."""

from __future__ import annotations


def test_no_torn_file_stops_a_command(command) -> None:
    temporary = command.directory / "temporary"
    temporary.mkdir()
    command.environment["TMPDIR"] = str(temporary)
    assert command("run").code == 0
    files = [path for path in (command.directory / "dlt").rglob("*") if path.is_file()]
    assert {"state.json", "importer.schema.json", ".version"} <= {path.name for path in files}
    for path in files:
        path.write_bytes(b"")
    for arguments in (["status"], ["query", "SELECT 1"], ["doctor"], ["verify"], ["run"]):
        assert command(*arguments).code == 0, arguments
    assert not list(temporary.iterdir())
